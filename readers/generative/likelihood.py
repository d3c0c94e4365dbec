"""How likely an answer is from one passage alone, and how much is lost without it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from readers.generative.model import Memory, Seq2Seq

__all__ = ["leave_one_out", "passage_log_likelihood"]

_ROWS_AT_ONCE = 64


@torch.inference_mode()
def passage_log_likelihood(seq2seq: Seq2Seq, memory: Memory, answers: Sequence[Sequence[int]]) -> Tensor:
    """Mean log-probability of the answer's tokens given each passage alone: g_i = 1/|y| log p(y | q, z_i).

    The encoder is not run again: passages were encoded apart.

    Returns:
        (B, P) float32, −inf where a question has fewer passages.

    Source:
        Izacard et al. 2022, "Atlas", section 2.2 (perplexity distillation).
    """
    apart = memory.apart()
    asked = [b for b, count in enumerate(memory.counts) for _ in range(count)]
    values = []
    for begin in range(0, len(apart), _ROWS_AT_ONCE):
        part = range(begin, min(begin + _ROWS_AT_ONCE, len(apart)))
        labels = seq2seq.targets([answers[asked[i]] for i in part])
        values.append(_mean(seq2seq.token_log_probs(apart.rows(part), labels), labels))
    return _by_question(torch.cat(values), memory.counts)


@torch.inference_mode()
def leave_one_out(seq2seq: Seq2Seq, memory: Memory, answers: Sequence[Sequence[int]]) -> Tensor:
    """Mean negative log-probability of the answer's tokens without each passage: larger, more useful.

        g_i = −1/|y| log p(y | q, {z_j : j ≠ i})

    One decoder pass a passage; a question with a single passage gets 0: nothing is left to read.

    Returns:
        (B, P) float32, −inf where a question has fewer passages.

    Source:
        Izacard et al. 2022, "Atlas", section 2.2 (leave-one-out perplexity distillation).
    """
    labels = seq2seq.targets(answers)
    found = torch.full((len(memory), max(memory.counts)), float("-inf"))
    for passage in range(max(memory.counts)):
        rows = [b for b, count in enumerate(memory.counts) if passage < count]
        several = [b for b in rows if memory.counts[b] > 1]
        found[[b for b in rows if b not in several], passage] = 0.0
        if several:
            kept = labels[several]
            hidden = memory.without(passage).rows(several)
            found[several, passage] = -_mean(seq2seq.token_log_probs(hidden, kept), kept).float().cpu()
    return found


def _mean(log_probs: Tensor, labels: Tensor) -> Tensor:
    return log_probs.sum(1) / (labels != -100).sum(1)


def _by_question(values: Tensor, counts: Sequence[int]) -> Tensor:
    parts = values.cpu().split(list(counts))
    return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True, padding_value=float("-inf"))
