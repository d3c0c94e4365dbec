"""`rag train`: a subcommand per recipe, whose options are the settings of the recipe's
configuration.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from rag.cli.lazy import command_with, group_of
from rag.cli.options import DATA, TRAINING, Count, options_from, options_of, some
from rag.config import parse_overrides
from rag.core.errors import ConfigError
from rag.recipes import RECIPES

_PANELS = {
    "readers": "Readers",
    "rag": "Retriever and reader together",
}  # of a recipe, by its package
_ENTRIES = {
    name: (_PANELS.get(place.partition(".")[0], "Retrievers"), about)
    for name, (place, about) in RECIPES.items()
}
_FLAGS = {  # setting → its spellings; others are spelled as they are named
    "train_files": ("--train",),
    "validation_file": ("--validation",),
    "index": ("--index", "-i"),
    "question_encoder": ("--from",),
    "refresh_every_steps": ("--refresh-every",),
}
_INDEX_ENCODER: dict[str, tuple[str, ...]] = {"question_encoder": ("--index-encoder",)}
_CORPUS: dict[str, tuple[str, ...]] = {"train_files": ("--corpus", "--train")}
_FLAGS_OF: dict[str, dict[str, tuple[str, ...]]] = {
    "ict": _CORPUS,
    "reader": {"encoder": ("--from",)},
    "generator": {"model": ("--from",), "encoder": ("--warm-start",)},
    "orqa": _INDEX_ENCODER,
    "mlm": {**_CORPUS, "reader": ("--from",)},
    "realm": {**_CORPUS, **_INDEX_ENCODER},
    "rag": _INDEX_ENCODER,
    "emdr2": _INDEX_ENCODER,
}
# what a finished model is called, and the command that uses it; {1}: the run's index, {2}: the run
_USES = {
    "static": "encoder → {0}\nuse it: rag index … --encoder {0}",
    "colbert": "encoder → {0}\nuse it: rag index … --encoder {0} --index-type plaid",
    "reranker": "cross-encoder → {0}\nuse it: rag ask … --rerank {0}",
    "mlm": "masked language model → {0}\nuse it: rag train realm … --reader {0}",
    "orqa": "reader → {2}/reader\nuse it: rag ask … --index {1} --retriever dense --reader {2}/reader",
    **dict.fromkeys(
        ("reader", "generator", "rag", "emdr2"),
        "reader → {0}\nuse it: rag ask … --index {1} --reader {0}",
    ),
}
_ENCODER = "encoder → {0}\nuse it: rag index … --encoder {0}"
_WITH_INDEX = (
    "encoder → {0}\nuse it: rag ask … --index {1}  (its passages are encoded with this encoder)"
)
_RESUMED = (
    "Ctrl-C or a crash loses at most a few minutes: the same command resumes from the last checkpoint. "
    "With several GPUs: torchrun --nproc-per-node N -m rag.cli.main train …"
)
_REFRESHED = ("ance", "realm", "rag", "emdr2")  # recipes that encode a corpus while they train


def _common(
    *,
    train: list[str] | None = None,
    negatives: list[str] | None = None,
    config: str | None = None,
    set_: list[str] | None = None,
    threads: Count | None = None,
    ray: str | None = None,
    out: Path,
) -> None:
    """Options of recipes that are no settings of them.

    Args:
        train: Questions with answers, of any format; may be given several times.
        negatives: Results of `rag retrieve` for the questions of the --train in the same place:
            hard negatives, and positives where there are no gold passages.
        out: Folder of the run; an unfinished one is resumed.
    """


def recipe_command(name: str) -> Any:
    """The command of a recipe: an option for each setting of its configuration."""
    from rag.recipes import recipe_class

    recipe, spelled = recipe_class(name), {**_FLAGS, **_FLAGS_OF.get(name, {})}
    options = options_of(recipe, panel=TRAINING, flags=spelled, is_partial=True)
    options = dict(
        sorted(options.items(), key=lambda it: it[1][0].__metadata__[0].rich_help_panel != DATA)
    )
    more = {"reader": ("train", "negatives"), **dict.fromkeys(_REFRESHED, ("ray",))}.get(name, ())
    options |= some(options_from(_common), *more, "config", "set_", "threads", "out")
    flags = {each: spelled.get(each, (f"--{each.replace('_', '-')}",))[0] for each in options}

    def run(
        config: str | None, set_: list[str] | None, ray: str | None = None, **values: Any
    ) -> None:
        from rag.core.log import setup_logging
        from rag.recipes import read_config
        from rag.recipes import run as train
        from rag.scale.encoding import encoding_at

        is_first = os.environ.get("RANK", "0") == "0"
        setup_logging("INFO" if is_first else "WARNING")
        if name == "reader":
            values["train"] = _reader_sets(values["train"], values.pop("negatives"))
        settings = {key: value for key, value in values.items() if value not in (None, [])}
        checked = read_config(recipe, config, settings | parse_overrides(set_ or []), flags)
        with encoding_at(ray) as encoding:
            finished = train(checked, **encoding)
        if is_first:
            index = checked.out / "index"
            use = _USES.get(name, _WITH_INDEX if index.is_dir() else _ENCODER)
            typer.echo(use.format(finished, index if index.is_dir() else "…", checked.out))

    return command_with(
        name, options, run, help=f"{RECIPES.get(name, ('', name))[1]}\n\n{_RESUMED}"
    )


def _reader_sets(
    questions: Sequence[str] | None, negatives: Sequence[str] | None
) -> list[dict[str, str]]:
    """The question sets of an extractive reader, each with the results of a search for it, if
    given.
    """
    sets = [{"questions": path} for path in questions or ()]
    for number, path in enumerate(negatives or ()):
        if number == len(sets):
            hint = "give at most one for each, in their order"
            raise ConfigError("more --negatives than --train", hint=hint)
        sets[number]["retrieved"] = path
    return sets


app = group_of(
    "Train models, one subcommand per recipe; one of your own: rag train FILE.py:Class …",
    _ENTRIES,
    recipe_command,
    add_completion=False,
)
