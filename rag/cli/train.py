"""`rag train`: a subcommand per recipe, whose options are the settings of the recipe."""

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

from cyclopts import App, Parameter

from rag.cli.main import add_commands
from rag.cli.options import Assignments, Out, Preset, option, options_of, with_options, without
from rag.cli.show import say
from rag.config import Setting, parse_overrides
from rag.core.errors import ConfigError
from rag.recipes import RECIPES, read_config, recipe_class

_ABOUT = "Train models, one subcommand per recipe; one of your own: rag train FILE.py:Class …"
# Panel of a recipe in the help, by its package.
_PANELS = {"readers": "Readers", "rag": "Retriever and reader together"}
# How settings are spelled that are not spelled as they are named.
_FLAGS = {
    "train_files": "--train",
    "validation_file": "--validation",
    "question_encoder": "--from",
    "refresh_every_steps": "--refresh-every",
}
_INDEX_ENCODER = {"question_encoder": "--index-encoder"}
_CORPUS = {"train_files": "--corpus"}
_FLAGS_OF: dict[str, dict[str, str]] = {
    "ict": _CORPUS,
    "reader": {"encoder": "--from"},
    "verifier": {"encoder": "--from"},
    "generator": {"model": "--from", "encoder": "--warm-start"},
    "orqa": _INDEX_ENCODER,
    "mlm": {**_CORPUS, "reader": "--from"},
    "realm": {**_CORPUS, **_INDEX_ENCODER},
    "rag": _INDEX_ENCODER,
    "emdr2": _INDEX_ENCODER,
}
# What a finished model is called, and the command that uses it.
_USES_READER = "reader → {model}\nuse it: rag ask … --index {index} --reader {model}"
_USES = {
    "colbert": "encoder → {model}\nuse it: rag index … --encoder {model} --index-type plaid",
    "reranker": "cross-encoder → {model}\nuse it: rag ask … --rerank {model}",
    "mlm": "masked language model → {model}\nuse it: rag train realm … --reader {model}",
    "verifier": "verifier → {model}\nuse it: rag verify … --index {index} --verifier {model}",
    "orqa": "reader → {run}/reader\n"
    "use it: rag ask … --index {index} --retriever dense --reader {run}/reader",
    **dict.fromkeys(("reader", "generator", "rag", "emdr2"), _USES_READER),
}
_USES_ENCODER = "encoder → {model}\nuse it: rag index … --encoder {model}"
_USES_INDEX = (
    "encoder → {model}\n"
    "use it: rag ask … --index {index}  (its passages are encoded with this encoder)"
)
_RESUMED = (
    "Ctrl-C or a crash loses at most a few minutes: the same command resumes from the last "
    "checkpoint. With several GPUs: torchrun --nproc-per-node N -m rag.cli.main train …"
)
# Recipes that encode a corpus while they train.
_REFRESHED = ("ance", "realm", "rag", "emdr2")
_OF_REFRESHES = {
    "ray": option(
        "ray",
        str,
        None,
        Parameter(help="Encode on the Ray cluster at this address (HOST:PORT, or auto)."),
    )
}
_OF_READERS = {
    "train": option(
        "train",
        list[str],
        None,
        Parameter(help="Questions with answers, of any format; may be given several times."),
    ),
    "negatives": option(
        "negatives",
        list[str],
        None,
        Parameter(
            help="Results of `rag retrieve` for the questions of the --train in the same place: "
            "hard negatives, and positives where there are no gold passages."
        ),
    ),
}


def make_app(words: Sequence[str]) -> App:
    """The group with all recipes, of which the one that the words call is imported."""
    app = App(name="train", help=_ABOUT)
    summaries = {}
    for name, (home, about) in RECIPES.items():
        summaries[name] = (_PANELS.get(home.partition(".")[0], "Retrievers"), about)
    called = words[0] if words else "-"
    if not called.startswith("-") and called not in RECIPES:
        summaries[called] = ("Your own", called)
    add_commands(app, summaries, recipe_command, words)
    return app


def recipe_command(name: str) -> Callable[..., None]:
    """The command of a recipe: an option for each setting of its configuration."""
    recipe = recipe_class(name)
    settings = options_of(recipe, panel="Method", flags={**_FLAGS, **_FLAGS_OF.get(name, {})})
    if name == "reader":
        settings |= _OF_READERS
    if name in _REFRESHED:
        settings |= _OF_REFRESHES

    @with_options(without(settings, "out"))
    def command(
        *, config: Preset = None, set_: Assignments = None, out: Out, **given: Setting
    ) -> None:
        """Train.

        Args:
            out: Folder of the run; an unfinished one is resumed.
        """
        from rag.core.log import setup_logging
        from rag.recipes import run
        from rag.scale.encoding import encoding_at

        is_first = os.environ.get("RANK", "0") == "0"
        setup_logging("INFO" if is_first else "WARNING")
        ray: Any = given.pop("ray", None)
        if name == "reader":
            questions: Any = given.pop("train", ())
            negatives: Any = given.pop("negatives", ())
            given |= _reader_sets(questions, negatives)
        given["out"] = str(out)
        checked = read_config(recipe, config, {**given, **parse_overrides(set_ or [])})
        with encoding_at(ray) as encoding:
            model = run(checked, **encoding)
        if is_first:
            index = out / "index"
            use = _USES.get(name, _USES_INDEX if index.is_dir() else _USES_ENCODER)
            say(use.format(model=model, index=index if index.is_dir() else "…", run=out))

    about = RECIPES[name][1] if name in RECIPES else inspect.getdoc(recipe) or name
    arguments = (inspect.getdoc(command) or "").partition("\n\n")[2]
    command.__doc__ = "\n\n".join((about, _RESUMED, arguments))
    return command


def _reader_sets(questions: Sequence[str], negatives: Sequence[str]) -> dict[str, Setting]:
    """The question sets of an extractive reader, each with the results of a search for it, if
    given.
    """
    if len(negatives) > len(questions):
        raise ConfigError(
            "more {negatives} than {train}",
            hint="give at most one for each, in their order",
            arguments=("negatives", "train"),
        )
    sets = [{"questions": path} for path in questions]
    for entry, path in zip(sets, negatives, strict=False):
        entry["retrieved"] = path
    return {"train": sets} if sets else {}
