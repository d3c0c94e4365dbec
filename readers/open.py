"""Open a reader of any kind by its name.

The kind of a source is recognised by its scheme (`openai:…`), by the `kind` in a folder's
`reader.json`, or by the architecture in its `config.json`.
"""

from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from rag.config import load_config
from rag.core.errors import ArtifactError, ConfigError
from rag.runtime.model_files import model_folder, read_config, refuse_adapter
from readers.llm.specs import LanguageModel, ServedModel, parse_reader
from readers.manifest import READER_FILE, read_reader_file
from readers.protocols import Reader

ReaderName = str | Path | LanguageModel | None

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


def reader_kind(source: ReaderName) -> str:
    """Which kind a source is; None is the reader that ships with the package.

    Raises:
        ArtifactError: there is no such source, or it is no reader; the message states what was
            found.
    """
    if source is None:
        return "extractive"
    spec = parse_reader(source)
    if isinstance(spec, ServedModel):
        return "endpoint"
    folder = Path(spec.model)
    if (folder / READER_FILE).exists():
        name = str(read_reader_file(folder).get("kind", "extractive"))
        if name not in _OPENERS:
            raise ArtifactError(
                f"{folder}: {READER_FILE} names the kind {name!r}, expected one of {', '.join(_OPENERS)}",
                hint="the folder belongs to another program or to a newer version of this one",
            )
        return name
    folder = model_folder(spec.model)
    refuse_adapter(folder)
    if not (folder / "config.json").exists():
        raise ArtifactError(
            f"{spec.model}: no reader there: it holds neither {READER_FILE} nor config.json",
            hint=f"give {_EXPECTED}",
        )
    names = read_config(folder).get("architectures") or ["a model without a named architecture"]
    for end, kind in _ARCHITECTURES.items():
        if any(str(name).endswith(end) for name in names):
            return kind
    raise ArtifactError(
        f"{spec.model}: no reader: found {', '.join(names)}, expected {_EXPECTED}",
        hint="a bare encoder becomes a reader by `rag train reader --from …`",
    )


def open_reader(
    source: ReaderName = None,
    *,
    precision: str = "auto",
    device: str = "auto",
    **settings: Any,
) -> Reader:
    """Open a reader of any kind.

    Args:
        source: None for the reader that ships with the package; a folder, a Hugging Face name, or
            `openai:BASE_URL#MODEL`. Settings may follow a language model's folder:
            `DIR#passages=5`. An object names a language model, too.
        precision: "auto", "fp32", "bf16" or "int8".
        device: "auto", "cpu" or "cuda".

    Raises:
        ArtifactError: there is no reader, or its files are damaged.
        ConfigError: unknown settings, or values that do not fit.
    """
    if not isinstance(source, ReaderName):
        raise ConfigError(
            f"{type(source).__name__} is no reader: it is no `readers.protocols.Reader`",
            hint="see `rag docs extending`",
        )
    spec = None if source is None else parse_reader(source)
    kind = reader_kind(spec)
    name: object = spec and spec.model
    if kind in ("llm", "endpoint"):
        assert spec is not None
        name = load_config(type(spec), overrides={**dict(spec), **settings})
        settings = {}
    # Without settings it names a reader of any kind.
    elif spec is not None and spec.changed_settings():
        raise ConfigError(
            f"{source}: settings after # are for language models, found a reader of the kind {kind}",
            hint="leave them out; such a reader's settings stand in its reader.json",
        )
    load: Callable[..., Reader] = resolve_name(_OPENERS[kind])
    return load(name, precision=precision, device=device, **settings)
