"""Linear layers of a fast encoder: in fp32 or bf16, or in int8 (uint8 inputs times int8 weights).

A layer is called for x Wᵀ + b, or adds it to a sum in place (`add_to`), as a transformer needs it.

int8 weights have one scale per output. VNNI instructions add the products in 32 bits. Without them
oneDNN multiplies by `vpmaddubsw`, which adds the products of each pair of neighbouring inputs (0
and 1, 2 and 3, …) in 16 bits: the scale is then so large that no pair can overflow, which costs
less precision than 7-bit codes would. Inputs are quantised in one of two ways; in both, a row's
result does not depend on the other rows of the batch:

* `CalibratedLinear`: every input channel has its own range, measured beforehand. Its scale is
  folded into the weights, so the product needs no correction, and bias and activation are fused
  into it. Values outside the range are clipped.
* `RowLinear`: every row gets its own scale, computed from its values. The scale is applied after
  the product, together with the sum that follows in a transformer, so this costs no extra pass.

Source:
    SmoothQuant (Xiao et al. 2023) for moving the inputs' ranges into the weights; LLM.int8()
    (Dettmers et al. 2022) for one scale per row.
"""

import torch
from torch import Tensor
from torch.nn import functional

from rag.runtime.hardware import sums_in_16_bits

# oneDNN's names of activations that it fuses into a product.
_PLAIN = ("none", "")
_GELU = ("gelu", "none")
# From signed to unsigned codes: oneDNN's fast kernels take unsigned inputs.
_HALF = 128
# Share of a channel's range that moves into the weights.
_SMOOTHING = 0.75
# Factor on the measured ranges.
_MARGIN = 1.05
_TINY = 1e-12
# A channel's range counts as at least this share of the widest one.
_SMALLEST = 0.02


class Linear:
    """x Wᵀ + b, or its GELU, in fp32 or bf16; weights (N, K), reordered for oneDNN."""

    def __init__(
        self, weight: Tensor, bias: Tensor, dtype: torch.dtype, *, gelu: bool = False
    ) -> None:
        self._activation, self._algorithm = _GELU if gelu else _PLAIN
        self._dtype = dtype
        self._bias = bias.to(dtype).clone()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype).clone())

    def __call__(self, x: Tensor) -> Tensor:
        """(T, N) in the layer's type from (T, K)."""
        return torch.ops.mkldnn._linear_pointwise(
            x.to(self._dtype), self._weight, self._bias, self._activation, [], self._algorithm
        )

    def add_to(self, total: Tensor, x: Tensor) -> Tensor:
        """Add the layer of x (T, K) to `total` (T, N) float32 in place; returns the sum."""
        return total.add_(self(x))


def weight_codes(weight: Tensor, *, pairs: bool) -> tuple[Tensor, Tensor]:
    """(N, K) int8 codes of weights, and the value of one code (N,).

    Args:
        pairs: make the codes of inputs 2i and 2i + 1 of equal sign add up to at most ±128, so that
            255 times this sum, all that a pair can amount to, fits into 16 bits; else codes reach
            ±127 each.
    """
    greatest = weight.abs().amax(1)
    if pairs:
        padded = functional.pad(weight, (0, weight.shape[1] % 2))
        of_pairs = padded.unflatten(1, (-1, 2))  # (N, K / 2, 2)
        greatest = torch.maximum(of_pairs.relu().sum(2), (-of_pairs).relu().sum(2)).amax(1)
    # Not by 128: rounding adds up to 1/2 to each code of a pair.
    scale = greatest.clamp_min(_TINY) / 127.0
    return (weight / scale[:, None]).round().to(torch.int8), scale


class _Int8Weight:
    """(N, K) weights prepared for uint8 inputs (M, K)."""

    def __init__(self, weight: Tensor) -> None:
        codes, scale = weight_codes(weight, pairs=sums_in_16_bits())
        self._weight = torch.ops.onednn.qlinear_prepack(codes, None)
        self._scale = scale
        self._zeros = torch.zeros(len(scale), dtype=torch.int32)

    def __call__(
        self,
        codes: Tensor,
        zero: int,
        bias: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        activation: tuple[str, str] = _PLAIN,
    ) -> Tensor:
        """activation((codes − zero) Wᵀ + b), (M, N) from (M, K) uint8."""
        return torch.ops.onednn.qlinear_pointwise(
            codes,
            1.0,
            zero,
            self._weight,
            self._scale,
            self._zeros,
            bias,
            1.0,
            0,
            dtype,
            activation[0],
            [],
            activation[1],
        )


class CalibratedLinear:
    """x Wᵀ + b, or its GELU, with x quantised by ranges measured beforehand.

    Args:
        weight: (N, K) float32.
        bias: (N,) float32.
        low, high: (K,) least and greatest value of each input channel.
        dtype: type of the result, float32 or bfloat16.

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
        gelu: bool = False,
    ) -> None:
        middle = (high + low) / 2
        reach = (high - low) / 2
        reach = reach.clamp_min(max(_SMALLEST * float(reach.max()), 1e-6))
        smooth = reach.pow(_SMOOTHING)
        step = smooth * (float((reach / smooth).max()) * _MARGIN / 127.0)  # (K,) value of one code
        self._factor = 1.0 / step
        self._offset = -middle / step
        self._weight = _Int8Weight(weight * step)
        self._bias = bias + weight @ middle
        self._dtype = dtype
        self._activation = _GELU if gelu else _PLAIN

    def __call__(self, x: Tensor) -> Tensor:
        """(T, N) from (T, K) float32."""
        codes = _unsigned(torch.addcmul(self._offset, x, self._factor).clamp_(-127.0, 127.0))
        return self._weight(codes, _HALF, self._bias, self._dtype, self._activation)


class RowLinear:
    """total + x Wᵀ + b with a scale for each row of x.

    Args:
        weight: (N, K) float32.
        bias: (N,) float32.
        least: a lower bound of all inputs, if a close one is known (−0.17 for GELU): the codes then
            cover [least, greatest] of a row instead of ±(greatest magnitude).

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
            steps = 127.0
            zero = _HALF
            values = torch.mul(x, steps / top)
        else:
            top = x.amax(1, keepdim=True).sub_(self._least).clamp_min_(_TINY)
            steps = 254.0
            zero = 1
            factor = steps / top
            values = torch.mul(x, factor).sub_(factor.mul_(self._least).add_(127.0))
        product = self._weight(_unsigned(values), zero)
        return total.add_(self._bias).addcmul_(product, top.div_(steps))


def _unsigned(values: Tensor) -> Tensor:
    """uint8 codes of values in [−127, 127], which are overwritten; the code of zero is 128."""
    return values.round_().to(torch.int8).view(torch.uint8).bitwise_xor_(_HALF)
