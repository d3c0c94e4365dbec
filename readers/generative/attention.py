"""The decoder's cross-attention to each passage, recorded in one pass by transformers' own
interface.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rag.core.errors import ConfigError
from readers.generative.model import Memory, Seq2Seq

_RECORDED = "recorded"  # name of the attention while it is recorded


def passage_attention(seq2seq: Seq2Seq, memory: Memory) -> Tensor:
    r"""How much the decoder attends to each passage when it predicts the first token of an answer.

    It is the score before the softmax, averaged over layers, heads and the passage's tokens:

        G_i = 1/(L·H·|z_i|) Σ_l Σ_h Σ_{j ∈ z_i} q_{l,h}·k_{l,h,j}

    (divided by √d where the model divides: BART does, T5 does not). Tokens that are forced before
    every answer (BART's <s>) are left out, as they do not depend on passages.

    Args:
        seq2seq: in evaluation mode.
        memory: R rows of up to P passages.

    Returns:
        (R, P) float32, −inf where a row has fewer passages.

    Raises:
        ConfigError: the model has no cross-attention that transformers' interface computes.

    Source:
        Izacard & Grave 2021, "Distilling Knowledge from Reader to Retriever", section 3.1.
    """
    layers: list[Tensor] = []  # the scores (R, S) by each layer with cross-attention

    def record(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, None]:
        if not module.is_causal:
            # (R, H, 1, S)
            scores = query[:, :, first, None].float() @ key.float().transpose(-1, -2)
            layers.append(scores[:, :, 0].mean(1) * module.scaling)
        return sdpa_attention_forward(module, query, key, value, mask, **options)

    ALL_ATTENTION_FUNCTIONS.register(_RECORDED, record)
    ALL_MASK_ATTENTION_FUNCTIONS.register(_RECORDED, sdpa_mask)
    model = seq2seq.model
    first = len(seq2seq.prefix)
    usual = model.config._attn_implementation
    model.set_attn_implementation(_RECORDED)
    try:
        with torch.inference_mode():
            seq2seq.logits(memory, seq2seq.targets([[]] * len(memory)))
    finally:
        model.set_attn_implementation(usual)
    if not layers:
        raise ConfigError(
            f"{type(model).__name__} has no cross-attention to its passages that can be recorded",
            hint="use the signal likelihood",
        )
    owner = memory.owner.clamp_min(0)
    total = torch.zeros(len(memory), max(memory.counts), device=memory.mask.device)
    for scores in layers:
        total.scatter_add_(1, owner, scores * memory.mask)
    # Tokens of each passage, 0 for an absent one.
    sizes = torch.zeros_like(total).scatter_add_(1, owner, memory.mask.float())
    return (total / len(layers) / sizes.clamp_min(1.0)).masked_fill(sizes == 0, float("-inf"))
