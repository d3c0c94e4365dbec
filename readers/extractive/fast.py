"""A span model for inference on CPUs: packed tokens, fused kernels, whole batches per core."""

from collections.abc import Mapping

import torch
from torch import Tensor

from rag.core.errors import ArtifactError, ConfigError
from rag.runtime.backbone import has_segments
from rag.runtime.fast.core_pool import CorePool
from rag.runtime.fast.fast_bert import FastBert
from rag.runtime.fast.packing import PackedTokens
from rag.runtime.hardware import has_fast_bf16, has_fast_int8, has_int8
from readers.extractive.model import Logits, LogitsModel, Skim, SpanModel, SpanWeights, read_out

_BATCH_TOKENS = 1024  # tokens that one core works on at a time; more do not fit its cache


class FastSpanModel(LogitsModel):
    """A `SpanModel` in evaluation mode, computed with `rag.runtime.fast.fast_bert`.

    Args:
        model: BERT-like, or its weights, which are copied.
        precision: of matrix products; the head and the residual stream are fp32. "fp32"; "bf16"; "int8" for
            the linear layers, with attention in bf16 where the hardware has it; or "auto", the fastest of
            these on this machine.
        ranges: ranges of the encoder's activations, which "int8" needs; without them "auto" is bf16 or fp32.

    Raises:
        ConfigError: "int8" without ranges, "int8" or "bf16" on a CPU that lacks it, or an unknown name.
        ArtifactError: the weights do not fit the configuration.
    """

    batch_tokens = _BATCH_TOKENS

    def __init__(
        self, model: SpanModel | SpanWeights, precision: str, ranges: Mapping[str, Tensor] | None = None
    ) -> None:
        super().__init__()
        weights = SpanWeights.of(model) if isinstance(model, SpanModel) else model
        spans = weights.layer("qa_outputs")
        if spans is None:
            raise ArtifactError("the weights do not fit the configuration: qa_outputs is missing")
        self.encoder = _encoder(weights, precision, ranges)
        self._heads = spans, weights.layer("passage_head")
        self._skim_head = weights.layer("skim_head")
        self.depth = self.encoder.depth
        self.skim_layer = weights.skim_layer if self._skim_head is not None else 0
        self._segmented = has_segments(weights.config)
        self.pool = CorePool()

    @staticmethod
    def supports(model: SpanModel | SpanWeights) -> bool:
        """Whether this class covers the architecture of `model`."""
        return FastBert.supports(model.encoder.config if isinstance(model, SpanModel) else model.config)

    def logits(self, ids: Tensor, mask: Tensor, token_types: Tensor, skim: Skim | None = None) -> Logits:
        """Logits, 0 at padding, and -inf of rows that `skim` drops; rows must be padded on the right."""
        mask = mask.bool()
        packed = PackedTokens.of(ids, mask, token_types if self._segmented else None)
        hidden = self.encoder.embed(packed)  # (T, H)
        skims, begin, fill = None, 0, 0.0
        chosen = torch.ones(len(mask), dtype=torch.bool)
        if skim is not None and self._skim_head is not None:
            begin, fill = self.skim_layer, -torch.inf
            hidden = self.encoder.layers(hidden, packed, 0, begin)
            early = torch.full(mask.shape, fill)
            early[mask] = self._skim_head(hidden).squeeze(-1)
            skims = early.masked_fill(~skim.inside, fill).logsumexp(1)  # (R,)
            chosen = skims >= skim.floor
            if chosen.any():
                packed, mine = packed.keep(chosen)
                hidden = hidden[mine]
        start, end = torch.full((2, *mask.shape), fill)
        relevance = words = None
        if chosen.any():
            hidden = self.encoder.layers(hidden, packed, begin, self.encoder.depth)
            logits = read_out(hidden, hidden[packed.starts()], *self._heads)
            places = mask & chosen[:, None]
            start[places], end[places] = logits.start, logits.end
            if logits.relevance is not None:
                relevance = torch.full((len(mask),), fill)
                relevance[chosen] = logits.relevance
            if logits.words is not None:
                words = torch.full((len(mask), 2), fill)
                words[chosen] = logits.words
        return Logits(start, end, relevance, words, skims)


def _encoder(weights: SpanWeights, precision: str, ranges: Mapping[str, Tensor] | None) -> FastBert:
    state, config = weights.encoder, weights.config
    floating = "bf16" if has_fast_bf16() else "fp32"
    if precision == "auto":
        precision = "int8" if ranges is not None and has_fast_int8() else floating
    if precision != "int8":
        return FastBert(state, config, precision=precision)
    if ranges is None:
        raise ConfigError(
            "this reader has no ranges of activations, which int8 inference needs",
            hint="use auto, bf16 or fp32; `rag train reader` measures ranges for the reader it writes",
        )
    if not has_int8():
        raise ConfigError(
            "precision is int8, and this CPU has neither AVX2 nor VNNI instructions",
            hint="use auto, which is the fastest that works here",
        )
    return FastBert(state, config, precision=floating, ranges=ranges)
