"""Open a reader of any kind by its name.

The kind of a source is recognised by its scheme (`openai:…`), by the `kind` in a folder's
`reader.json`, or by the architecture in its `config.json`.
"""

from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from rag.config import parse_overrides
from rag.core.errors import ArtifactError, ConfigError
from rag.runtime.model_files import model_folder, read_config
from rag.runtime.model_server import SCHEME
from readers.manifest import READER_FILE, read_reader_file
from readers.protocols import Reader

# imported only when they are called, with the source and the arguments of `open_reader`
_OPENERS = {
    "extractive": "readers.extractive.reader:ExtractiveReader.load",
    "endpoint": "readers.llm.endpoint:open_endpoint",
    "llm": "readers.llm.local:open_local",
    "generative": "readers.generative.reader:GenerativeReader.load",
    "tuned": "readers.llm.tuned:open_tuned",
}
_ARCHITECTURES = {  # the end of a checkpoint's architecture → the kind that reads with it
    "ForQuestionAnswering": "extractive",
    "DPRReader": "extractive",
    "FiDT5": "generative",
    "RagTokenForGeneration": "generative",
    "RagSequenceForGeneration": "generative",
    "ForCausalLM": "llm",
    "LMHeadModel": "llm",
    "ForConditionalGeneration": "generative",
}
_EXPECTED = (
    "a folder of `rag train reader` or `rag train generator`; a checkpoint for question answering, DPR's "
    "reader, a BART- or T5-like or a causal language model; or openai:BASE_URL#MODEL"
)


def reader_kind(source: str | Path | None) -> str:
    """Which kind a source is; None is the reader that ships with the package.

    Raises:
        ArtifactError: there is no such source, or it is no reader; the message states what was
            found.
    """
    if source is None:
        return "extractive"
    if str(source).startswith(SCHEME):
        return "endpoint"
    source, _ = _split(source)
    folder = Path(source)
    if (folder / READER_FILE).exists():
        name = str(read_reader_file(folder).get("kind", "extractive"))
        if name not in _OPENERS:
            raise ArtifactError(
                f"{folder}: {READER_FILE} names the kind {name!r}, expected one of {', '.join(_OPENERS)}",
                hint="the folder belongs to another program or to a newer version of this one",
            )
        return name
    folder = model_folder(source)
    if not (folder / "config.json").exists():
        raise ArtifactError(
            f"{source}: no reader there: it holds neither {READER_FILE} nor config.json",
            hint=f"give {_EXPECTED}",
        )
    names = read_config(folder).get("architectures") or ["a model without a named architecture"]
    for end, kind in _ARCHITECTURES.items():
        if any(str(name).endswith(end) for name in names):
            return kind
    raise ArtifactError(
        f"{source}: no reader: found {', '.join(names)}, expected {_EXPECTED}",
        hint="a bare encoder becomes a reader by `rag train reader --from …`",
    )


def open_reader(
    source: str | Path | None = None,
    *,
    precision: str = "auto",
    device: str = "auto",
    **settings: Any,
) -> Reader:
    """Open a reader of any kind.

    Args:
        source: None for the reader that ships with the package; a folder, a Hugging Face name, or
            `openai:BASE_URL#MODEL`. Settings may follow a language model's folder:
            `DIR#passages=5`.
        precision: "auto", "fp32", "bf16" or "int8".
        device: "auto", "cpu" or "cuda".

    Raises:
        ArtifactError: there is no reader, or its files are damaged.
        ConfigError: unknown settings, or values that do not fit.
    """
    kind = reader_kind(source)
    folder, options = _split(source)
    if options and kind != "llm":
        raise ConfigError(
            f"{source}: settings after # are for language models, found a reader of the kind {kind}",
            hint="leave them out; such a reader's settings stand in its reader.json",
        )
    if options:
        source = folder
        settings = {**parse_overrides(options.split(",")), **settings}
    load: Callable[..., Reader] = resolve_name(_OPENERS[kind])
    return load(source, precision=precision, device=device, **settings)


def _split(source: str | Path | None) -> tuple[str | Path, str]:
    """A folder or name, and the settings written after it."""
    folder, mark, options = str(source or "").partition("#")
    is_plain = not mark or Path(str(source)).exists() or folder.startswith(SCHEME)
    return (source or "", "") if is_plain else (folder, options)
