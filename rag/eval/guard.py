"""Keeps test sets for testing: a checkpoint is never chosen on one."""

import re
from pathlib import Path

from rag.core.errors import ConfigError

_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("dev", "devel", "valid", "validation", "val"), "dev"),
    **dict.fromkeys(("test", "eval", "heldout", "blind", "sealed"), "test"),
}


def guess_split(name: str | Path) -> str | None:
    """The split in a file or data-set name, or None; the last such word of the file name counts.

    Example:
        >>> [guess_split(name) for name in ("data/nq-test.qa.csv", "dev-v1.1.json.gz", "questions.jsonl")]
        ['test', 'dev', None]
    """
    splits = [_WORDS[word] for word in re.findall(r"[a-z]+", Path(name).name.lower()) if word in _WORDS]
    return splits[-1] if splits else None


def check_selection_split(name: str | Path) -> None:
    """Refuse a question set for choosing checkpoints or settings if it is named as a test set.

    Raises:
        ConfigError: its name says "test".
    """
    if guess_split(name) == "test":
        raise ConfigError(
            f"{name} is by its name a test set: choosing a checkpoint or a setting on it would make its "
            "figures meaningless",
            hint="hold out some of the training questions and choose on these, or rename the file if it is "
            "none",
        )
