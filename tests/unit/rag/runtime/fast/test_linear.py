"""int8 linear layers against the same layers in fp32."""

import pytest
import torch
from torch.nn import functional

from rag.runtime.fast.linear import CalibratedLinear, RowLinear, _Int8Weight, weight_codes
from rag.runtime.hardware import sums_in_16_bits


def layer(n=24, k=16):
    draw = torch.Generator().manual_seed(0)
    return torch.randn(n, k, generator=draw), torch.randn(n, generator=draw)


def inputs(rows=50, k=16):
    """Channels of very different ranges that do not lie around zero, as LayerNorm puts them out."""
    draw = torch.Generator().manual_seed(1)
    return torch.randn(rows, k, generator=draw) * torch.linspace(0.1, 3, k) + torch.linspace(
        -2, 2, k
    )


def error(found, expected):
    return float((found.float() - expected).norm() / expected.norm())


@pytest.mark.needs_int8
@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.needs_bf16)]
)
def test_calibrated(dtype):
    (weight, bias), x = layer(), inputs()
    result = CalibratedLinear(weight, bias, x.amin(0), x.amax(0), dtype=dtype)(x)
    assert result.dtype == dtype
    assert error(result, functional.linear(x, weight, bias)) < 0.01


@pytest.mark.needs_int8
@pytest.mark.parametrize("least", [None, -0.17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows(least, dtype):
    (weight, bias), x = layer(), inputs() * torch.logspace(-3, 3, 50)[:, None]
    x = (x if least is None else functional.gelu(x)).to(dtype)
    total = torch.ones(50, 24)
    expected = 1 + functional.linear(x.float(), weight, bias)
    actual = RowLinear(weight, bias, least=least).add_to(total.clone(), x)
    for item, other in zip(actual, expected, strict=True):
        assert (
            error(item, other) < 0.02
        )  # every row on its own, however small its neighbours make it look


@pytest.mark.needs_int8
def test_a_row_does_not_depend_on_its_neighbours():
    (weight, bias), x = layer(), inputs()
    calibrated = CalibratedLinear(weight, bias, x.amin(0), x.amax(0))
    rows = RowLinear(weight, bias)
    for row in range(0, 50, 7):
        one = x[row : row + 1]
        assert torch.equal(calibrated(one), calibrated(x)[row : row + 1])
        alone = rows.add_to(torch.zeros(1, 24), one)
        together = rows.add_to(torch.zeros(50, 24), x)
        assert torch.equal(alone, together[row : row + 1])


@pytest.mark.parametrize("k", [1, 2, 7, 64])
def test_no_pair_of_products_overflows_16_bits(k):
    """The greatest and the least sum that `vpmaddubsw` can be given, whatever the inputs."""
    for weight in (layer(k=k)[0], torch.ones(24, k), -torch.ones(24, k), torch.zeros(24, k)):
        codes, scale = weight_codes(weight, pairs=True)
        pairs = functional.pad(codes.int(), (0, k % 2)).unflatten(1, (-1, 2))
        assert int(255 * pairs.clamp_min(0).sum(2).max()) <= 2**15 - 1
        assert int(255 * pairs.clamp_max(0).sum(2).min()) >= -(2**15)
        assert (codes * scale[:, None] - weight).abs().max() <= scale.max() / 2 * 1.001


@pytest.mark.needs_int8
@pytest.mark.parametrize("k", [1, 7, 32, 384])
@pytest.mark.parametrize("sign", [1, -1])
def test_products_at_the_limit_are_exact_on_this_processor(k, sign):
    weight = sign * torch.tensor([[1.0, 0.0], [0.5, 0.5], [1.0, -1.0]]).repeat(6, k)[:, :k]
    codes, scale = weight_codes(weight, pairs=sums_in_16_bits())
    inputs = torch.full((5, k), 255, dtype=torch.uint8)
    expected = (inputs.double() @ codes.double().T) * scale.double()
    torch.testing.assert_close(_Int8Weight(weight)(inputs, 0).double(), expected, rtol=1e-6, atol=0)
