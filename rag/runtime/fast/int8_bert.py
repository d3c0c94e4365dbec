"""`FastBert` with linear layers in int8: uint8 inputs times int8 weights.

Weights have one scale per output. VNNI instructions add the products in 32 bits. Without them oneDNN
multiplies by `vpmaddubsw`, which adds the products of each pair of neighbouring inputs (0 and 1, 2 and 3, …)
in 16 bits: the scale is then so large that no pair can overflow, which costs less precision than 7-bit codes
would.

Inputs are quantised in one of two ways; in both, a row's result does not depend on the other rows of the
batch:

* `CalibratedLinear`: every input channel has its own range, measured beforehand. Its scale is folded
  into the weights, so the product needs no correction, and bias and activation are fused into it. Values
  outside the range are clipped.
* `RowLinear`: every row gets its own scale, computed from its values. The scale is applied after the product,
  together with the sum that follows in a transformer, so this costs no extra pass.

Source: SmoothQuant (Xiao et al. 2023) for moving the inputs' ranges into the weights; LLM.int8() (Dettmers et
al. 2022) for one scale per row.
"""

import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rag.core.errors import ConfigError
from rag.runtime.fast.fast_bert import FUSED_ACTIVATIONS, FastBert, Layer, activate_, fuses_activation
from rag.runtime.hardware import has_vnni

_LEAST = {"gelu": -0.17, "gelu_new": -0.1701, "gelu_pytorch_tanh": -0.1701, "relu": 0.0}
_BLOCK_TOKENS = 512  # tokens whose (tokens, 4H) float32 intermediates stay in the cache of one core
_HALF = 128  # from signed to unsigned codes: oneDNN's fast kernels take unsigned inputs
_SMOOTHING = 0.75  # share of a channel's range that moves into the weights
_MARGIN = 1.05  # margin above the measured ranges
_TINY = 1e-12
_SMALLEST = 0.02  # a channel's range counts as at least this share of the widest one


def weight_codes(weight: Tensor, *, pairs: bool) -> tuple[Tensor, Tensor]:
    """(N, K) int8 codes of weights, and the value of one code (N,).

    Args:
        pairs: make the codes of inputs 2i and 2i + 1 of equal sign add up to at most ±128, so that 255 times
            this sum, all that a pair can amount to, fits into 16 bits; else codes reach ±127 each.
    """
    greatest = weight.abs().amax(1)
    if pairs:
        of_pairs = functional.pad(weight, (0, weight.shape[1] % 2)).unflatten(1, (-1, 2))  # (N, K / 2, 2)
        greatest = torch.maximum(of_pairs.relu().sum(2), (-of_pairs).relu().sum(2)).amax(1)
    scale = greatest.clamp_min(_TINY) / 127.0  # rounding adds up to 1/2 to each code of a pair
    return (weight / scale[:, None]).round().to(torch.int8), scale


class _Int8Weight:
    """(N, K) weights prepared for uint8 inputs (M, K)."""

    def __init__(self, weight: Tensor) -> None:
        codes, scale = weight_codes(weight, pairs=not has_vnni())
        self._weight = torch.ops.onednn.qlinear_prepack(codes, None)
        self._scale = scale
        self._zeros = torch.zeros(len(scale), dtype=torch.int32)

    def product(
        self,
        codes: Tensor,
        zero: int,
        *,
        bias: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        activation: tuple[str, str] = ("none", ""),
    ) -> Tensor:
        """activation((codes − zero) Wᵀ + b), (M, N) from (M, K) uint8."""
        result: Tensor = torch.ops.onednn.qlinear_pointwise(
            codes, 1.0, zero, self._weight, self._scale, self._zeros, bias,
            1.0, 0, dtype, activation[0], [], activation[1],
        )  # fmt: skip
        return result


