"""The files of an extractive reader: int8 weights, and loading what reads and what training starts
from.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import nn

from rag.core.errors import ConfigError, MismatchedArtifactError
from rag.core.files import atomic_path, check_target, sha256_file
from rag.runtime.backbone import transformers_config
from rag.runtime.model_files import (
    embedded_word_embeddings,
    model_folder,
    position_limit,
    read_tensors,
    transformers_tokenizer,
)
from readers.extractive.model import SpanModel, SpanWeights, load_dpr, load_question_answering
from readers.extractive.settings import ReaderManifest, ReaderSettings
from readers.manifest import READER_FILE, Calibration, check_files, load_manifest

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

SHIPPED_READER = Path(__file__).parents[1] / "weights"
WORD_EMBEDDINGS = "encoder.embeddings.word_embeddings.weight"
_SUFFIX = ".scale"


def quantize(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round a (R, C) float matrix to int8 steps of max|row| / 127.

    Returns:
        (R, C) int8 and (R,) float32 scales; |matrix − int8·scale| ≤ scale / 2 everywhere.

    Example:
        >>> codes, scale = quantize(torch.tensor([[1.0, -0.5, 0.0]]))
        >>> codes.tolist()
        [[127, -64, 0]]
    """
    scale = row_scale(matrix)
    codes = (matrix.float() / scale[:, None]).round().clamp(-127, 127)
    return codes.to(torch.int8), scale


def row_scale(matrix: torch.Tensor) -> torch.Tensor:
    """The int8 step of each row of a (R, C) matrix, (R,) float32: max|row| / 127."""
    return matrix.float().abs().amax(dim=1).clamp_min(1e-12) / 127.0


def rounded(matrix: torch.Tensor) -> torch.Tensor:
    """A matrix as `load_int8` gives it after `save_int8`, float32."""
    codes, scale = quantize(matrix)
    return codes * scale[:, None]


def save_int8(state: Mapping[str, torch.Tensor], path: Path, *, keep: Collection[str] = ()) -> None:
    """Write a state dict to one safetensors file, atomically; matrices become int8 unless named in
    `keep`.
    """
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        if tensor.is_floating_point() and tensor.ndim == 2 and name not in keep:
            tensors[name], tensors[name + _SUFFIX] = quantize(tensor)
        elif tensor.is_floating_point():
            tensors[name] = tensor.float().contiguous()
    with atomic_path(path) as temporary:
        # one metadata entry only: the library writes several in random order, and bytes must be
        # reproducible
        save_file(tensors, temporary, metadata={"quantization": "int8-per-row"})
        temporary.chmod(0o644)


def load_int8(path: Path) -> dict[str, torch.Tensor]:
    """Read a file of `save_int8` back as float32 tensors.

    Raises:
        ArtifactError: the file is missing or damaged.
    """
    tensors = read_tensors(path)
    for name in [name for name in tensors if name.endswith(_SUFFIX)]:
        scale = tensors.pop(name)
        name = name.removesuffix(_SUFFIX)
        tensors[name] = tensors[name].float() * scale[:, None]
    return tensors


@dataclass(frozen=True)
class ReaderParts:
    """A loaded reader: weights, tokenizer, settings; int8 also needs `ranges` of activations."""

    weights: SpanWeights
    tokenizer: PreTrainedTokenizerBase
    manifest: ReaderManifest
    ranges: dict[str, torch.Tensor] | None = None

    @cached_property
    def model(self) -> SpanModel:
        """The network, built when it is first needed."""
        return self.weights.network()


def load_parts(name_or_path: str | Path | None) -> ReaderParts:
    """Load the shipped reader (None), a folder of `rag train reader`, or a Hugging Face checkpoint.

    Raises:
        ArtifactError: there is no loadable reader.
        MismatchedArtifactError: the weights differ from the checksum in the folder's `reader.json`.
    """
    folder = Path(name_or_path or SHIPPED_READER)
    if (folder / READER_FILE).exists() or folder == SHIPPED_READER:
        return _load_own(folder)
    source = model_folder(str(name_or_path))
    config, tokenizer = load_described(source)
    longest = position_limit(config.to_dict())
    model: Any
    if config.model_type == "dpr":
        model = load_dpr(source, config)
        settings = ReaderSettings(
            final_separator=False, max_tokens=min(350, longest), max_answer_tokens=10, select=True
        )
    else:
        model = load_question_answering(source, config)
        settings = ReaderSettings(titled=False, max_tokens=min(384, longest))
    manifest = ReaderManifest(name=str(name_or_path), weights_file="", settings=settings)
    return ReaderParts(SpanWeights(model.encoder.config, model.state_dict()), tokenizer, manifest)


def load_described(folder: Path) -> tuple[PreTrainedConfig, PreTrainedTokenizerBase]:
    """Configuration and tokenizer of a folder, which belong together.

    Raises:
        ArtifactError: there is none.
        MismatchedArtifactError: the tokenizer cannot be that of the encoder.
    """
    config = transformers_config(folder)
    tokenizer = transformers_tokenizer(folder)
    problem = "" if tokenizer.is_fast else "gives no character offsets"
    if len(tokenizer) > config.vocab_size:
        problem = f"has {len(tokenizer)} tokens, the encoder {config.vocab_size}"
    if problem:
        raise MismatchedArtifactError(
            f"{folder}: the tokenizer {problem}",
            hint="put the fast tokenizer (tokenizer.json) of the encoder beside its weights",
        )
    return config, tokenizer


