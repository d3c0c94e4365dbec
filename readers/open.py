"""Open a reader of any kind by its name.

A new kind is an entry in `KINDS`. The kind of a source is recognised by its scheme (`openai:…`), by the
`kind` in a folder's `reader.json`, or by the architecture in its `config.json`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, cast

from rag.config import parse_overrides
from rag.core.errors import ArtifactError, ConfigError
from readers.manifest import READER_FILE, read_reader_file
from readers.protocols import Reader


@dataclass(frozen=True, slots=True)
class ReaderKind:
    """One kind of reader.

    Attributes:
        opener: "module:callable" or "module:Class.method"; called with the source and the keyword arguments
            of `open_reader`, and imported only then.
        describe: what people may give, for messages.
        schemes: beginnings of a source that name the kind.
        architectures: ends of a `config.json`'s architecture that name it.
    """

    opener: str
    describe: str
    schemes: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()


KINDS: dict[str, ReaderKind] = {
    "extractive": ReaderKind(
        "readers.extractive.reader:ExtractiveReader.load",
        "a folder of `rag train reader`, a question answering or a DPR reader checkpoint",
        architectures=("ForQuestionAnswering", "DPRReader"),
    ),
    "endpoint": ReaderKind(
        "readers.llm.endpoint:open_endpoint",
        "openai:BASE_URL#MODEL, a model behind an OpenAI-compatible address",
        schemes=("openai:",),
    ),
    "llm": ReaderKind(
        "readers.llm.local:open_local",
        "a causal language model, perhaps with settings: DIR#quote=true,passages=5",
        architectures=("ForCausalLM", "LMHeadModel"),
    ),
    "generative": ReaderKind(
        "readers.generative.reader:GenerativeReader.load",
        "a folder of `rag train generator`, or a BART- or T5-like sequence-to-sequence checkpoint",
        architectures=("ForConditionalGeneration", "EncoderDecoderModel"),
    ),
}


_SCHEMES = tuple(scheme for kind in KINDS.values() for scheme in kind.schemes)


def reader_kind(source: str | Path | None) -> str:
    """Which of `KINDS` a source is; None is the reader that ships with the package.

    Raises:
        ArtifactError: there is no such source, or it is no reader; the message states what was found.
    """
    if source is None:
        return "extractive"
    for name, kind in KINDS.items():
        if kind.schemes and str(source).startswith(kind.schemes):
            return name
    source, _ = _split(source)
    folder = Path(source)
    if (folder / READER_FILE).exists():
        return _named(folder)
    names = _architectures(source)
    for name, kind in KINDS.items():
        if any(architecture.endswith(kind.architectures) for architecture in names if kind.architectures):
            return name
    raise ArtifactError(
        f"{source}: no reader: found {', '.join(names) or 'a model without a named architecture'}, expected "
        + "; or ".join(kind.describe for kind in KINDS.values()),
        hint="a bare encoder becomes a reader by `rag train reader --from …`",
    )


def open_reader(
    source: str | Path | None = None, *, precision: str = "auto", device: str = "auto", **settings: Any
) -> Reader:
    """Open a reader of any kind.

    Args:
        source: None for the reader that ships with the package; a folder, a Hugging Face name, or a scheme
            of `KINDS`. Settings may follow a language model's folder: `DIR#quote=true,passages=5`.
        precision: "auto", "fp32", "bf16" or "int8".
        device: "auto", "cpu" or "cuda".

    Raises:
        ArtifactError: there is no reader, or its files are damaged.
        ConfigError: unknown settings, or values that do not fit.
    """
    kind, (place, options) = reader_kind(source), _split(source)
    if options and kind != "llm":
        raise ConfigError(
            f"{source}: settings after # are for language models, found a reader of the kind {kind}",
            hint="leave them out; such a reader's settings stand in its reader.json",
        )
    if options:
        source, settings = place, {**parse_overrides(options.split(",")), **settings}
    load: Callable[..., Reader] = resolve_name(KINDS[kind].opener)
    return load(source, precision=precision, device=device, **settings)


def _split(source: str | Path | None) -> tuple[str | Path, str]:
    """A folder or name, and the settings written after it."""
    place, mark, options = str(source or "").partition("#")
    is_plain = not mark or Path(str(source)).exists() or str(source).startswith(_SCHEMES)
    return (source or "", "") if is_plain else (place, options)


def _named(folder: Path) -> str:
    name = read_reader_file(folder).get("kind", "extractive")
    if name not in KINDS:
        raise ArtifactError(
            f"{folder}: {READER_FILE} names the kind {name!r}, expected one of {', '.join(KINDS)}",
            hint="the folder belongs to another program or to a newer version of this one",
        )
    return cast("str", name)


def _architectures(source: str | Path) -> list[str]:
    """The architectures of a folder's or a Hub name's configuration."""
    from transformers import AutoConfig

    from rag.runtime.backbone import loading
    from rag.runtime.model_files import model_folder

    if Path(source).is_dir() and not (Path(source) / "config.json").exists():
        raise ArtifactError(
            f"{source}: no reader there: it holds neither {READER_FILE} nor config.json",
            hint="give a folder of `rag train …`, or of transformers' `save_pretrained`",
        )
    hint = "give " + "; or ".join(kind.describe for kind in KINDS.values())
    folder = model_folder(source)
    with loading(f"{source}: no reader there", hint=hint):
        config = AutoConfig.from_pretrained(folder)
    return [str(name) for name in config.architectures or ()]
