"""`rag train`: a subcommand per recipe, whose options are the settings of the recipe's configuration."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from rag.cli.lazy import command_with, group_of
from rag.cli.options import DATA, TRAINING, Count, Options, bounds_of, explained, option, options_from
from rag.config import Config, parse_overrides, parse_scalar
from rag.core.errors import ConfigError

_RETRIEVERS, _READERS, _TOGETHER = "Retrievers", "Readers", "Retriever and reader together"
_RECIPES = {  # name → panel of the help, summary
    "dpr": (_RETRIEVERS, "A dense retriever with in-batch and hard negatives (DPR)."),
    "ance": (_RETRIEVERS, "A dense retriever with negatives that it retrieves itself (ANCE)."),
    "mdr": (_RETRIEVERS, "A multi-hop retriever (MDR); search with --retriever multihop."),
    "ict": (_RETRIEVERS, "A dense retriever from passages alone (ICT)."),
    "distill": (_RETRIEVERS, "A dense retriever towards a reader's scores (DKRR and its kin)."),
    "static": (_RETRIEVERS, "A static encoder, a vector per token, from any encoder."),
    "colbert": (_RETRIEVERS, "A retriever with a vector per token (ColBERT)."),
    "reranker": (_RETRIEVERS, "A cross-encoder that re-ranks what a search finds."),
    "reader": (_READERS, "An extractive reader, from questions with answers."),
    "generator": (_READERS, "A reader that generates its answers (Fusion-in-Decoder)."),
    "orqa": (_TOGETHER, "Question encoder and span reader from answers alone (ORQA)."),
    "mlm": (_TOGETHER, "An encoder that predicts masked names and dates, REALM's first reader."),
    "realm": (_TOGETHER, "A retriever, by predicting masked names and dates (REALM)."),
    "rag": (_TOGETHER, "Question encoder and generator, by the likelihood of answers (RAG)."),
    "emdr2": (_TOGETHER, "Retriever and Fusion-in-Decoder reader (EMDR², PDist)."),
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
_USES = {  # what a finished model is called, and the command that uses it; {1}: the run's index
    "static": "encoder → {0}\nuse it: rag index … --encoder {0}",
    "colbert": "encoder → {0}\nuse it: rag index … --encoder {0} --index-type plaid",
    "reranker": "cross-encoder → {0}\nuse it: rag ask … --rerank {0}",
    "mlm": "masked language model → {0}\nuse it: rag train realm … --reader {0}",
    **dict.fromkeys(
        ("reader", "generator", "orqa", "rag", "emdr2"),
        "reader → {0}\nuse it: rag ask … --index {1} --reader {0}",
    ),
}
_ENCODER = "encoder → {0}\nuse it: rag index … --encoder {0}"
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
        negatives: Results of `rag retrieve` for the questions of the --train in the same place: hard
            negatives, and positives where there are no gold passages.
        out: Folder of the run; an unfinished one is resumed.
    """


def recipe_command(name: str) -> Any:
    """The command of a recipe: an option for each setting of its configuration."""
    options, common = Options(), options_from(_common)
    if "_RAG_COMPLETE" not in os.environ:  # else what the settings import is not needed
        from rag.recipes import recipe_class

        own = _setting_options(name, recipe_class(name))
        options.update(
            sorted(own.items(), key=lambda item: item[1][0].__metadata__[0].rich_help_panel != DATA)
        )
    left_out: tuple[str, ...] = () if name == "reader" else ("train", "negatives")
    left_out += () if name in _REFRESHED else ("ray",)
    options.update({each: it for each, it in common.items() if each not in left_out})
    flags = {name: _flag(name, annotation) for name, (annotation, _) in options.items()}

    def run(config: str | None, set_: list[str] | None, ray: str | None = None, **given: Any) -> None:
        if name == "reader":
            given["train"] = _reader_sets(given["train"], given.pop("negatives"))
        settings = {key: value for key, value in given.items() if value not in (None, [])}
        train(name, config, settings | parse_overrides(set_ or []), flags, ray)

    help = f"{_RECIPES.get(name, (None, name))[1]}\n\n{_RESUMED}"
    return command_with(name, options, run, help=help)


app = group_of(
    "Train models, one subcommand per recipe; one of your own: rag train FILE.py:Class …",
    _RECIPES, recipe_command, takes_others=True, add_completion=False,
)  # fmt: skip


def train(
    name: str,
    source: str | None,
    settings: Mapping[str, Any],
    flags: Mapping[str, str],
    ray: str | None,
) -> None:
    """Train: settings win over those of `source`.

    Args:
        flags: setting → option, for messages.
    """
    from rag.core.log import setup_logging
    from rag.recipes import read_config, recipe_class, run
    from rag.scale.encoding import encoding_at

    is_first = os.environ.get("RANK", "0") == "0"
    setup_logging("INFO" if is_first else "WARNING")
    config = read_config(recipe_class(name), source, settings, flags)
    with encoding_at(ray) as encoding:
        finished = run(config, **encoding)
    if is_first:
        index = config.out / "index"
        typer.echo(_USES.get(name, _ENCODER).format(finished, index if index.is_dir() else "…"))


def _setting_options(recipe: str, kind: type[Config]) -> Options:
    """An option for each setting."""
    options = Options()
    helps = explained(kind)
    flags = {**_FLAGS, **_FLAGS_OF.get(recipe, {})}
    for name, field in kind.model_fields.items():
        if name in ("out", "threads"):
            continue
        annotation, more = _option_type(field.annotation)
        usual = None if field.is_required() else field.get_default(call_default_factory=True)
        flag = f"--{name.replace('_', '-')}"
        if annotation == bool | None:
            flag = f"{flag}/--no{flag[1:]}"
        spellings = flags.get(name, (flag,))
        is_stated = isinstance(usual, int | float) or (isinstance(usual, str) and usual != "")
        help = f"{helps[name]} Default: {usual}." if is_stated else helps[name]
        more |= bounds_of(field.metadata)
        options[name] = Annotated[annotation, option(*spellings, help=help, **more)], None
    return options


def _option_type(annotation: Any) -> tuple[Any, dict[str, Any]]:
    """The type of a setting's option, which may always be left out, and how it is shown and read.

    Numbers, choices and files are typer's; all else is text that is read as YAML.
    """
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    inner, *others = [kind for kind in kinds if kind is not NoneType]
    if get_origin(inner) is tuple and get_args(inner)[0] is Path and not others:
        return list[str] | None, {"panel": DATA}
    if inner is Path:
        return str | None, {"panel": DATA}
    if not others and (inner in (int, float, str, bool) or get_origin(inner) is Literal):
        return inner | None, {"panel": TRAINING}
    return str | None, {"panel": TRAINING, "parser": parse_scalar, "metavar": "YAML"}


def _reader_sets(questions: Sequence[str] | None, negatives: Sequence[str] | None) -> list[dict[str, str]]:
    """The question sets of an extractive reader, each with the results of a search for it, if given."""
    sets = [{"questions": path} for path in questions or ()]
    if len(negatives or ()) > len(sets):
        raise ConfigError(
            f"{len(negatives or ())} --negatives for {len(sets)} --train",
            hint="give at most one for each --train, in their order",
        )
    for each, path in zip(sets, negatives or (), strict=False):
        each["retrieved"] = path
    return sets


def _flag(name: str, annotation: Any) -> str:
    """The first spelling of an option on the command line."""
    declared = annotation.__metadata__[0].default  # where typer keeps it
    return declared.partition("/")[0] if isinstance(declared, str) else f"--{name.replace('_', '-')}"