def save_calibrated(source: str | Path | None, out: Path, calibration: Calibration) -> None:
    """Write a copy of a folder of `rag train reader`, or of the shipped reader, with another
    calibration.

    Raises:
        IncompleteArtifactError: `source` is no such folder.
        ConfigError: `out` holds something.
    """
    folder = Path(source or SHIPPED_READER)
    manifest = load_manifest(ReaderManifest, folder).model_copy(update={"calibration": calibration})
    check_target(out, folder=True, is_new=True)
    with atomic_path(out, folder=True) as temporary:
        shutil.copytree(folder, temporary, dirs_exist_ok=True)
        manifest.save(temporary)


def load_span_model(source: str | None) -> tuple[SpanModel, PreTrainedTokenizerBase] | None:
    """An extractive reader in fp32 and its tokenizer, to start other training from.

    None if `source` is neither "shipped" nor a folder of `rag train reader`.
    """
    folder = _reader_folder(source)
    if folder is None:
        return None
    parts = load_parts(folder)
    return parts.model, parts.tokenizer


def plain_encoder(source: str | None, out: Path) -> str | None:
    """`source`, or for a reader the folder in `out` that holds its encoder as a model of
    transformers.

    The folder's name ends with the reader's, for model cards; it is written if it does not exist.
    """
    reader = _reader_folder(source)
    if reader is None:
        return source
    rank = os.environ.get("RANK", "0")  # each process of several has its own
    name = source if source == "shipped" else Path(*reader.resolve().parts[1:][-2:])
    folder = out / "start" / f"{sha256_file(reader / READER_FILE)[:12]}-{rank}" / name
    if not folder.exists():
        parts = load_parts(reader)
        encoder: Any = parts.model.encoder
        with atomic_path(folder, folder=True) as temporary:
            encoder.save_pretrained(temporary)
            parts.tokenizer.save_pretrained(temporary)
    return str(folder.resolve())


def _reader_folder(source: str | None) -> Path | None:
    if source == "shipped":
        return SHIPPED_READER
    folder = Path(source or "")
    return folder if source and (folder / READER_FILE).exists() else None


def _load_own(folder: Path) -> ReaderParts:
    manifest = load_manifest(ReaderManifest, folder)
    needed = ["tokenizer.json", manifest.weights_file]
    if manifest.ranges_file is not None:
        needed.append(manifest.ranges_file)
    check_files(manifest.checksums, folder, *needed)
    config, tokenizer = load_described(folder)
    state = load_int8(folder / manifest.weights_file)
    if manifest.word_embeddings is not None:
        state[WORD_EMBEDDINGS] = rounded(embedded_word_embeddings())
    ranges = manifest.ranges_file and read_tensors(folder / manifest.ranges_file)
    return ReaderParts(SpanWeights(config, state), tokenizer, manifest, ranges or None)


def start_model(
    encoder: str | None,
    *,
    longest: int,
    seed: int,
    dropout: float = 0.0,
    freeze_word_embeddings: bool = True,
    passage_head: bool = False,
) -> tuple[SpanModel, PreTrainedTokenizerBase]:
    """Load an encoder or a reader with the heads that training needs, and its tokenizer.

    Args:
        encoder: Hugging Face name or folder; None is the embedded encoder.
        longest: tokens of the longest row.
        seed: random seed of new heads.
        dropout, freeze_word_embeddings: see `ReaderTrainConfig`.
        passage_head: whether a passage logit is trained.

    Raises:
        ArtifactError: nothing there can be trained.
        MismatchedArtifactError: the tokenizer is not that of the encoder, or gives no offsets.
        ConfigError: the stages do not fit the encoder.
    """
    model, tokenizer = load_start(encoder, seed)
    if passage_head:
        model.add_passage_head(seed)
    prepare_training(model, longest, dropout, freeze_word_embeddings=freeze_word_embeddings)
    return model, tokenizer


def load_start(encoder: str | None, seed: int) -> tuple[SpanModel, PreTrainedTokenizerBase]:
    """The network of an encoder or a reader, with a span head, and its tokenizer; see
    `start_model`.
    """
    loaded = load_span_model(encoder)
    if loaded is not None:
        return loaded
    folder = model_folder(encoder)
    config, tokenizer = load_described(folder)
    names = config.architectures or ()
    if any(name.endswith("ForQuestionAnswering") for name in names):
        return load_question_answering(folder, config), tokenizer
    return SpanModel.from_encoder(folder, seed), tokenizer


def prepare_training(
    model: nn.Module, longest: int, dropout: float, *, freeze_word_embeddings: bool = True
) -> None:
    """Set dropout and frozen weights of a network around an `encoder`; see `start_model`.

    Raises:
        ConfigError: the encoder reads fewer tokens than the longest row has.
    """
    encoder: Any = model.encoder
    positions = position_limit(encoder.config.to_dict())
    if longest > positions:
        raise ConfigError(
            f"rows have {longest} tokens, the encoder reads at most {positions}",
            hint="lower full_tokens and max_tokens (joint_tokens of `rag train mlm` and `realm`)",
        )
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
    if freeze_word_embeddings:
        encoder.get_input_embeddings().weight.requires_grad_(False)
