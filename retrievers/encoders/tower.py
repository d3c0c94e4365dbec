"""One encoder tower, from token ids to the vector or vectors of each text, for training and
inference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rag.core.arrays import Int32
from rag.core.errors import ConfigError, MismatchedArtifactError
from rag.core.optional import require
from rag.runtime.backbone import load_backbone, load_config, pad, run_backbone, run_by_length
from rag.runtime.fast.fast_bert import FastBert
from rag.runtime.model_files import backbone_state
from retrievers.encoders.head import Head, Linear, new_layers
from retrievers.encoders.settings import STATIC, TCT_COLBERT, TCT_MARKER_TOKENS, EncoderSettings
from retrievers.encoders.tokenization import mask_id, open_tokenizer
from retrievers.encoders.vectors import Vectors

TokenIds = Int32 | Sequence[int]
_LAYER_TENSORS = 16  # of a layer of BERT
_LORA_SCALE = 2  # of adapters: lora_alpha over the rank


class Tower(nn.Module):
    """Encoder and head (pooling, perhaps layers, perhaps normalisation). Made by `load`.

    The head computes in fp32, whatever dtype the encoder has. Parameters are named `encoder.…`, as
    the bare transformers model names them, and `head.layers.0.weight`, …

    Attributes:
        encoder: the bare transformers model, without BERT's pooler; for inference on a CPU a
            `FastBert` where it covers the model.
        head: pooling and layers that follow the token vectors.
        settings: how it reads texts, with the folder of the model.
        dim: size D of the vectors.
        unseen, skipped: in late interaction, the mask token of questions that others do not attend
            to, and the tokens of passages whose vectors do not count.
        autocast: run the encoder under bf16 autocast (GPU); on a CPU its weights are bf16
            themselves.
    """

    def __init__(self, encoder: Any, head: Head, settings: EncoderSettings) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.settings = settings
        self.dim = head.dim
        self.pad_id = int(getattr(encoder.config, "pad_token_id", 0) or 0)
        self.autocast = False
        self.unseen: int | None = None
        self.skipped = torch.zeros(0, dtype=torch.int64)
        interaction = settings.interaction
        if interaction is not None:
            tokenizer = open_tokenizer(settings.weights_dir)
            if interaction.expanded and not interaction.attended:
                self.unseen = mask_id(tokenizer)
            ids = set(map(tokenizer.token_to_id, interaction.skipped)) - {None}
            self.skipped = torch.tensor(sorted(ids), dtype=torch.int64)

    @classmethod
    def load(
        cls,
        settings: EncoderSettings,
        *,
        projection_dim: int = 0,
        projection_norm: bool = False,
        dropout: float | None = None,
        lora: int = 0,
        seed: int = 0,
        device: str = "cpu",
        train: bool = True,
        precision: str = "fp32",
    ) -> Tower:
        """Load weights, in fp32 to be trained.

        Args:
            settings: settings of the folder, after overrides.
            projection_dim: size of a new linear layer at the end of the head; 0 adds none.
            projection_norm: add a LayerNorm after it.
            dropout: replaces the configuration's dropout probabilities, if given.
            lora: rank of low-rank adapters on all linear layers of the encoder, whose own weights
                then stay.
            device: "cpu" or "cuda:N"; decides which attention is used.
            train: in training mode, with attention and dropout that have fast backward passes.
            precision: "fp32" or "bf16" for inference.

        Raises:
            ArtifactError: the folder holds no loadable encoder.
            ConfigError: the folder's head makes vectors of another size than the wanted one.
        """
        folder = settings.weights_dir
        _check_settings(settings, projection_dim, train=train)
        encoder: Any = None
        if not train and device == "cpu":
            encoder = _load_fast(folder, precision)
        is_fast = encoder is not None
        if not is_fast:
            encoder = load_backbone(folder, train=train, dropout=dropout, device=device)
        if lora:
            _add_adapters(encoder, rank=lora, seed=seed)
        size = int(encoder.config.hidden_size)
        added: list[Linear | nn.LayerNorm] = []
        if projection_dim and not settings.layers:
            added = new_layers(
                settings, size, projection_dim=projection_dim, norm=projection_norm, seed=seed
            )
        tower = cls(encoder, Head(settings, size, added), settings).to(device)
        if precision == "bf16" and not is_fast:
            tower.to_compute(torch.bfloat16)
        return tower

    def to_compute(self, dtype: torch.dtype) -> Tower:
        """Compute in `dtype`: bf16 converts the weights on a CPU, on a GPU it is autocast. Returns
        self.
        """
        if next(self.encoder.parameters()).device.type == "cpu":
            self.encoder.to(dtype)
        else:
            self.autocast = dtype == torch.bfloat16
        return self

    def forward(self, texts: Sequence[TokenIds], *, question: bool = False) -> Vectors:
        """Vectors, float32, of n token sequences (special tokens included), padded together.

        Raises:
            MismatchedArtifactError: a token that the network does not embed.
        """
        ids, mask = pad(texts, self.pad_id)  # (n, L)
        last = int(ids.max())
        embedded = self.encoder.config.vocab_size
        # Published tokenizers may have tokens of other senses, which no text contains.
        if last >= embedded:
            raise MismatchedArtifactError(
                f"{self.settings.weights_dir}: its tokenizer gives token {last} to a text, its network "
                f"embeds {embedded} tokens",
                hint="take the tokenizer of the model that it was trained from",
            )
        seen = mask
        scored = mask
        if question and self.unseen is not None:
            seen = mask * (ids != self.unseen)
        if not question and len(self.skipped):
            scored = mask * ~torch.isin(ids, self.skipped)
        if self.settings.pooling == TCT_COLBERT:
            scored = mask.clone()
            scored[:, :TCT_MARKER_TOKENS] = 0
        if isinstance(self.encoder, FastBert):
            attended = None if seen is mask else seen
            hidden = self.encoder.padded(ids, mask, seen=attended)  # (n, L, H)
        else:
            device = next(self.encoder.parameters()).device
            scored = scored.to(device)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.autocast):
                hidden = run_backbone(self.encoder, ids.to(device), seen.to(device))
        return self.head(hidden, scored)

    def encode(
        self,
        texts: Sequence[TokenIds],
        limits: tuple[int, int],
        *,
        question: bool = False,
    ) -> Vectors:
        """Vectors of many token sequences, in order; differentiable unless grad is off.

        Args:
            limits: most texts and most tokens that go through the network at once.
        """

        def run(rows: list[int]) -> Vectors:
            return self([texts[row] for row in rows], question=question)

        parts, order = run_by_length(run, list(map(len, texts)), limits)
        return Vectors.joined(parts).take(order)

    def bare(
        self, part: Literal["encoder", "head"], weights: Mapping[str, Tensor], prefix: str
    ) -> dict[str, Tensor]:
        """The tensors of a part under its own names, in fp32, with adapters merged into the
        weights.

        Args:
            part: the bare encoder, or the head (`layers.0.weight`, …).
            weights: fp32 values by the model's parameter names, such as a fit's result; parameters
                that are not among them (frozen ones) keep their present values.
            prefix: this tower's name in those names, such as "question.".
        """
        state = {}
        for name, tensor in getattr(self, part).state_dict().items():
            state[name] = weights.get(f"{prefix}{part}.{name}", tensor.detach().float())
        merged = {}
        for name, tensor in state.items():
            if ".lora_" in name:
                continue
            layer = name.removesuffix(".base_layer.weight")
            if layer != name:
                down = state[f"{layer}.lora_A.default.weight"]
                up = state[f"{layer}.lora_B.default.weight"]
                tensor = tensor + _LORA_SCALE * up @ down
            merged[name.replace(".base_layer.", ".")] = tensor
        return merged


def _check_settings(settings: EncoderSettings, projection_dim: int, *, train: bool) -> None:
    """Refuse settings for which there is no network to run or to train."""
    folder = settings.weights_dir
    if settings.pooling == STATIC:
        raise ConfigError(f"{folder} is a static encoder: no network runs", hint="rag train static")
    if train and settings.pooling == TCT_COLBERT:
        raise ConfigError(
            f"{folder} is read as TCT-ColBERT, whose form a trained encoder cannot have",
            hint="train from its weights with mean pooling",
        )
    if settings.layers and projection_dim not in (0, settings.dim):
        raise ConfigError(
            f"{folder} has a projection to {settings.dim} dimensions, "
            f"but projection_dim is {projection_dim}",
            hint="leave projection_dim at 0 to train the projection that is there",
        )


def _load_fast(folder: Path, precision: str) -> FastBert | None:
    """The network that needs no import of transformers' own, on a CPU; None if it is of another
    kind.
    """
    config = load_config(folder)
    if not FastBert.supports(config):
        return None
    state = backbone_state(folder)
    tensors = sum(name.startswith("encoder.layer.") for name in state)
    if tensors > _LAYER_TENSORS * config.num_hidden_layers:
        return None  # the slower way names what nothing reads
    try:
        return FastBert(state, config, precision=precision)
    except KeyError:
        return None  # the slower way names what is missing


def _add_adapters(encoder: Any, *, rank: int, seed: int) -> None:
    """Freeze an encoder, and add low-rank adapters to all its linear layers."""
    peft = require("peft", extra="lora")
    encoder.requires_grad_(False)
    adapters = peft.LoraConfig(r=rank, lora_alpha=_LORA_SCALE * rank, target_modules="all-linear")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(adapters, encoder)
