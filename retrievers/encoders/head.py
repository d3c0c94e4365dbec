"""What follows an encoder's token vectors: pooling, perhaps layers, perhaps unit length."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

from rag.core.errors import ArtifactError
from rag.runtime.model_files import read_tensors
from retrievers.encoders.settings import TOKENS, EncoderSettings, HeadLayer
from retrievers.encoders.vectors import Vectors


class Linear(nn.Linear):
    """x → activation(x Wᵀ + b) in fp32."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, activation: str = "Identity"
    ) -> None:
        super().__init__(weight.shape[1], weight.shape[0], bias is not None)
        self.load_state_dict(_state(weight, bias))
        self.activation = activation

    def forward(self, input: Tensor) -> Tensor:
        """(…, out) from (…, in)."""
        return getattr(nn, self.activation)()(super().forward(input))


class Head(nn.Module):
    """Token vectors → a text's vector or vectors, in fp32: pooling, layers, unit length.

    Every published retriever so far is a case of it: sentence-transformers (pooling, then linear
    layers with an activation, LayerNorm), DPR (the first token, perhaps a linear layer), ANCE (the
    first token, a linear layer and LayerNorm), a distilled reader (the same two layers on every
    token, then their mean), ColBERT (a linear layer on every token, all of which are kept).

    Args:
        settings: pooling, normalisation and layers with their weights.
        size: H of the token vectors.
        added: new layers, which follow those of the folder.
    """

    def __init__(
        self, settings: EncoderSettings, size: int, added: Iterable[Linear | nn.LayerNorm] = ()
    ) -> None:
        super().__init__()
        self.pooling = settings.pooling
        self.normalize = settings.normalize
        self.on_tokens = settings.on_tokens
        self.size = size
        self.dim = size
        self.layers = nn.ModuleList([*map(_read_layer, settings.layers), *added])
        for layer in self.layers:
            if isinstance(layer, Linear):
                if layer.in_features != self.dim:
                    raise ArtifactError(
                        f"{settings.weights_dir}: a layer takes vectors of {layer.in_features} dimensions, "
                        f"not {self.dim}",
                        hint="this head belongs to another model: copy or download the folder again",
                    )
                self.dim = layer.out_features

    def forward(self, hidden: Tensor, mask: Tensor) -> Vectors:
        """Vectors of padded texts, float32.

        Args:
            hidden: (n, L, H) token vectors.
            mask: (n, L), 1 on tokens.

        Returns:
            One vector per text; with the pooling "tokens", the vectors of all tokens.
        """
        if self.pooling == TOKENS:
            tokens = Vectors.of_tokens(hidden.float(), mask.bool())
            return Vectors(self._finish(self._transform(tokens.values)), tokens.lengths)
        if self.on_tokens:
            return Vectors(self._finish(self._pool(self._transform(hidden.float()), mask)))
        return Vectors(self._finish(self._transform(self._pool(hidden, mask))))

    def _pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """One vector (n, H) fp32 of each text: that of the first token, of the last, or the mean,
        which is zero for a text without tokens.
        """
        if self.pooling == "cls":
            return hidden[:, 0].float()
        if self.pooling == "lasttoken":
            rows = torch.arange(len(hidden), device=hidden.device)
            return hidden[rows, mask.sum(1) - 1].float()
        weights = mask.unsqueeze(-1).float()  # (n, L, 1)
        return (hidden.float() * weights).sum(1) / weights.sum(1).clamp(min=1)

    def _transform(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def _finish(self, x: Tensor) -> Tensor:
        return functional.normalize(x, dim=-1) if self.normalize else x


def new_layers(
    settings: EncoderSettings, size: int, *, projection_dim: int, norm: bool, seed: int
) -> list[Linear | nn.LayerNorm]:
    """A new linear layer from vectors of `size` to `projection_dim`, and perhaps a LayerNorm.

    Late interaction's projection has no bias, as in ColBERT.
    """
    weight = torch.empty(projection_dim, size)
    weight.normal_(0.0, size**-0.5, generator=torch.Generator().manual_seed(seed))
    bias = torch.zeros(projection_dim) if settings.interaction is None else None
    layers: list[Linear | nn.LayerNorm] = [Linear(weight, bias)]
    if norm:
        layers.append(nn.LayerNorm(projection_dim))
    return layers


def _read_layer(layer: HeadLayer) -> Linear | nn.LayerNorm:
    prefix = layer.weight.removesuffix("weight")
    tensors = read_tensors(layer.folder, prefix)
    if layer.weight not in tensors:
        raise ArtifactError(
            f"{layer.folder} has no {layer.weight}", hint="copy or download it again"
        )
    weight = tensors[layer.weight].float()
    bias = tensors.get(f"{prefix}bias")
    if bias is not None:
        bias = bias.float()
    if layer.kind == "linear":
        return Linear(weight, bias, layer.activation)
    norm = nn.LayerNorm(weight.shape[0], bias=bias is not None)
    norm.load_state_dict(_state(weight, bias))
    return norm


def _state(weight: Tensor, bias: Tensor | None) -> dict[str, Tensor]:
    return {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
