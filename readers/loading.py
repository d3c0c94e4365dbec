"""Find out what a reader folder holds, and load it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer

from rag.core.errors import ArtifactError, MismatchedArtifactError
from rag.core.files import sha256_file
from readers.model import LogitsModel, load_dpr, load_question_answering, longest_row, span_model_from_state
from readers.quantized import load_int8
from readers.settings import READER_FILE, Calibration, ReaderSettings, read_manifest

__all__ = ["SHIPPED_READER", "ReaderParts", "load_parts"]

SHIPPED_READER = Path(__file__).parent / "weights"


@dataclass(frozen=True, slots=True)
class ReaderParts:
    """A loaded network with what is needed to run it."""

    model: LogitsModel
    tokenizer: Any
    settings: ReaderSettings
    calibration: Calibration
    name: str


def load_parts(name_or_path: str | Path | None) -> ReaderParts:
    """Load the shipped reader (None), a folder of `rag train reader`, or a Hugging Face checkpoint.

    Raises:
        ArtifactError: if nothing loadable is there.
        MismatchedArtifactError: if the weights are not those that the folder's `reader.json` names.
    """
    if name_or_path is None:
        name_or_path = SHIPPED_READER
    folder = Path(name_or_path)
    if (folder / READER_FILE).exists():
        return _load_own(folder)
    if folder == SHIPPED_READER:
        raise ArtifactError(f"{folder} has no {READER_FILE}: this installation ships no reader weights")
    try:
        config = AutoConfig.from_pretrained(name_or_path)
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, use_fast=True)
    except (OSError, ValueError, KeyError) as error:
        raise ArtifactError(
            f"{name_or_path}: no reader there ({error})",
            hint="give a folder of `rag train reader`, or a question answering or DPR reader checkpoint",
        ) from error
    longest = longest_row(config)
    if config.model_type == "dpr":
        settings = ReaderSettings(
            final_separator=False, max_tokens=min(350, longest), max_answer_tokens=10, words="extend"
        )
        return ReaderParts(load_dpr(name_or_path), tokenizer, settings, Calibration(), str(name_or_path))
    settings = ReaderSettings(titled=False, max_tokens=min(384, longest))
    model = load_question_answering(name_or_path)
    return ReaderParts(model, tokenizer, settings, Calibration(), str(name_or_path))


def _load_own(folder: Path) -> ReaderParts:
    manifest = read_manifest(folder)
    weights = folder / manifest.weights_file
    if not weights.exists():
        raise ArtifactError(f"{folder}: {manifest.weights_file} is missing", hint="copy the whole folder")
    found = sha256_file(weights)
    if found != manifest.weights_sha256:
        raise MismatchedArtifactError(
            f"{weights} has sha256 {found}, {READER_FILE} names {manifest.weights_sha256}",
            hint="the file is damaged or belongs to another reader: copy the folder again",
        )
    config = AutoConfig.from_pretrained(folder)
    model = span_model_from_state(config, load_int8(weights))
    tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True)
    return ReaderParts(model, tokenizer, manifest.settings, manifest.calibration, manifest.name)
