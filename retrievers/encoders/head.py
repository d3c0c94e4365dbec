"""The head of an encoder, applied to its token vectors: pooling, layers, unit length.

A head is described by `EncoderSettings` and built here with its weights; inference and training use the same
module, export writes it back. Every published retriever so far is a case of it:

* sentence-transformers: pooling, then any number of linear layers with an activation, LayerNorm;
* DPR: the first token, perhaps a linear layer; with BERT's tanh pooler, a linear layer with tanh;
* ANCE: the first token, a linear layer and LayerNorm;
* distillation from a reader (Izacard and Grave 2021): the same two layers on every token, then their mean;
* ColBERT: a linear layer on every token, all of which are kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torch import Tensor, nn
from torch.nn import functional

from rag.core.errors import ArtifactError
from rag.runtime.backbone import pool
from rag.runtime.model_files import read_weight, weight_files
from retrievers.encoders.vectors import Vectors

if TYPE_CHECKING:
    from retrievers.encoders.settings import EncoderSettings

ACTIVATIONS = {"Identity": nn.Identity, "Tanh": nn.Tanh, "ReLU": nn.ReLU, "GELU": nn.GELU}


@dataclass(frozen=True, slots=True)
class HeadLayer:
    """A layer of a head: the place of its weights, and what it computes.

    Attributes:
        kind: "linear" or "norm" (LayerNorm).
        folder: folder of the safetensors file.
        weight: name of its weight there, ending in "weight"; its bias, if any, is beside it.
        activation: after a linear layer, one of `ACTIVATIONS`.
    """

    kind: Literal["linear", "norm"]
    folder: Path
    weight: str
    activation: str = "Identity"


class Linear(nn.Linear):
    """x → activation(x Wᵀ + b) in fp32."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, activation: str = "Identity"
    ) -> None:
        super().__init__(in_features, out_features, bias)
        self.activation = activation
        self._act = ACTIVATIONS[activation]()

    def forward(self, input: Tensor) -> Tensor:
        """(…, out) from (…, in)."""
        result: Tensor = self._act(super().forward(input))
        return result


class Head(nn.Module):
    """Token vectors → a text's vector or vectors; computes in fp32.

    Args:
        pooling: one of `settings.POOLINGS`.
        layers: in order.
        normalize: unit length at the end.
        on_tokens: layers act on every token, before pooling.
        size: H of the token vectors.
    """

    def __init__(
        self,
        pooling: str,
        layers: Iterable[Linear | nn.LayerNorm] = (),
        *,
        normalize: bool,
        size: int,
        on_tokens: bool = False,
    ) -> None:
        super().__init__()
        self.size = size
        self.pooling = "cls" if pooling == "pooler" else pooling
        self.layers = nn.ModuleList(layers)
        self.normalize, self.on_tokens = normalize, on_tokens
        sizes = [size, *(layer.out_features for layer in self.layers if isinstance(layer, Linear))]
        self.dim: int = sizes[-1]

    def forward(self, hidden: Tensor, mask: Tensor) -> Vectors:
        """Vectors of padded texts, float32.

        Args:
            hidden: (n, L, H) token vectors.
            mask: (n, L), 1 on tokens.

        Returns:
            One vector per text; with the pooling "tokens", the vectors of all tokens.
        """
        if self.pooling == "tokens":
            kept = Vectors.of_tokens(hidden.float(), mask.bool())
            return Vectors(self.finish(self.transform(kept.values)), kept.lengths)
        if self.on_tokens:
            return Vectors(self.finish(pool(self.transform(hidden.float()), mask, self.pooling)))
        return Vectors(self.finish(self.transform(pool(hidden, mask, self.pooling))))

    def transform(self, x: Tensor) -> Tensor:
        """Apply the layers to (…, H)."""
        for layer in self.layers:
            x = layer(x)
        return x

    def finish(self, x: Tensor) -> Tensor:
        """Normalise vectors to unit length, if the head does so."""
        return functional.normalize(x, dim=-1) if self.normalize else x


def build_head(described: EncoderSettings, size: int, added: Iterable[Linear | nn.LayerNorm] = ()) -> Head:
    """The head of an encoder with its weights, on token vectors of `size` numbers; `added` layers follow.

    Raises:
        ArtifactError: a layer's weights are not there, or do not take what comes before them.
    """
    layers = [*map(_read_layer, described.layers), *added]
    given = size
    for form, layer in zip(described.layers, layers, strict=False):
        if not isinstance(layer, Linear):
            continue
        if layer.in_features != given:
            raise ArtifactError(
                f"{form.folder}: {form.weight} takes vectors of {layer.in_features} dimensions, not {given}",
                hint="this head belongs to another model: copy or download the folder again",
            )
        given = layer.out_features
    return Head(
        described.pooling, layers, normalize=described.normalize, size=size, on_tokens=described.on_tokens
    )


def _read_layer(layer: HeadLayer) -> Linear | nn.LayerNorm:
    weight = read_weight(layer.folder, layer.weight)
    bias_name = layer.weight.removesuffix("weight") + "bias"
    bias = read_weight(layer.folder, bias_name) if bias_name in _shapes(layer.folder) else None
    if layer.kind == "linear":
        return linear_of(weight, bias, layer.activation)
    norm = nn.LayerNorm(weight.shape[0], bias=bias is not None)
    norm.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}))
    return norm


def linear_of(weight: Tensor, bias: Tensor | None = None, activation: str = "Identity") -> Linear:
    """A linear layer with these weights (out, in) and (out,)."""
    layer = Linear(weight.shape[1], weight.shape[0], bias is not None, activation)
    layer.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}))
    return layer


def weight_shape(layer: HeadLayer) -> tuple[int, ...]:
    """Shape of a layer's weight, read from the file's header alone."""
    return _shapes(layer.folder)[layer.weight]


def find_weight(folder: Path, *endings: str) -> str | None:
    """The first weight of a model folder that is, or ends in a dot and, one of `endings`."""
    for ending in endings:
        for name in sorted(_shapes(folder)):
            if name == ending or name.endswith("." + ending):
                return name
    return None


def _shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    from safetensors import safe_open

    found: dict[str, tuple[int, ...]] = {}
    for file in weight_files(folder):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a dict
                found[name] = tuple(tensors.get_slice(name).get_shape())
    return found
