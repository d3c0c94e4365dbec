"""The decoder's cross-attention to each passage, recorded in one pass by hooks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rag.core.errors import ConfigError
from readers.generative.model import Memory, Seq2Seq

AttentionKind = Literal["first-token", "norm"]

_PROJECTIONS = (("q", "k", "v"), ("q_proj", "k_proj", "v_proj"), ("query", "key", "value"))
_MODULES = ("EncDecAttention", "encoder_attn", "crossattention")


def passage_attention(seq2seq: Seq2Seq, memory: Memory, labels: Tensor, kind: AttentionKind) -> Tensor:
    """How much the decoder attends to each passage: the first return value of `attend`."""
    if not seq2seq.crosses:
        raise ConfigError(
            f"{type(seq2seq.model).__name__} is a decoder alone and has no cross-attention to its passages",
            hint="use the signal likelihood or leave-one-out",
        )
    if kind == "first-token":
        labels = labels[:, : len(seq2seq.prefix) + 1]
    return attend(seq2seq, memory, labels, kind)[0]


def attend(seq2seq: Seq2Seq, memory: Memory, labels: Tensor, kind: AttentionKind) -> tuple[Tensor, Tensor]:
    r"""How much the decoder attends to each passage while it generates the labels.

    "first-token" is the score before the softmax, at the step that predicts the answer's first token,
    averaged over layers, heads and the passage's tokens:

        G_i = 1/(L·H·|z_i|) Σ_l Σ_h Σ_{j ∈ z_i} q_{l,h}·k_{l,h,j}

    (divided by √d where the model divides: BART does, T5 does not). "norm" is the probability times the
    length of the value vector, over all T tokens of the answer and its end:

        g_i = 1/(L·H·T) Σ_l Σ_h Σ_t Σ_{j ∈ z_i} α_{l,h,t,j}·‖v_{l,h,j}‖

    A decoder without cross-attention attends to no passage more than to another: zeros.

    Tokens that are forced before every answer (BART's <s>) are left out, as they do not depend on passages.

    Args:
        seq2seq: in evaluation mode.
        memory: R rows of up to P passages.
        labels: (R, T) int64 as `Seq2Seq.targets` makes them.
        kind: which of the two.

    Returns:
        (R, P) float32, −inf where a row has fewer passages; and (R, T) log-probabilities of the labels, which
        the same pass gives.

    Raises:
        ConfigError: the architecture's cross-attention is not known.

    Source:
        Izacard & Grave 2021, "Distilling Knowledge from Reader to Retriever", section 3.1 (first token);
        Izacard et al. 2022, "Atlas", section 2.2 (ADist).
    """
    passages = max(memory.counts)
    if not seq2seq.crosses:
        with torch.inference_mode():
            return torch.zeros(len(memory), passages), seq2seq.token_log_probs(memory, labels)
    total = torch.zeros(len(memory), passages, device=memory.mask.device)
    layers, bias = 0, None
    forced = len(seq2seq.prefix)
    spoken = (labels != -100).float()  # (R, T)
    spoken[:, :forced] = 0.0
    owner = memory.owner.clamp_min(0)
    with _captured(seq2seq.model) as calls, torch.inference_mode():
        log_probs = seq2seq.token_log_probs(memory, labels)
        for attention, queries, keys, values in calls:
            heads = _heads(attention)
            q, k = _split(queries, heads), _split(keys, heads)  # (R, H, T, D), (R, H, S, D)
            # T5 does not divide by √d; layers that do not say divide
            scaling = float(getattr(attention, "scaling", q.shape[-1] ** -0.5))
            scores = (q.float() @ k.float().transpose(-1, -2)) * scaling
            if kind == "first-token":
                weight = scores[:, :, forced].mean(1) * memory.mask  # (R, S)
            else:
                if bias is None:  # the first layer's, shared
                    bias = _position_bias(attention, scores)
                hidden = memory.mask[:, None, None] == 0
                alpha = (scores + bias).masked_fill(hidden, float("-inf")).softmax(-1)
                length = _split(values, heads).float().norm(dim=-1)  # (R, H, S)
                weight = (alpha * spoken[:, None, :, None]).sum(2)  # (R, H, S)
                weight = (weight * length).mean(1) / spoken.sum(1, keepdim=True)
            total.scatter_add_(1, owner, weight * memory.mask)
            layers += 1
    if kind == "first-token":
        sizes = torch.zeros_like(total).scatter_add_(1, owner, memory.mask.float())
        total = total / sizes.clamp_min(1.0)
    counts = torch.tensor(memory.counts, device=total.device)
    absent = torch.arange(passages, device=total.device)[None] >= counts[:, None]
    return (total / layers).masked_fill(absent, float("-inf")), log_probs


@contextmanager
def _captured(model: nn.Module) -> Iterator[list[tuple[Any, Tensor, Tensor, Tensor]]]:
    """(layer's attention, queries, keys, values) of every cross-attention, filled by the next forward."""
    calls: list[tuple[Any, Tensor, Tensor, Tensor]] = []
    handles = []
    for name, module in model.named_modules():
        if name.rpartition(".")[2] not in _MODULES:
            continue
        inner = getattr(module, "self", module)  # BERT keeps the projections a level deeper
        names = next((names for names in _PROJECTIONS if hasattr(inner, names[0])), None)
        if names is None:
            continue
        kept: dict[int, Tensor] = {}
        for place, part in enumerate(names):

            def keep(_: Any, __: Any, output: Tensor, place: int = place, kept: Any = kept) -> None:
                kept[place] = output

            handles.append(getattr(inner, part).register_forward_hook(keep))

        def finish(_: Any, __: Any, ___: Any, inner: Any = inner, kept: Any = kept) -> None:
            calls.append((inner, kept.pop(0), kept.pop(1), kept.pop(2)))

        handles.append(module.register_forward_hook(finish))
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


def _position_bias(attention: Any, scores: Tensor) -> Tensor | float:
    if not getattr(attention, "has_relative_attention_bias", False):
        return 0.0
    bias: Tensor = attention.compute_bias(scores.shape[2], scores.shape[3])
    return bias.float()
