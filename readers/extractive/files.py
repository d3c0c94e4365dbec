"""The files of an extractive reader, and loading them."""

import os
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer

from rag.core.errors import ArtifactError, ConfigError, MismatchedArtifactError
from rag.core.files import atomic_path, check_target, replaced_folder, sha256_file
from rag.runtime.backbone import loading
from rag.runtime.model_files import embedded_word_embeddings, position_limit, read_tensors
from readers.extractive.model import LogitsModel, SpanModel, SpanWeights, load_dpr, load_question_answering
from readers.extractive.quantized import load_int8, rounded
from readers.extractive.settings import ReaderManifest, ReaderSettings
from readers.manifest import READER_FILE, Calibration, check_files, load_manifest

SHIPPED_READER = Path(__file__).parents[1] / "weights"
WORD_EMBEDDINGS = "encoder.embeddings.word_embeddings.weight"


@dataclass(frozen=True)
class ReaderParts:
    """A loaded reader: network or weights, tokenizer, settings; int8 also needs `ranges` of activations."""

    loaded: LogitsModel | SpanWeights
    tokenizer: Any
    settings: ReaderSettings
    calibration: Calibration
    name: str
    ranges: dict[str, torch.Tensor] | None = None

    @cached_property
    def model(self) -> LogitsModel:
        """The network.

        Raises:
            ArtifactError: the weights do not fit the configuration.
        """
        return self.loaded.network() if isinstance(self.loaded, SpanWeights) else self.loaded


def load_parts(name_or_path: str | Path | None) -> ReaderParts:
    """Load the shipped reader (None), a folder of `rag train reader`, or a Hugging Face checkpoint.

    Raises:
        ArtifactError: there is no loadable reader.
        MismatchedArtifactError: the weights differ from the checksum in the folder's `reader.json`.
    """
    if name_or_path is None:
        name_or_path = SHIPPED_READER
    folder = Path(name_or_path)
    if (folder / READER_FILE).exists():
        return _load_own(folder)
    if folder == SHIPPED_READER:
        raise ArtifactError(f"{folder} has no {READER_FILE}: this installation ships no reader weights")
    hint = "give a folder of `rag train reader`, or a question answering or DPR reader checkpoint"
    with loading(f"{name_or_path}: no reader there", hint=hint):
        config = AutoConfig.from_pretrained(name_or_path)
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, use_fast=True)
    check_tokenizer(name_or_path, tokenizer, config)
    longest = position_limit(config.to_dict())
    if config.model_type == "dpr":
        model: LogitsModel = load_dpr(name_or_path)
        settings = ReaderSettings(
            final_separator=False,
            max_tokens=min(350, longest),
            max_answer_tokens=10,
            words="extend",
            select=True,
        )
    else:
        model = load_question_answering(name_or_path, config)
        settings = ReaderSettings(titled=False, max_tokens=min(384, longest))
    return ReaderParts(model, tokenizer, settings, Calibration(), str(name_or_path))


def check_calibrated(source: str | Path | None, out: Path) -> ReaderManifest:
    """Check the arguments of `save_calibrated` before the long fit; returns what it would copy.

    Raises:
        IncompleteArtifactError: `source` is no folder of `rag train reader`.
        ConfigError: `out` holds something other than this reader.
    """
    manifest = load_manifest(ReaderManifest, Path(source or SHIPPED_READER))
    check_target(out, folder=True)
    if out.exists() and any(out.iterdir()):
        is_reader = (out / READER_FILE).exists()
        if not is_reader or load_manifest(ReaderManifest, out).weights_sha256 != manifest.weights_sha256:
            found = "another reader" if is_reader else "other files"
            raise ConfigError(f"{out} holds {found}", hint="name a folder that does not exist as --out")
    return manifest


def save_calibrated(source: str | Path | None, out: Path, calibration: Calibration) -> None:
    """Write a copy of a reader with another calibration; an earlier copy in `out` is replaced.

    Args:
        source: a folder of `rag train reader`, or None for the shipped reader.

    Raises:
        IncompleteArtifactError, ConfigError: see `check_calibrated`.
    """
    folder = Path(source or SHIPPED_READER)
    manifest = check_calibrated(source, out).model_copy(update={"calibration": calibration})
    with replaced_folder(out) as temporary:
        shutil.copytree(folder, temporary, dirs_exist_ok=True)
        manifest.save(temporary)


