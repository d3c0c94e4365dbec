"""Keeps test sets for testing: a checkpoint is never chosen on one."""

import re
from pathlib import Path

from rag.core.errors import ConfigError

SPLITS = ("train", "dev", "test")
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
    found = [_WORDS[word] for word in re.findall(r"[a-z]+", Path(name).name.lower()) if word in _WORDS]
    return found[-1] if found else None


def check_selection_split(name: str | Path, split: str | None = None) -> str | None:
    """Allow a question set for choosing checkpoints or settings, or refuse it.

    Args:
        name: file or data-set name of the question set.
        split: how the set is marked; if None, its name decides. A mark does not override the name: a file
            named "test" that is marked "dev" is refused too.

    Returns:
        The split, or None if neither mark nor name contains it.

    Raises:
        ConfigError: if the set is marked or named test, or if the mark is none of `SPLITS`.

    Example:
        >>> check_selection_split("nq-dev.jsonl")
        'dev'
    """
    if split is not None and split not in SPLITS:
        raise ConfigError(f"split {split!r} is not known, expected one of {', '.join(SPLITS)}")
    named = guess_split(name)
    if "test" in (split, named):
        why = "marked as" if split == "test" else "by its name"
        raise ConfigError(
            f"{name} is {why} a test set: choosing a checkpoint or a setting on it would make its figures "
            "meaningless",
            hint="hold out some of the training questions and choose on these"
            + (", or rename the file if it is not one" if split != "test" else ""),
        )
    return split or named
