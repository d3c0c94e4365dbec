"""Fast inference of BERT-family encoders on CPU.

Equal results to transformers' `BertModel` in evaluation mode, with less work:

* sequences are packed (T tokens end to end), so linear layers, LayerNorm and GELU compute no
  padding, and attention works on runs of neighbours of equal length, so it needs no mask: sort them
  by length before;
* query, key and value are one matrix product, with 1/√d folded into the query weights;
* weights are reordered once for oneDNN, and bias and GELU are fused into the product;
* attention works on a few rows at a time, so that its scores stay in the cache of one core;
* products run in bf16 or int8 if requested, while the residual stream and LayerNorm stay in fp32.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rag.runtime.fast.linear import CalibratedLinear, Linear, RowLinear
from rag.runtime.hardware import bound_kernel_caches, has_tested_torch, resolve_precision

_ROBERTAS = ("roberta", "xlm-roberta", "camembert")
_FAMILIES = ("bert", "dpr", *_ROBERTAS)
_LEAST_GELU = -0.17
_ATTENTION = ("attention.self.query", "attention.self.key", "attention.self.value")
# Tokens whose (tokens, 4H) intermediates stay in the cache of one core, and scores that do.
_BLOCK_TOKENS = 512
_SCORE_BYTES_IN_CACHE = 1 << 20
# e^±60 times a row of 10⁴ tokens is far inside the range of bf16 and fp32.
_SAFE_EXPONENT = 60.0


@dataclass(slots=True)
class _Layer:
    """The parts of one transformer layer; its linear parts may compute in any arithmetic."""

    qkv: Any
    attention_out: Any
    attention_norm: Any
    up: Any
    down: Any
    norm: Any


class FastBert:
    """A BERT-family encoder, one that it `supports`, for inference on CPU over packed tokens.

    Args:
        state: weights under the names of transformers' `BertModel` (`embeddings.…`,
            `encoder.layer.0.…`).
        precision: "fp32", "bf16", or "auto" for the faster one on this machine.
        ranges: what `RangeRecorder` measured on text: linear layers compute in int8, attention in
            `precision`. Integer products are exact, so a token's numbers do not depend on the other
            tokens of the batch.

    Attributes:
        precision: "fp32", "bf16" or "int8".
        depth: number of layers.

    Raises:
        ConfigError: bf16 where the CPU has none.
    """

    def __init__(
        self,
        state: Mapping[str, Tensor],
        config: Any,
        *,
        precision: str = "fp32",
        ranges: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.config = config
        self.dtype = resolve_precision(precision)
        self.precision = "bf16" if self.dtype == torch.bfloat16 else "fp32"
        if ranges is not None:
            self.precision = "int8"
        bound_kernel_caches()
        self.hidden_size: int = config.hidden_size
        self.depth: int = config.num_hidden_layers
        self.n_heads: int = config.num_attention_heads
        self.head_size = self.hidden_size // self.n_heads
        self.position_offset = 0
        if config.model_type in _ROBERTAS:
            self.position_offset = int(config.pad_token_id) + 1
        weights = {name: tensor.detach().float() for name, tensor in state.items()}
        with torch.inference_mode():
            self._word = weights["embeddings.word_embeddings.weight"]
            self._position = weights["embeddings.position_embeddings.weight"].clone()
            self._segment = weights["embeddings.token_type_embeddings.weight"].clone()
            self._position_and_first_segment = self._position + self._segment[0]
            self._embedding_norm = self._norm(weights, "embeddings.LayerNorm")
            self._layers = [self._layer(weights, number, ranges) for number in range(self.depth)]

    @staticmethod
    def supports(config: Any) -> bool:
        """Whether this class covers the architecture of `config`, and is tested with this torch."""
        return (
            getattr(config, "model_type", "") in _FAMILIES
            and getattr(config, "hidden_act", "") == "gelu"
            and (getattr(config, "position_embedding_type", None) or "absolute") == "absolute"
            and not getattr(config, "is_decoder", False)
            and not getattr(config, "add_cross_attention", False)
            and torch.backends.mkldnn.is_available()
            and has_tested_torch()
        )

    def _layer(
        self, weights: Mapping[str, Tensor], number: int, ranges: Mapping[str, Tensor] | None
    ) -> _Layer:
        prefix = f"encoder.layer.{number}"

        def linear(name: str) -> tuple[Tensor, Tensor]:
            return weights[f"{prefix}.{name}.weight"], weights[f"{prefix}.{name}.bias"]

        (wq, bq), (wk, bk), (wv, bv) = map(linear, _ATTENTION)
        # 1/√d is folded into the queries.
        scale = 1.0 / math.sqrt(self.head_size)
        qkv = (torch.cat([wq * scale, wk, wv]), torch.cat([bq * scale, bk, bv]))
        out = linear("attention.output.dense")
        up = linear("intermediate.dense")
        down = linear("output.dense")
        norms = {
            "attention_norm": self._norm(weights, f"{prefix}.attention.output.LayerNorm"),
            "norm": self._norm(weights, f"{prefix}.output.LayerNorm"),
        }
        if ranges is None:
            return _Layer(
                qkv=Linear(*qkv, self.dtype),
                attention_out=Linear(*out, self.dtype),
                up=Linear(*up, self.dtype, gelu=True),
                down=Linear(*down, self.dtype),
                **norms,
            )
        return _Layer(
            qkv=CalibratedLinear(*qkv, *ranges[f"{number}.attention"], dtype=self.dtype),
            attention_out=RowLinear(*out),
            up=CalibratedLinear(*up, *ranges[f"{number}.feed"], gelu=True),
            down=RowLinear(*down, least=_LEAST_GELU),
            **norms,
        )

    @torch.inference_mode()
    def padded(
        self, ids: Tensor, mask: Tensor, types: Tensor | None = None, seen: Tensor | None = None
    ) -> Tensor:
        """Last hidden states (n, L, H) float32 of token ids (n, L) padded on the right; 0 at
        padding.

        Args:
            mask: (n, L), 1 on tokens.
            types: (n, L) segments; None: all are 0.
            seen: (n, L), 1 on the tokens that the others of their sequence attend to; None: on all.
        """
        real = mask.bool()
        hidden = torch.zeros(*ids.shape, self.hidden_size)
        packed = None if seen is None else seen[real].bool()
        lengths = real.sum(1).tolist()
        hidden[real] = self.layers(self.embed(ids, real, types), lengths, seen=packed)
        return hidden

    @torch.inference_mode()
    def layers(self, x: Tensor, lengths: Sequence[int], *, seen: Tensor | None = None) -> Tensor:
        """All layers over (T, H) float32 hidden states, which may be overwritten.

        Args:
            lengths: tokens of each sequence, T in all.
            seen: (T,) bool, see `padded`.
        """
        runs = [(len(list(run)), length) for length, run in groupby(lengths)]
        for layer in self._layers:
            context = self._attend(layer.qkv(x), runs, seen)
            x = layer.attention_norm(layer.attention_out.add_to(x, context))
            for block in x.split(_BLOCK_TOKENS):
                layer.down.add_to(block, layer.up(block))
            x = layer.norm(x)
        return x

    @torch.inference_mode()
    def embed(self, ids: Tensor, mask: Tensor, types: Tensor | None = None) -> Tensor:
        """Input of the first layer, (T, H) float32, for the tokens of (n, L) `ids` where `mask` is
        True.
        """
        positions = (torch.arange(ids.shape[1]) + self.position_offset).expand_as(ids)[mask]
        if types is None or not types.any():
            x = self._word[ids[mask]] + self._position_and_first_segment[positions]
        else:
            x = self._word[ids[mask]] + self._position[positions] + self._segment[types[mask]]
        return self._embedding_norm(x)

    def _attend(self, qkv: Tensor, runs: Sequence[tuple[int, int]], seen: Tensor | None) -> Tensor:
        """Self-attention inside each sequence, by runs of (sequences, length). qkv (T, 3H) → (T,
        H).
        """
        context = torch.empty(qkv.shape[0], self.hidden_size, dtype=self.dtype)
        heads = self.n_heads
        size = self.head_size
        start = 0
        for rows, length in runs:
            step = max(1, _SCORE_BYTES_IN_CACHE // (heads * length * length * qkv.element_size()))
            for first in range(0, rows, step):
                n = min(step, rows - first)
                stop = start + n * length
                split = qkv[start:stop].view(n, length, 3, heads, size).permute(2, 0, 3, 1, 4)
                unseen = None
                if seen is not None:
                    unseen = ~seen[start:stop].view(n, 1, length).repeat_interleave(heads, 0)
                q, k, v = split.reshape(3, n * heads, length, size)
                mixed = _softmax_product(q, k, v, unseen).view(n, heads, length, size)
                context[start:stop].view(n, length, heads, size).copy_(mixed.transpose(1, 2))
                start = stop
        return context

    def _norm(self, weights: Mapping[str, Tensor], name: str) -> Callable[[Tensor], Tensor]:
        """LayerNorm in fp32."""
        weight = weights[f"{name}.weight"].clone()
        return partial(
            functional.layer_norm,
            normalized_shape=weight.shape,
            weight=weight,
            bias=weights[f"{name}.bias"].clone(),
            eps=self.config.layer_norm_eps,
        )


class RangeRecorder(FastBert):
    """A `FastBert` in fp32 that records the least and greatest value of every channel that int8
    quantises.

    Attributes:
        ranges: "0.attention", "0.feed", "1.attention", … → (2, H) float32, least and greatest so
            far.
    """

    def __init__(self, state: Mapping[str, Tensor], config: Any) -> None:
        super().__init__(state, config)
        self.ranges: dict[str, Tensor] = {}
        self._lock = threading.Lock()
        for number, layer in enumerate(self._layers):
            layer.qkv = partial(self._note, f"{number}.attention", layer.qkv)
            layer.up = partial(self._note, f"{number}.feed", layer.up)

    def _note(self, name: str, linear: Linear, x: Tensor) -> Tensor:
        with self._lock:
            # Those before are two more rows.
            seen = torch.cat([self.ranges[name], x]) if name in self.ranges else x
            self.ranges[name] = torch.stack([seen.amin(0), seen.amax(0)])
        return linear(x)


def _softmax_product(q: Tensor, k: Tensor, v: Tensor, unseen: Tensor | None = None) -> Tensor:
    """softmax(q kᵀ) v for (N, L, d) each; q is scaled already, `unseen` (N, 1, L) is masked.

    Softmax does not change when its inputs are shifted. Usually they are shifted by their maximum
    to keep the exponentials finite; where |q||k| bounds every exponent, the shift is left out,
    which saves two passes over the (N, L, L) scores.
    """
    largest = q.norm(dim=-1).amax() * k.norm(dim=-1).amax()
    scores = torch.bmm(q, k.transpose(1, 2))
    if unseen is not None:
        scores.masked_fill_(unseen, float("-inf"))
    if float(largest) < _SAFE_EXPONENT:
        weights = scores.exp_()
        return torch.bmm(weights, v).div_(weights.sum(-1, keepdim=True))
    return torch.bmm(torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype), v)
