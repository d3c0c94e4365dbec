"""The files of a verifier: int8 weights, or their difference from the reader that ships."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rag.core.errors import ConfigError, MismatchedArtifactError
from rag.core.files import atomic_path, atomic_write_json
from rag.runtime.fast.fast_bert import FastBert
from rag.runtime.model_files import (
    add_difference,
    position_limit,
    save_tokenizer,
)
from rag.training.precision import part
from readers.extractive.files import (
    ReaderParts,
    load_described,
    load_int8,
    load_parts,
    load_start,
    prepare_training,
    save_int8,
)
from readers.manifest import (
    READER_FILE,
    check_files,
    load_manifest,
    read_reader_file,
)
from readers.verifying.model import VerdictModel, build_encoder, new_head
from readers.verifying.settings import VerifierManifest, VerifierTrainConfig

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

SHIPPED_VERIFIER = Path(__file__).parent / "weights"
_WEIGHTS_FILE = "weights.int8.safetensors"
_KEPT = ("position_embeddings", "token_type_embeddings", "head.weight")


@dataclass(frozen=True)
class VerifierParts:
    """A loaded verifier: its encoder's fp32 weights by their names, head, tokenizer and settings."""

    config: PreTrainedConfig
    encoder: Mapping[str, Tensor]
    head: nn.Linear
    tokenizer: Any
    manifest: VerifierManifest

    def model(self, encoder: FastBert | None = None) -> VerdictModel:
        """The network in evaluation mode, with another form of its encoder if there is one."""
        network = encoder or build_encoder(self.config, self.encoder)
        model = VerdictModel(network, self.head, self.tokenizer, self.manifest.max_tokens)
        return model.eval()


def load_verifier_parts(folder: str | Path | None) -> VerifierParts:
    """Load a folder of `rag train verifier`, or the verifier that ships (None).

    Raises:
        IncompleteArtifactError: there is no verifier.
        MismatchedArtifactError: its files, or the reader's that it is stored as a difference from,
            are other ones.
    """
    folder = Path(folder or SHIPPED_VERIFIER)
    manifest = load_manifest(VerifierManifest, folder)
    check_files(manifest.checksums, folder, manifest.weights_file)
    state = load_int8(folder / manifest.weights_file)
    if manifest.base is None:
        config, tokenizer = load_described(folder)
    else:
        reader = _base(manifest, folder)
        tokenizer = reader.tokenizer
        config = reader.weights.config
        state = add_difference(reader.weights.state, state)
    head = new_head(config.hidden_size, 0)
    head.load_state_dict(part(state, "head"))
    return VerifierParts(config, part(state, "encoder"), head.eval(), tokenizer, manifest)


def _base(manifest: VerifierManifest, folder: Path) -> ReaderParts:
    reader = load_parts(None)
    actual = reader.manifest.checksums[reader.manifest.weights_file]
    if actual != manifest.base_sha256:
        raise MismatchedArtifactError(
            f"{folder} adds to a reader whose weights have sha256 {manifest.base_sha256}, the reader "
            f"that ships has {actual}",
            hint="install the version that the verifier was trained with, or train it again",
        )
    return reader


def load_model(folder: str | Path | None) -> VerdictModel:
    """The network of a verifier in fp32; see `load_verifier_parts`."""
    return load_verifier_parts(folder).model()


def start_model(config: VerifierTrainConfig) -> VerdictModel:
    """The network that training starts from: an encoder's, a reader's, or a verifier's.

    Raises:
        ArtifactError: there is none.
        ConfigError: `max_tokens` or `rank` do not fit it.
    """
    source = config.encoder
    if config.rank and source != "shipped":
        raise ConfigError(
            f"rank is {config.rank}, but the verifier starts from {source}",
            hint="set rank to 0, or start from shipped",
        )
    if source is not None and _is_verifier(Path(source)):
        model = load_model(source)
        model.max_tokens = config.max_tokens
    else:
        reader, tokenizer = load_start(source, config.seed)
        encoder: Any = reader.encoder
        head = new_head(encoder.config.hidden_size, config.seed)
        model = VerdictModel(encoder, head, tokenizer, config.max_tokens)
    prepare_training(model, config.max_tokens, config.dropout)
    return model.train()


def _is_verifier(folder: Path) -> bool:
    return (folder / READER_FILE).exists() and read_reader_file(folder).get("kind") == "verifier"


def save_verifier(
    folder: Path,
    model: VerdictModel,
    weights: Mapping[str, Tensor],
    *,
    name: str,
    rank: int = 0,
) -> None:
    """Write a verifier without calibration; what the folder held before is replaced.

    Args:
        weights: fp32 by the model's names.
        rank: see `VerifierTrainConfig`.
    """
    # A longer text than was trained on is read too.
    longest = min(512, position_limit(model.encoder.config.to_dict()))
    base_fields: dict[str, Any] = {}
    state = {key: tensor.cpu().float() for key, tensor in weights.items()}
    with atomic_path(folder, folder=True) as temporary:
        if rank:
            reader = load_parts(None)
            base_fields["base"] = "shipped"
            base_fields["base_sha256"] = reader.manifest.checksums[reader.manifest.weights_file]
            state = difference(reader.weights.state, state, rank)
            save_int8(state, temporary / _WEIGHTS_FILE, keep=["head.weight"])
        else:
            keep = [key for key in state if any(part_ in key for part_ in _KEPT)]
            save_int8(state, temporary / _WEIGHTS_FILE, keep=keep)
            config = json.loads(model.encoder.config.to_json_string(use_diff=True))
            config.pop("_name_or_path", None)
            atomic_write_json(temporary / "config.json", config)
            save_tokenizer(model.tokenizer, temporary)
        manifest = VerifierManifest(
            name=name, weights_file=_WEIGHTS_FILE, max_tokens=longest, **base_fields
        )
        manifest.save(temporary)


def difference(
    base: Mapping[str, Tensor], state: Mapping[str, Tensor], rank: int
) -> dict[str, Tensor]:
    """What `add_difference` adds to `base` to come near `state`; what did not change is left out.

    Source: Eckart and Young 1936: the first singular vectors are the best approximation of their
        rank.
    """
    stored = {}
    for name, tensor in state.items():
        if name not in base:
            stored[name] = tensor
            continue
        change = tensor - base[name]
        if not change.any():
            continue
        if change.ndim != 2 or min(change.shape) <= rank:
            stored[f"{name}.whole"] = change
            continue
        left, values, right = torch.linalg.svd(change, full_matrices=False)
        root = values[:rank].sqrt()
        stored[f"{name}.left"] = (left[:, :rank] * root).contiguous()
        stored[f"{name}.right"] = (root[:, None] * right[:rank]).contiguous()
    return stored
