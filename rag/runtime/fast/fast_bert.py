"""Fast inference of BERT-family encoders on CPU.

Equal results to transformers' `BertModel` in evaluation mode, with less work:

* sequences are concatenated (`rag.runtime.fast.packing`), so linear layers, LayerNorm and GELU compute no
  padding, and attention works on runs of equal length, so it needs no mask;
* query, key and value are one matrix product, with 1/√d folded into the query weights;
* weights are reordered once for oneDNN, and bias and GELU are fused into the product, where that is faster;
* attention works on a few rows at a time, so that its scores stay in the cache of one core (PyTorch's does
  that too, and is faster in fp32 without AVX-512);
* products run in bf16 if requested, while the residual stream and LayerNorm stay in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rag.core.errors import ConfigError
from rag.runtime.fast.packing import PackedTokens, pack
from rag.runtime.hardware import bound_kernel_caches, has_tested_torch, prefers_mkl, resolve_precision

_FAMILIES = frozenset({"bert", "dpr", "roberta", "xlm-roberta", "camembert"})
FUSED_ACTIVATIONS = {
    "gelu": ("gelu", "none"),
    "gelu_new": ("gelu", "tanh"),
    "gelu_pytorch_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
}
_SCORE_BYTES_IN_CACHE = 1 << 20
_SAFE_EXPONENT = 60.0  # e^±60 times a row of 10⁴ tokens is far inside the range of bf16 and fp32


class _Linear:
    """x Wᵀ + b with an optional activation; weights (N, K).

    They are reordered for oneDNN, which fuses the activation into the product. In fp32 without AVX-512 MKL's
    product is a tenth faster, and GELU by itself costs a fifth of what it costs fused.
    """

    def __init__(self, weight: Tensor, bias: Tensor, dtype: torch.dtype, activation: str = "") -> None:
        self.activation, self.algorithm = FUSED_ACTIVATIONS[activation] if activation else ("none", "")
        self.bias = bias.detach().to(dtype).clone()
        mkl = self.algorithm != "tanh" and prefers_mkl(dtype)
        self.packed = torch.backends.mkldnn.is_available() and not mkl
        weight = weight.detach().to(dtype)
        if self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.clone())
        else:
            self.weight = weight.t().clone(memory_format=torch.contiguous_format)  # (K, N)

    def __call__(self, x: Tensor) -> Tensor:
        if self.packed:
            result: Tensor = torch.ops.mkldnn._linear_pointwise(
                x, self.weight, self.bias, self.activation, [], self.algorithm
            )
            return result
        return activate_(torch.addmm(self.bias, x, self.weight), self.activation, self.algorithm)


def fuses_activation(activation: str, algorithm: str) -> bool:
    """Whether oneDNN's products should compute this activation; see `activate_`."""
    return not (activation == "gelu" and algorithm == "none" and prefers_mkl(torch.float32))


def activate_(y: Tensor, activation: str, algorithm: str) -> Tensor:
    """Apply "gelu" (with the algorithm "none" or "tanh"), "relu" or "none" to `y` in place."""
    if activation == "gelu":
        result: Tensor = torch.ops.aten.gelu_(y, approximate=algorithm)
        return result
    return y.relu_() if activation == "relu" else y


