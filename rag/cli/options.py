"""Options that several commands take, and commands whose options are known only when they are made."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import BaseModel

from retrievers.open import kind_names

REQUIRED = inspect.Parameter.empty

RetrieverSpec = Annotated[
    str, typer.Option(help=f"{kind_names()}; options follow a colon, as in hybrid:depth=500.")
]
FusionSpec = Annotated[
    str | None, typer.Option(help='Of hybrid retrieval: "std:DENSE,BM25", "minmax:…", "raw:…" or "rrf60:…".')
]
RerankSpec = Annotated[
    str | None,
    typer.Option(help="ColBERT or cross-encoder folder that re-ranks: FOLDER,depth=100,fusion=std:1,0.5."),
]
EncoderSpec = Annotated[str | None, typer.Option(help="Folder of the index's encoder, if it moved.")]
ReaderSpec = Annotated[
    str | None, typer.Option(help="Folder or hub name of a reader; default: the shipped one.")
]
EffortSpec = Annotated[
    str | None, typer.Option(help="How much is read: full, or another of the reader's own efforts.")
]
Precision = Annotated[str, typer.Option(help="auto, fp32 or bf16.")]
IndexDir = Annotated[str, typer.Option("--index", "-i", help="Directory written by `rag index`.")]
QuestionFile = Annotated[
    str, typer.Option("--questions", "-q", help="JSONL, CSV, SQuAD, NQ, DPR, HotpotQA … (.gz too).")
]
QuestionFormat = Annotated[str, typer.Option(help="Format of --questions; auto looks at the file.")]
CorpusFormat = Annotated[str, typer.Option(help="Corpus format; auto looks at names and first bytes.")]
IdField = Annotated[str | None, typer.Option(help="Field or column of the document id.")]
TitleField = Annotated[str | None, typer.Option(help="Field or column of the title.")]
TextField = Annotated[str | None, typer.Option(help="Field or column of the text.")]
Encoding = Annotated[str, typer.Option(help="Of text files, such as cp1252 (Excel on Windows).")]
PassageIds = Annotated[str, typer.Option(help="document (doc-0, doc-1, …) or integer (1, 2, …).")]
Words = Annotated[int, typer.Option(help="Words a passage, for --split words100.")]
Wrap = Annotated[bool, typer.Option(help="Fill the last passage with the document's first words.")]
MaxBadShare = Annotated[float, typer.Option(help="Highest tolerated share of bad records.")]

Options = Mapping[str, tuple[Any, Any]]  # name → (annotation, default)
OPENING: Options = {  # what `Pipeline.open` is told
    "retriever": (RetrieverSpec, "auto"),
    "fusion": (FusionSpec, None),
    "rerank": (RerankSpec, None),
    "encoder": (EncoderSpec, None),
    "reader": (ReaderSpec, None),
    "effort": (EffortSpec, None),
    "precision": (Precision, "auto"),
}


def adds_options(into: str, options: Options) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command further options, which it gets as one mapping in its parameter `into`."""

    def make(function: Callable[..., None]) -> Callable[..., None]:
        own = parameters_of(function)

        def run(**given: Any) -> None:
            named = {name: given.pop(name) for name in own if name != into}
            function(**named, **{into: given})

        shown: dict[str, tuple[Any, Any]] = {}
        for name, option in own.items():
            shown.update(options if name == into else {name: option})
        return command_with(shown, run, like=function, help=inspect.getdoc(function) or "")

    return make


def options_of(settings: type[BaseModel], *names: str) -> dict[str, tuple[Any, Any]]:
    """Fields of a configuration as options, explained by its docstring or that of the class which it extends.

    Values are checked by the class.
    """
    told: dict[str, str] = {}
    for base in reversed(settings.__mro__):
        told |= documented(base)
    options = {}
    for name in names:
        field, help = settings.model_fields[name], told.get(name, "")
        kind: Any = field.annotation
        if get_origin(kind) is Literal:
            values = get_args(kind)
            help, kind = f"{help} One of: {', '.join(map(str, values))}.", type(values[0])
        options[name] = (Annotated[kind, typer.Option(help=help)], field.default)
    return options


def documented(thing: Any) -> dict[str, str]:
    """What the docstring says of each argument or attribute, as sentences."""
    items = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", inspect.getdoc(thing) or "", re.MULTILINE)
    return {name: text[:1].upper() + re.sub(r"\s+", " ", text[1:]) for name, text in items}


def command_with(
    options: Options, run: Callable[..., None], *, like: Callable[..., Any], help: str
) -> Callable[..., None]:
    """`run` as a command with these options, named like `like`."""
    usual = {name: default for name, (_, default) in options.items() if default is not REQUIRED}

    def command(**given: Any) -> None:
        run(**{**usual, **given})

    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
            for name, (kind, default) in options.items()
        ]
    )
    command.__name__, command.__doc__, command.__annotations__ = like.__name__, help, {}
    return command


def parameters_of(function: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """The parameters of a function as options."""
    found = inspect.signature(function, eval_str=True).parameters
    return {name: (parameter.annotation, parameter.default) for name, parameter in found.items()}
