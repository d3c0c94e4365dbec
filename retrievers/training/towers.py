"""One trainable encoder tower: token ids in, a text's vector or vectors out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from rag.core.errors import ConfigError
from rag.runtime.backbone import load_backbone, pad, segments_of, token_vectors
from retrievers.encoders.head import Head, Linear, Norm, build_head
from retrievers.encoders.interaction import TokenRules
from retrievers.encoders.settings import EncoderSettings
from retrievers.encoders.tokenization import separator_id, token_rules
from retrievers.encoders.vectors import Vectors

__all__ = ["TrainableTower"]

Int32 = npt.NDArray[np.int32]


class TrainableTower(nn.Module):
    """Encoder and head (pooling, perhaps layers, perhaps normalisation). Made by `load`.

    The head computes in fp32, whatever dtype the encoder has. Parameters are named `encoder.…`, as the bare
    transformers model names them, and `head.layers.0.weight`, …

    Attributes:
        encoder: the bare transformers model, without BERT's pooler.
        head: what follows its token vectors.
        folder: the model's folder, which has the tokenizer too.
        dim: size D of the vectors.
        separator: the token behind which segment 1 begins; None: all token types are 0.
        rules: which tokens are seen and kept where every token has a vector.
        autocast: run the encoder under bf16 autocast (GPU); on a CPU its weights are bf16 themselves.
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: Head,
        *,
        folder: Path,
        separator: int | None = None,
        rules: TokenRules | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head
        self.folder, self.separator, self.rules = folder, separator, rules
        self.autocast = False
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
    ) -> TrainableTower:
        """Load weights in fp32.

        Args:
            settings: what the folder says, after overrides.
            projection_dim: size of a new linear layer at the end of the head; 0 keeps what the folder has.
            projection_norm: LayerNorm behind it.
            dropout: replaces the configuration's dropout probabilities, if given.
            seed: of a new layer's weights.
            device: "cpu" or "cuda:N"; decides which attention is used.

        Raises:
            ArtifactError: the folder holds no loadable encoder.
            ConfigError: the folder's head makes vectors of another size than the wanted one.
        """
        folder = settings.weights_dir
        encoder = load_backbone(folder, train=True, dropout=dropout, device=device)
        hidden = int(encoder.config.hidden_size)
        added: list[Linear | Norm] = []
        if settings.layers and settings.pooling != "pooler":
            if projection_dim not in (0, settings.dim):
                raise ConfigError(
                    f"{folder} has a projection to {settings.dim} numbers, "
                    f"projection_dim is {projection_dim}",
                    hint="leave projection_dim at 0 to train the projection that is there",
                )
        elif projection_dim:
            added.append(_drawn(hidden, projection_dim, seed, bias=settings.interaction is None))
            added += [Norm(projection_dim)] if projection_norm else []
        head = build_head(settings, hidden, added)
        separator = separator_id(folder) if settings.segments else None
        rules = token_rules(settings)
        return cls(encoder, head, folder=folder, separator=separator, rules=rules).to(device)

    @property
    def is_trained(self) -> bool:
        """Whether any of its parameters takes gradients."""
        return any(parameter.requires_grad for parameter in self.parameters())

    def to_compute(self, dtype: torch.dtype) -> TrainableTower:
        """bf16: on a CPU the encoder's weights themselves, on a GPU autocast over fp32 weights."""
        if next(self.encoder.parameters()).device.type == "cpu":
            self.encoder.to(dtype)
        else:
            self.autocast = dtype == torch.bfloat16
        return self

    def forward(self, texts: Sequence[Int32], *, question: bool = False) -> Vectors:
        """Vectors, float32, of n token sequences (special tokens included), padded together."""
        device = next(self.encoder.parameters()).device
        ids, mask = pad(texts, self.pad_id)  # (n, L)
        types = None if self.separator is None else segments_of(ids, mask, self.separator).to(device)
        seen = kept = mask
        if self.rules is not None:
            seen, kept = (rule(ids, mask, question=question) for rule in (self.rules.seen, self.rules.kept))
        ids, seen, kept = ids.to(device), seen.to(device), kept.to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.autocast):
            hidden = token_vectors(self.encoder, ids, seen, types)  # (n, L, H)
        found: Vectors = self.head(hidden, kept)
        return found

    def bare_state(self, weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """The encoder's tensors under the bare model's names.

        Args:
            weights: fp32 values by this model's parameter names, such as a fit's result; parameters that are
                not among them (frozen ones) keep their present values.
            prefix: this tower's name in those names, such as "question.".
        """
        return _present(self.encoder, weights, f"{prefix}encoder.")

    def bare_head(self, weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """The head's tensors under its own names (`layers.0.weight`, …); see `bare_state`."""
        return _present(self.head, weights, f"{prefix}head.")


def _present(module: nn.Module, weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    own = {name: tensor.detach().float() for name, tensor in module.state_dict().items()}
    return {name: weights.get(prefix + name, tensor) for name, tensor in own.items()}


def _drawn(size: int, dim: int, seed: int, *, bias: bool) -> Linear:
    layer = Linear(size, dim, bias)
    with torch.no_grad():
        drawn = torch.empty_like(layer.weight)
        layer.weight.copy_(drawn.normal_(0.0, size**-0.5, generator=torch.Generator().manual_seed(seed)))
        if bias:
            layer.bias.zero_()
    return layer
