"""The decoder's cross-attention to each passage, recorded in one pass by hooks."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rag.core.errors import ConfigError
from readers.generative.model import Memory, Seq2Seq

_PROJECTION = re.compile(r"(.*(?:EncDecAttention|encoder_attn|crossattention\.self))\.([qk])(_proj|uery|ey)?")


def passage_attention(seq2seq: Seq2Seq, memory: Memory) -> Tensor:
    r"""How much the decoder attends to each passage when it predicts the first token of an answer.

    It is the score before the softmax, averaged over layers, heads and the passage's tokens:

        G_i = 1/(L·H·|z_i|) Σ_l Σ_h Σ_{j ∈ z_i} q_{l,h}·k_{l,h,j}

    (divided by √d where the model divides: BART does, T5 does not). Tokens that are forced before every
    answer (BART's <s>) are left out, as they do not depend on passages.

    Args:
        seq2seq: in evaluation mode.
        memory: R rows of up to P passages.

    Returns:
        (R, P) float32, −inf where a row has fewer passages.

    Raises:
        ConfigError: the model has no cross-attention, or of a kind that is not known.

    Source:
        Izacard & Grave 2021, "Distilling Knowledge from Reader to Retriever", section 3.1.
    """
    if not seq2seq.crosses:
        raise ConfigError(
            f"{type(seq2seq.model).__name__} is a decoder alone and has no cross-attention to its passages",
            hint="use the signal likelihood",
        )
    total = torch.zeros(len(memory), max(memory.counts), device=memory.mask.device)
    owner, forced = memory.owner.clamp_min(0), len(seq2seq.prefix)
    with _captured(seq2seq.model) as calls, torch.inference_mode():
        seq2seq.logits(memory, seq2seq.targets([[]] * len(memory)))
        for attention, queries, keys in calls:
            heads = _heads(attention)
            q, k = _split(queries, heads), _split(keys, heads)  # (R, H, T, D), (R, H, S, D)
            # T5 does not divide by √d; layers that do not say divide
            scaling = float(getattr(attention, "scaling", q.shape[-1] ** -0.5))
            scores = q[:, :, forced, None].float() @ k.float().transpose(-1, -2) * scaling  # (R, H, 1, S)
            total.scatter_add_(1, owner, scores[:, :, 0].mean(1) * memory.mask)
    sizes = torch.zeros_like(total).scatter_add_(1, owner, memory.mask.float())  # 0 for absent passages
    return (total / len(calls) / sizes.clamp_min(1.0)).masked_fill(sizes == 0, float("-inf"))


@contextmanager
def _captured(model: nn.Module) -> Iterator[list[tuple[Any, Tensor, Tensor]]]:
    """(layer's attention, queries, keys) of every cross-attention, filled by the next forward."""
    calls: list[tuple[Any, Tensor, Tensor]] = []
    queries: dict[str, Tensor] = {}
    handles = []
    for name, module in model.named_modules():
        if (found := _PROJECTION.fullmatch(name)) is None:
            continue

        def keep(_: Any, __: Any, output: Tensor, owner: str = found[1], kind: str = found[2]) -> None:
            if kind == "q":
                queries[owner] = output
            else:
                calls.append((model.get_submodule(owner), queries[owner], output))

        handles.append(module.register_forward_hook(keep))
    if not handles:
        raise ConfigError(
            f"{type(model).__name__} has no cross-attention that is known here",
            hint="attention can be taken from T5-, BART- and BERT-like decoders; use a likelihood signal",
        )
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _split(states: Tensor, heads: int) -> Tensor:
    """(R, L, H·D) → (R, H, L, D)."""
    return states.view(*states.shape[:-1], heads, -1).transpose(1, 2)


def _heads(attention: Any) -> int:
    for name in ("n_heads", "num_heads", "num_attention_heads"):
        if hasattr(attention, name):
            return int(getattr(attention, name))
    raise ConfigError(f"{type(attention).__name__} does not say how many heads it has")
