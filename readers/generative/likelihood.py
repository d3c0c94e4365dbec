"""The likelihood of an answer given each passage alone, or given all passages but one."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from readers.generative.model import Memory, Seq2Seq

_ROWS_AT_ONCE = 64


@torch.inference_mode()
def passage_log_likelihood(seq2seq: Seq2Seq, memory: Memory, answers: Sequence[Sequence[int]]) -> Tensor:
    """Mean log-probability of the answer's tokens given each passage alone: g_i = 1/|y| log p(y | q, z_i).

    The encoder is not run again, because passages were encoded separately.

    Returns:
        (B, P) float32, −inf where a question has fewer passages.

    Source:
        Izacard et al. 2022, "Atlas", section 2.2 (perplexity distillation).
    """
    apart = memory.apart()
    owners = [b for b, count in enumerate(memory.counts) for _ in range(count)]
    values = []
    for begin in range(0, len(apart), _ROWS_AT_ONCE):
        part = range(begin, min(begin + _ROWS_AT_ONCE, len(apart)))
        labels = seq2seq.targets([answers[owners[i]] for i in part])
        values.append(_mean(seq2seq.token_log_probs(apart.rows(part), labels), labels))
    return _by_question(torch.cat(values).cpu(), memory.counts, float("-inf"))


@torch.inference_mode()
def leave_one_out(seq2seq: Seq2Seq, memory: Memory, answers: Sequence[Sequence[int]]) -> Tensor:
    """Mean negative log-probability of the answer's tokens without each passage: larger, more useful.

        g_i = −1/|y| log p(y | q, {z_j : j ≠ i})

    It takes one decoder pass per passage. A question with a single passage gets 0, as nothing is left to
    read.

    Returns:
        (B, P) float32, −inf where a question has fewer passages.

    Source:
        Izacard et al. 2022, "Atlas", section 2.2 (leave-one-out perplexity distillation).
    """
    labels = seq2seq.targets(answers)
    found = torch.full((len(memory), max(memory.counts)), float("-inf"))
    found[[b for b, count in enumerate(memory.counts) if count == 1], 0] = 0.0
    for passage in range(max(memory.counts)):
        several = [b for b, count in enumerate(memory.counts) if count > 1 and passage < count]
        if several:
            kept = labels[several]
            hidden = memory.without(passage).rows(several)
            found[several, passage] = -_mean(seq2seq.token_log_probs(hidden, kept), kept).float().cpu()
    return found


def read_apart(
    seq2seq: Seq2Seq,
    apart: Memory,
    counts: Sequence[int],
    answers: Sequence[Sequence[int]],
    words: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Log-likelihood of the answer given each passage alone.

    Args:
        apart: one row per passage.
        counts: passages of each question.
        words: also return the log-probabilities of the whole vocabulary.

    Returns:
        (B, K, T) log-probabilities of the answer's tokens, 0 after its end and where a question has fewer
        passages; (B, T) bool mask of its tokens; and (B, K, T, V) those of the whole vocabulary, or None.
    """
    labels = seq2seq.targets(answers)  # (B, T)
    owners = torch.repeat_interleave(torch.tensor(list(counts)))
    targets = labels[owners.to(labels.device)]  # (R, T)
    everything = seq2seq.logits(apart, targets).log_softmax(-1) if words else None
    if everything is None:
        logp = seq2seq.token_log_probs(apart, targets)
    else:
        logp = everything.gather(2, targets.clamp_min(0)[:, :, None])[:, :, 0].masked_fill(targets < 0, 0.0)
    each = None if everything is None else _by_question(everything, counts)
    return _by_question(logp, counts), labels >= 0, each


def _mean(log_probs: Tensor, labels: Tensor) -> Tensor:
    return log_probs.sum(1) / (labels != -100).sum(1)


def _by_question(values: Tensor, counts: Sequence[int], absent: float = 0.0) -> Tensor:
    return pad_sequence(list(values.split(list(counts))), batch_first=True, padding_value=absent)
