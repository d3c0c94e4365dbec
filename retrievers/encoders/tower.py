"""One encoder tower, from token ids to the vector or vectors of each text, for training and inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rag.core.arrays import Int32
from rag.core.errors import ConfigError
from rag.runtime.backbone import load_backbone, pad, segments_of, token_vectors
from rag.runtime.bert import Bert
from retrievers.encoders.head import Head, Linear, build_head, linear_of
from retrievers.encoders.settings import EncoderSettings
from retrievers.encoders.tokenization import separator_id, token_rules
from retrievers.encoders.vectors import Vectors


class TowerModel(nn.Module):
    """Encoder and head (pooling, perhaps layers, perhaps normalisation). Made by `load`.

    The head computes in fp32, whatever dtype the encoder has. Parameters are named `encoder.…`, as the bare
    transformers model names them, and `head.layers.0.weight`, …

    Attributes:
        encoder: the bare transformers model, without BERT's pooler; for inference on a CPU perhaps a `Bert`.
        head: pooling and layers that follow the token vectors.
        settings: how it reads texts, with the folder of the model.
        dim: size D of the vectors.
        autocast: run the encoder under bf16 autocast (GPU); on a CPU its weights are bf16 themselves.
    """

    def __init__(self, encoder: nn.Module, head: Head, settings: EncoderSettings) -> None:
        super().__init__()
        self.encoder, self.head, self.settings = encoder, head, settings
        self.separator = separator_id(settings.weights_dir) if settings.segments else None
        self.rules, self.autocast = token_rules(settings), False
        config: Any = encoder.config
        self.pad_id = int(getattr(config, "pad_token_id", 0) or 0)
        self.dim = head.dim

    @classmethod
    def load(
        cls,
        settings: EncoderSettings,
        *,
        projection_dim: int = 0,
        projection_norm: bool = False,
        dropout: float | None = None,
        seed: int = 0,
        device: str = "cpu",
        train: bool = True,
    ) -> TowerModel:
        """Load weights in fp32.

        Args:
            settings: settings of the folder, after overrides.
            projection_dim: size of a new linear layer at the end of the head; 0 adds none.
            projection_norm: add a LayerNorm after it.
            dropout: replaces the configuration's dropout probabilities, if given.
            device: "cpu" or "cuda:N"; decides which attention is used.
            train: in training mode, with attention and dropout that have fast backward passes.

        Raises:
            ArtifactError: the folder holds no loadable encoder.
            ConfigError: the folder's head makes vectors of another size than the wanted one.
        """
        folder = settings.weights_dir
        encoder = load_backbone(folder, train=train, dropout=dropout, device=device)
        hidden = int(encoder.config.hidden_size)
        added: list[Linear | nn.LayerNorm] = []
        if settings.layers and settings.pooling != "pooler":
            if projection_dim not in (0, settings.dim):
                raise ConfigError(
                    f"{folder} has a projection to {settings.dim} dimensions, "
                    f"but projection_dim is {projection_dim}",
                    hint="leave projection_dim at 0 to train the projection that is there",
                )
        elif projection_dim:
            drawn = torch.empty(projection_dim, hidden)
            drawn.normal_(0.0, hidden**-0.5, generator=torch.Generator().manual_seed(seed))
            has_bias = settings.interaction is None
            added.append(linear_of(drawn, torch.zeros(projection_dim) if has_bias else None))
            added += [nn.LayerNorm(projection_dim)] if projection_norm else []
        return cls(encoder, build_head(settings, hidden, added), settings).to(device)

    @property
    def is_trained(self) -> bool:
        """Whether any of its parameters takes gradients."""
        return any(parameter.requires_grad for parameter in self.parameters())

    def to_compute(self, dtype: torch.dtype) -> TowerModel:
        """Compute in `dtype`: bf16 converts the weights on a CPU, on a GPU it is autocast. Returns self."""
        if isinstance(self.encoder, Bert):
            self.encoder.compute_in(dtype)
        elif next(self.encoder.parameters()).device.type == "cpu":
            self.encoder.to(dtype)
        else:
            self.autocast = dtype == torch.bfloat16
        return self

    def forward(self, texts: Sequence[Int32 | Sequence[int]], *, question: bool = False) -> Vectors:
        """Vectors, float32, of n token sequences (special tokens included), padded together."""
        first = next(self.encoder.parameters(), None)
        device = torch.device("cpu") if first is None else first.device
        ids, mask = pad(texts, self.pad_id)  # (n, L)
        types = None if self.separator is None else segments_of(ids, mask, self.separator).to(device)
        seen = kept = mask
        if self.rules is not None:
            seen, kept = (rule(ids, mask, question=question) for rule in (self.rules.seen, self.rules.kept))
        ids, seen, kept = ids.to(device), seen.to(device), kept.to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.autocast):
            hidden = token_vectors(self.encoder, ids, seen, types)  # (n, L, H)
        vectors: Vectors = self.head(hidden, kept)
        return vectors

    def bare(
        self, part: Literal["encoder", "head"], weights: Mapping[str, Tensor], prefix: str
    ) -> dict[str, Tensor]:
        """The tensors of a part under its own names, in fp32.

        Args:
            part: the bare encoder, or the head (`layers.0.weight`, …).
            weights: fp32 values by the model's parameter names, such as a fit's result; parameters that are
                not among them (frozen ones) keep their present values.
            prefix: this tower's name in those names, such as "question.".
        """
        own = getattr(self, part).state_dict()
        return {
            name: weights.get(f"{prefix}{part}.{name}", tensor.detach().float())
            for name, tensor in own.items()
        }
