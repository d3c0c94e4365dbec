"""`FastBert` with its linear layers in int8."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rag.core.errors import ConfigError
from rag.runtime.fast.fast_bert import FUSED_ACTIVATIONS, FastBert, Layer
from rag.runtime.fast.int8_linear import CalibratedLinear, RowLinear

__all__ = ["Int8Bert", "RangeRecorder"]

_LEAST = {"gelu": -0.17, "gelu_new": -0.1701, "gelu_pytorch_tanh": -0.1701, "relu": 0.0}
_BLOCK_TOKENS = 512  # tokens whose (tokens, 4H) float32 intermediates stay in the cache of one core


class Int8Bert(FastBert):
    """A `FastBert` whose linear layers compute in int8; sums and LayerNorm stay in fp32.

    The inputs of the first product of each half layer (outputs of a LayerNorm) are quantised with ranges that
    were measured on text, the others row by row as they come; see `rag.runtime.fast.int8_linear`. Integer
    products are exact, so a token's numbers do not depend on how many others are computed with it.

    Args:
        state, config: as for `FastBert`.
        attention: "bf16" or "fp32", what attention computes in.

    Raises:
        ConfigError: the architecture is not covered, or the ranges are those of another model.
    """

    def __init__(
        self,
        state: Mapping[str, Tensor],
        config: Any,
        ranges: Mapping[str, Tensor],
        *,
        attention: str = "bf16",
    ) -> None:
        expected = {f"{n}.{part}" for n in range(config.num_hidden_layers) for part in ("attention", "feed")}
        if ranges.keys() != expected or any(r.shape != (2, config.hidden_size) for r in ranges.values()):
            raise ConfigError(
                f"ranges of {len(ranges)} inputs are not those of a model of {config.num_hidden_layers} "
                f"layers with {config.hidden_size} channels",
                hint="measure them with this model",
            )
        self._ranges = ranges
        super().__init__(state, config, precision=attention)
        self.precision = "int8"

    def _layer(self, state: Mapping[str, Tensor], number: int, config: Any) -> Layer:
        parts = self._parts(state, number)
        activation, algorithm = FUSED_ACTIVATIONS[config.hidden_act]
        prefix = f"encoder.layer.{number}"
        return Layer(
            qkv=CalibratedLinear(*parts["qkv"], *self._ranges[f"{number}.attention"], dtype=self.dtype),
            attention_out=RowLinear(*parts["attention_out"]),
            attention_norm=self._norm(state, f"{prefix}.attention.output.LayerNorm", config.layer_norm_eps),
            up=CalibratedLinear(
                *parts["up"], *self._ranges[f"{number}.feed"], activation=activation, algorithm=algorithm
            ),
            down=RowLinear(*parts["down"], least=_LEAST[config.hidden_act]),
            norm=self._norm(state, f"{prefix}.output.LayerNorm", config.layer_norm_eps),
        )

    def _project(self, layer: Layer, number: int, x: Tensor) -> Tensor:
        projected: Tensor = layer.qkv(x)
        return projected

    def _complete(self, layer: Layer, number: int, x: Tensor, context: Tensor) -> Tensor:
        x = layer.attention_norm(layer.attention_out.add_to(x, context))
        for block in x.split(_BLOCK_TOKENS):
            layer.down.add_to(block, layer.up(block))
        result: Tensor = layer.norm(x)
        return result


class RangeRecorder(FastBert):
    """A `FastBert` that notes the least and greatest value of every channel that `Int8Bert` needs to know.

    Attributes:
        ranges: "0.attention", "0.feed", "1.attention", … → (2, H) float32, least and greatest so far.
    """

    def __init__(self, state: Mapping[str, Tensor], config: Any) -> None:
        super().__init__(state, config, precision="fp32")
        self.ranges: dict[str, Tensor] = {}
        self._lock = threading.Lock()

    def _project(self, layer: Layer, number: int, x: Tensor) -> Tensor:
        self._note(f"{number}.attention", x)
        return super()._project(layer, number, x)

    def _feed_forward(self, layer: Layer, number: int, x: Tensor) -> Tensor:
        self._note(f"{number}.feed", x)
        return super()._feed_forward(layer, number, x)

    def _note(self, name: str, x: Tensor) -> None:
        low, high = x.amin(0), x.amax(0)
        with self._lock:
            if name in self.ranges:
                known = self.ranges[name]
                low, high = torch.minimum(low, known[0]), torch.maximum(high, known[1])
            self.ranges[name] = torch.stack([low, high])