class CalibratedLinear:
    """activation(x Wᵀ + b) with x quantised by ranges measured beforehand.

    Args:
        weight: (N, K) float32.
        bias: (N,) float32.
        low, high: (K,) least and greatest value of each input channel.
        dtype: type of the result, float32 or bfloat16.
        activation, algorithm: the activation, fused into the product where that is faster: "none" and "",
            "gelu" and "none" or "tanh", "relu" and "".

    Example:
        >>> linear = CalibratedLinear(torch.eye(2), torch.ones(2), -torch.ones(2), torch.ones(2))
        >>> linear(torch.tensor([[0.5, -0.25]])).round(decimals=2)
        tensor([[1.5000, 0.7500]])
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        low: Tensor,
        high: Tensor,
        *,
        dtype: torch.dtype = torch.float32,
        activation: str = "none",
        algorithm: str = "",
    ) -> None:
        middle, reach = (high + low) / 2, (high - low) / 2
        reach = reach.clamp_min(max(_SMALLEST * float(reach.max()), 1e-6))
        smooth = reach.pow(_SMOOTHING)
        step = smooth * (float((reach / smooth).max()) * _MARGIN / 127.0)  # (K,) value of one code
        self._factor = 1.0 / step
        self._offset = -middle / step
        self._weight = _Int8Weight(weight * step)
        self._bias = bias + weight @ middle
        self._dtype, self._activation, self._algorithm = dtype, activation, algorithm
        self._fused = fuses_activation(activation, algorithm)

    def __call__(self, x: Tensor) -> Tensor:
        """(T, N) from (T, K) float32."""
        codes = _unsigned(torch.addcmul(self._offset, x, self._factor).clamp_(-127.0, 127.0))
        fused = (self._activation, self._algorithm) if self._fused else ("none", "")
        y = self._weight.product(codes, _HALF, bias=self._bias, dtype=self._dtype, activation=fused)
        return y if self._fused else activate_(y, self._activation, self._algorithm)


class RowLinear:
    """total + x Wᵀ + b with a scale for each row of x.

    Args:
        weight: (N, K) float32.
        bias: (N,) float32.
        least: a lower bound of all inputs, if a close one is known (−0.17 for GELU): the codes then cover
            [least, greatest] of a row instead of ±(greatest magnitude).

    Example:
        >>> linear = RowLinear(torch.eye(2), torch.ones(2))
        >>> linear.add_to(torch.zeros(1, 2), torch.tensor([[0.5, -0.25]])).round(decimals=2)
        tensor([[1.5000, 0.7500]])
    """

    def __init__(self, weight: Tensor, bias: Tensor, *, least: float | None = None) -> None:
        self._weight = _Int8Weight(weight)
        self._least = least
        self._bias = bias.clone() if least is None else bias + least * weight.sum(1)

    def add_to(self, total: Tensor, x: Tensor) -> Tensor:
        """Add x Wᵀ + b, for `x` (T, K), to `total` (T, N) float32 in place; returns the sum."""
        x = x.float()
        if self._least is None:
            top = x.abs().amax(1, keepdim=True).clamp_min_(_TINY)  # (T, 1)
            steps, zero = 127.0, _HALF
            values = torch.mul(x, steps / top)
        else:
            top = x.amax(1, keepdim=True).sub_(self._least).clamp_min_(_TINY)
            steps, zero = 254.0, 1
            factor = steps / top
            values = torch.mul(x, factor).sub_(factor.mul_(self._least).add_(127.0))
        product = self._weight.product(_unsigned(values), zero)
        return total.add_(self._bias).addcmul_(product, top.div_(steps))


def _unsigned(values: Tensor) -> Tensor:
    """uint8 codes of values in [−127, 127], which are overwritten; the code of zero is 128."""
    return values.round_().to(torch.int8).view(torch.uint8).bitwise_xor_(_HALF)


class Int8Bert(FastBert):
    """A `FastBert` whose linear layers compute in int8; sums and LayerNorm stay in fp32.

    The inputs of the first product of each half layer (outputs of a LayerNorm) are quantised with ranges that
    were measured on text, the others with one scale per row; see above. Integer products are exact, so a
    token's numbers do not depend on the other tokens of the batch.

    Args:
        state, config: as for `FastBert`.
        attention: precision of attention, "bf16" or "fp32".

    Raises:
        ConfigError: the architecture is not covered, or the ranges belong to another model.
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
    """A `FastBert` that records the least and greatest value of every channel that `Int8Bert` quantises.

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