def load_span_model(source: str | None) -> tuple[SpanModel, Any] | None:
    """An extractive reader in fp32 and its tokenizer, to start other training from; None if `source` is no
    reader.

    Args:
        source: "shipped", or a folder of `rag train reader`; anything else is not a reader.

    Raises:
        ArtifactError: see `load_parts`; or the reader has no separate encoder.
    """
    if (folder := _reader_folder(source)) is None:
        return None
    parts = load_parts(folder)
    if not isinstance(parts.model, SpanModel):
        raise ArtifactError(f"{folder}: {type(parts.model).__name__} has no encoder to start from")
    return parts.model, parts.tokenizer


def plain_encoder(source: str | None, out: Path) -> str | None:
    """`source`, or for a reader the folder in `out` that holds its encoder as a model of transformers.

    The folder's name ends with the reader's, for model cards; it is written if it does not exist.

    Raises:
        ArtifactError: see `load_span_model`.
    """
    reader = _reader_folder(source)
    if reader is None or (loaded := load_span_model(source)) is None:
        return source
    rank = os.environ.get("RANK", "0")  # each process of several has its own
    name = source if source == "shipped" else Path(*reader.resolve().parts[1:][-2:])
    folder = out / "start" / f"{sha256_file(reader / READER_FILE)[:12]}-{rank}" / name
    if not folder.exists():
        model, tokenizer = loaded
        encoder: Any = model.encoder
        with atomic_path(folder) as temporary:
            encoder.save_pretrained(temporary)
            tokenizer.save_pretrained(temporary)
    return str(folder.resolve())


def _reader_folder(source: str | None) -> Path | None:
    folder = SHIPPED_READER if source == "shipped" else Path(source or "")
    return folder if source and (folder == SHIPPED_READER or (folder / READER_FILE).exists()) else None


def _load_own(folder: Path) -> ReaderParts:
    manifest = load_manifest(ReaderManifest, folder)
    checksums = {manifest.weights_file: manifest.weights_sha256}
    if manifest.ranges_file is not None and manifest.ranges_sha256 is not None:
        checksums[manifest.ranges_file] = manifest.ranges_sha256
    manifest = manifest.model_copy(update={"checksums": {**checksums, **manifest.checksums}})
    check_files(manifest, folder)
    ranges = None if manifest.ranges_file is None else read_tensors(folder / manifest.ranges_file)
    hint = "copy the whole folder again"
    with loading(f"{folder}: configuration or tokenizer cannot be read", hint=hint):
        config = AutoConfig.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True)
    state = {
        k: v for k, v in load_int8(folder / manifest.weights_file).items() if not k.startswith("fact_head")
    }  # of older readers
    if manifest.word_embeddings is not None:
        state[WORD_EMBEDDINGS] = rounded(embedded_word_embeddings())
    loaded = SpanWeights(config, state, manifest.settings.skim_layer)
    check_tokenizer(folder, tokenizer, config)
    return ReaderParts(loaded, tokenizer, manifest.settings, manifest.calibration, manifest.name, ranges)


def check_tokenizer(name: str | Path, tokenizer: Any, config: Any) -> None:
    """Refuse a tokenizer that cannot belong to the encoder.

    Raises:
        MismatchedArtifactError: it has more tokens than the encoder's vocabulary, or lacks [CLS], [SEP] or
            [PAD].
    """
    if len(tokenizer) > config.vocab_size:
        raise MismatchedArtifactError(
            f"{name}: the tokenizer has {len(tokenizer)} tokens, the encoder {config.vocab_size}",
            hint="put the tokenizer that the encoder was trained with beside it",
        )
    missing = [kind for kind in ("cls", "sep", "pad") if getattr(tokenizer, f"{kind}_token_id") is None]
    if missing:
        raise MismatchedArtifactError(
            f"{name}: the tokenizer has no {', '.join(missing)} token, rows are [CLS] question [SEP] …",
            hint="use a BERT-like encoder",
        )