@dataclass(frozen=True, slots=True)
class Norm:
    """LayerNorm in fp32."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """(…, H) float32 from (…, H) float32."""
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True, slots=True)
class Layer:
    """The parts of one transformer layer; its linear parts may compute in any arithmetic."""

    qkv: Any
    attention_out: Any
    attention_norm: Norm
    up: Any
    down: Any
    norm: Norm


class FastBert:
    """A BERT-family encoder for inference on CPU over packed tokens.

    Args:
        state: weights under the names of transformers' `BertModel` (`embeddings.…`, `encoder.layer.0.…`).
        precision: "fp32", "bf16", or "auto" for the faster one on this machine.

    Raises:
        ConfigError: the architecture is not covered, see `supports`; or bf16 where the CPU has none.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> from rag.runtime.fast.packing import pack
        >>> config = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        ...                     intermediate_size=16)
        >>> model = FastBert.from_model(BertModel(config, add_pooling_layer=False).eval())
        >>> model.forward(pack([[1, 2, 3], [4, 5]])).shape
        torch.Size([5, 8])
    """

    def __init__(self, state: Mapping[str, Tensor], config: Any, *, precision: str = "fp32") -> None:
        if not self.supports(config):
            raise ConfigError(
                f"the fast encoder covers {', '.join(sorted(_FAMILIES))} with absolute positions, "
                f"found {getattr(config, 'model_type', '?')!r}, with {getattr(config, 'hidden_act', '?')!r}",
                hint="use the generic path of transformers for this model",
            )
        self.config, self.dtype = config, resolve_precision(precision)
        self.precision = "bf16" if self.dtype == torch.bfloat16 else "fp32"
        self._torch_attention = prefers_mkl(self.dtype)
        bound_kernel_caches()
        self.hidden_size: int = config.hidden_size
        self.n_heads: int = config.num_attention_heads
        self.head_size = self.hidden_size // self.n_heads
        roberta = config.model_type in ("roberta", "xlm-roberta", "camembert")
        self.position_offset = int(config.pad_token_id) + 1 if roberta else 0
        with torch.inference_mode():
            self._word = state["embeddings.word_embeddings.weight"].detach().float()
            self._position = state["embeddings.position_embeddings.weight"].detach().float().clone()
            self._segment = state["embeddings.token_type_embeddings.weight"].detach().float().clone()
            self._position_and_first_segment = self._position + self._segment[0]
            self._embedding_norm = self._norm(state, "embeddings.LayerNorm", config.layer_norm_eps)
            self._layers = [self._layer(state, number, config) for number in range(config.num_hidden_layers)]

    @staticmethod
    def supports(config: Any) -> bool:
        """Whether this class covers the architecture of `config`, and is tested with this torch."""
        return (
            getattr(config, "model_type", "") in _FAMILIES
            and getattr(config, "hidden_act", "") in FUSED_ACTIVATIONS
            and (getattr(config, "position_embedding_type", None) or "absolute") == "absolute"
            and not getattr(config, "is_decoder", False)
            and not getattr(config, "add_cross_attention", False)
            and has_tested_torch()
        )

    @classmethod
    def from_model(cls, model: nn.Module, *, precision: str = "fp32") -> FastBert:
        """Convert a transformers `BertModel` or `RobertaModel`, which is no longer needed afterwards."""
        return cls(model.state_dict(), model.config, precision=precision)

    def _norm(self, state: Mapping[str, Tensor], name: str, eps: float) -> Norm:
        return Norm(
            state[f"{name}.weight"].detach().float().clone(),
            state[f"{name}.bias"].detach().float().clone(),
            eps,
        )

    def _parts(self, state: Mapping[str, Tensor], number: int) -> dict[str, tuple[Tensor, Tensor]]:
        """(weight, bias) of a layer's linear parts, fp32; query, key, value as one, 1/√d folded into the
        query.
        """
        scale = 1.0 / math.sqrt(self.head_size)

        def both(name: str) -> tuple[Tensor, Tensor]:
            prefix = f"encoder.layer.{number}.{name}"
            return state[f"{prefix}.weight"].detach().float(), state[f"{prefix}.bias"].detach().float()

        (wq, bq), (wk, bk), (wv, bv) = (both(f"attention.self.{part}") for part in ("query", "key", "value"))
        return {
            "qkv": (torch.cat([wq * scale, wk, wv]), torch.cat([bq * scale, bk, bv])),
            "attention_out": both("attention.output.dense"),
            "up": both("intermediate.dense"),
            "down": both("output.dense"),
        }

    def _layer(self, state: Mapping[str, Tensor], number: int, config: Any) -> Layer:
        """The parts of one layer that `_project` and `_complete` need."""
        prefix, parts = f"encoder.layer.{number}", self._parts(state, number)
        return Layer(
            qkv=_Linear(*parts["qkv"], self.dtype),
            attention_out=_Linear(*parts["attention_out"], self.dtype),
            attention_norm=self._norm(state, f"{prefix}.attention.output.LayerNorm", config.layer_norm_eps),
            up=_Linear(*parts["up"], self.dtype, config.hidden_act),
            down=_Linear(*parts["down"], self.dtype),
            norm=self._norm(state, f"{prefix}.output.LayerNorm", config.layer_norm_eps),
        )

    @torch.inference_mode()
    def forward(self, tokens: PackedTokens) -> Tensor:
        """Last hidden states (T, H) float32."""
        return self.layers(self.embed(tokens), tokens, 0, self.depth)

    def padded(
        self, ids: Tensor, mask: Tensor, types: Tensor | None = None, seen: Tensor | None = None
    ) -> Tensor:
        """Last hidden states (n, L, H) float32 of token ids (n, L) padded on the right; 0 at padding.

        Args:
            mask: (n, L), 1 on tokens; `types` and `seen` as in `PackedTokens`, of the same shape.
        """
        real = mask.bool()
        packed = pack([row[own].tolist() for row, own in zip(ids, real, strict=True)])
        packed = replace(
            packed,
            segment_ids=None if types is None or not types.any() else types[real],
            seen=None if seen is None else seen[real].bool(),
        )
        hidden = torch.zeros(*ids.shape, self.hidden_size)
        hidden[real] = self.forward(packed)
        return hidden

    @torch.inference_mode()
    def layers(self, x: Tensor, tokens: PackedTokens, first: int, stop: int) -> Tensor:
        """Layers `first` to `stop` (exclusive) over (T, H) hidden states.

        A caller that stops midway may drop sequences (`PackedTokens.keep`) before it continues.
        """
        for number in range(first, stop):
            layer = self._layers[number]
            qkv = self._project(layer, number, x)  # (T, 3H)
            x = self._complete(layer, number, x, self._attend(qkv, tokens))
        return x

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self._layers)

    def _project(self, layer: Layer, number: int, x: Tensor) -> Tensor:
        """Scaled queries, keys and values: (T, 3H) in `self.dtype` from (T, H) float32."""
        qkv: Tensor = layer.qkv(x.to(self.dtype))
        return qkv

    def _complete(self, layer: Layer, number: int, x: Tensor, context: Tensor) -> Tensor:
        """The rest of a layer after attention. x (T, H) float32, context (T, H) → (T, H) float32."""
        x = layer.attention_norm(x + layer.attention_out(context))
        return self._feed_forward(layer, number, x)

    def _feed_forward(self, layer: Layer, number: int, x: Tensor) -> Tensor:
        result: Tensor = layer.norm(x + layer.down(layer.up(x.to(self.dtype))))
        return result

    @torch.inference_mode()
    def embed(self, tokens: PackedTokens) -> Tensor:
        """Input of the first layer: (T, H) float32."""
        positions = tokens.positions + self.position_offset
        if tokens.segment_ids is None:
            x = self._word[tokens.token_ids] + self._position_and_first_segment[positions]
        else:
            x = self._word[tokens.token_ids] + self._position[positions] + self._segment[tokens.segment_ids]
        return self._embedding_norm(x)

    def _attend(self, qkv: Tensor, tokens: PackedTokens) -> Tensor:
        """Self-attention inside each sequence. qkv (T, 3H) → (T, H)."""
        context = torch.empty(qkv.shape[0], self.hidden_size, dtype=self.dtype)
        heads, size = self.n_heads, self.head_size
        by_torch = self._torch_attention and tokens.seen is None
        start = 0
        for rows, length in tokens.groups:
            row_bytes = heads * length * length * qkv.element_size()
            step = rows if by_torch else max(1, min(rows, _SCORE_BYTES_IN_CACHE // row_bytes))
            for first in range(0, rows, step):
                n = min(step, rows - first)
                stop = start + n * length
                split = qkv[start:stop].view(n, length, 3, heads, size).permute(2, 0, 3, 1, 4)
                if by_torch:
                    q, k, v = split
                    mixed = functional.scaled_dot_product_attention(q, k, v, scale=1.0)
                else:
                    q, k, v = split.reshape(3, n * heads, length, size)
                    unseen = None
                    if tokens.seen is not None:
                        unseen = ~tokens.seen[start:stop].view(n, 1, length).repeat_interleave(heads, 0)
                    mixed = _softmax_product(q, k, v, unseen).view(n, heads, length, size)
                context[start:stop].view(n, length, heads, size).copy_(mixed.transpose(1, 2))
                start = stop
        return context


def _softmax_product(q: Tensor, k: Tensor, v: Tensor, unseen: Tensor | None = None) -> Tensor:
    """softmax(q kᵀ) v for (N, Lq, d), (N, L, d), (N, L, d); q is scaled already, `unseen` (N, 1, L) is
    masked.

    Softmax does not change when its inputs are shifted. Usually they are shifted by their maximum to keep the
    exponentials finite; where |q||k| bounds every exponent, the shift is left out, which saves two passes
    over the (N, Lq, L) scores.
    """
    largest = q.norm(dim=-1).amax() * k.norm(dim=-1).amax()
    scores = torch.bmm(q, k.transpose(1, 2))
    if unseen is not None:
        scores.masked_fill_(unseen, float("-inf"))
    if float(largest) < _SAFE_EXPONENT:
        weights = scores.exp_()
        return torch.bmm(weights, v).div_(weights.sum(-1, keepdim=True))
    return torch.bmm(torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype), v)
