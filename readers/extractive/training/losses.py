r"""Losses of extractive readers: likelihood of the right spans, and of the right passage.

With B questions, P passages each and S positions per passage (its tokens, and two more for "yes"
and "no" if the network has these outputs), P_s(t) is the softmax of the start logits over the
allowed positions t and P_e(t) that of the end logits; each passage's [CLS] is allowed and stands
for "no answer here".

| `spans` | spans whose likelihood is maximised for a question |
|---|---|
| first | the annotated span alone |
| marginal | all right spans of its positive passages, summed; of one passage in Karpukhin et al. 2020 |

| `normalisation` | the softmax runs over |
|---|---|
| shared | all passages of a question, so that a logit means the same in each (Clark and Gardner 2018) |
| passage | each passage for itself; `selection` then learns which passage to take |
"""

import torch

from readers.extractive.training.config import Normalisation


def _log_softmax(
    logits: torch.Tensor, allowed: torch.Tensor, normalisation: Normalisation
) -> torch.Tensor:
    """(B, P·S) logarithms of probabilities from (B, P, S) logits."""
    masked = logits.masked_fill(~allowed, torch.finfo(logits.dtype).min)
    if normalisation == "shared":
        return masked.flatten(1).log_softmax(-1)
    return masked.log_softmax(-1).flatten(1)


def span_loss(
    start_logits: torch.Tensor,
    end_logits: torch.Tensor,
    allowed: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    acceptable: torch.Tensor,
    *,
    has_answer: torch.Tensor | None = None,
    normalisation: Normalisation = "shared",
) -> torch.Tensor:
    r"""Negative log-likelihood of the acceptable spans A, averaged over questions.

        L = −½ log Σ_{(s,e)∈A} P_s(s)·P_e(e)

    Which spans are in A depends on the objective: one, those of one passage, or those of all.

    Args:
        start_logits, end_logits: (B, P, S) floating.
        allowed: (B, P, S) bool.
        starts, ends: (B, A) int64 positions in P·S; `acceptable` (B, A) bool marks the real ones.
        has_answer: (B,) bool; where False, A is the [CLS] of every passage of the question. None:
            all True.
        normalisation: see the module.

    Returns:
        A scalar.

    Source:
        Clark and Gardner 2018, "Simple and Effective Multi-Paragraph Reading Comprehension",
        section 3; Karpukhin et al. 2020, "Dense Passage Retrieval for Open-Domain Question
        Answering", equations 5 to 7.

    Note:
        The factor ½ keeps the scale of the usual mean of start and end cross-entropy. DPR's own
        code adds this loss, without the ½, and that of the passage selection up over a batch; AdamW
        does not notice. "No answer" is no hidden choice among the passages: all of them lack it. So
        the [CLS] of all passages count together: their probabilities are summed if the softmax is
        shared, and multiplied (their logarithms averaged) if each passage has its own.

    Example:
        >>> zeros = torch.zeros(1, 1, 4)
        >>> place = torch.tensor([[2]])
        >>> yes = torch.ones(1, 1, 4, dtype=torch.bool)
        >>> round(float(span_loss(zeros, zeros, yes, place, place, place > 0)), 4)
        1.3863
    """
    log_start = _log_softmax(start_logits, allowed, normalisation)  # (B, P·S)
    log_end = _log_softmax(end_logits, allowed, normalisation)
    pairs = log_start.gather(1, starts) + log_end.gather(1, ends)  # (B, A)
    masked = pairs.masked_fill(~acceptable, torch.finfo(pairs.dtype).min)
    value = masked.logsumexp(-1)
    if normalisation == "passage" and has_answer is not None:
        mean = pairs.masked_fill(~acceptable, 0.0).sum(-1) / acceptable.sum(-1).clamp_min(1)
        value = torch.where(has_answer, value, mean)
    return -0.5 * value.mean()


def teacher_loss(
    student: torch.Tensor, teacher: torch.Tensor, allowed: torch.Tensor, temperature: float
) -> torch.Tensor:
    r"""T²·KL(softmax(teacher/T) ‖ softmax(student/T)) over the allowed places, averaged over the
    rows.

    Args:
        student, teacher: (B, N) logits.
        allowed: (B, N) bool; one place at least in each row.
        temperature: T; the factor T² keeps the size of the gradient.

    Source:
        Hinton, Vinyals and Dean 2015, "Distilling the Knowledge in a Neural Network", section 2.

    Example:
        >>> even, sure = torch.zeros(1, 3), torch.tensor([[0.0, -99.0, 99.0]])
        >>> round(float(teacher_loss(even, sure, torch.tensor([[True, True, False]]), 1.0)), 4)
        0.6931
    """
    floor = torch.finfo(student.dtype).min
    log_q = (student / temperature).masked_fill(~allowed, floor).log_softmax(-1)
    log_p = (teacher / temperature).masked_fill(~allowed, floor).log_softmax(-1)
    divergence = (log_p.exp() * (log_p - log_q)).masked_fill(~allowed, 0.0)
    return temperature**2 * divergence.sum(-1).mean()


def marginal_loss(logits: torch.Tensor, allowed: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    r"""−log Σ_{n right} softmax(allowed logits)_n, averaged over the questions with a right
    position.

    Over passages it chooses the positive ones; with one positive it is the cross-entropy of DPR's
    passage selection.

    Args:
        logits: (B, N).
        allowed, right: (B, N) bool; questions without a right position do not count.

    Source:
        Karpukhin et al. 2020, equation 4.

    Example:
        >>> float(marginal_loss(torch.zeros(1, 2), *torch.ones(2, 1, 2, dtype=torch.bool)))
        -0.0
    """
    floor = torch.finfo(logits.dtype).min
    logp = logits.masked_fill(~allowed, floor).log_softmax(-1)
    value = logp.masked_fill(~right, floor).logsumexp(-1)  # (B,)
    counts = right.any(-1)
    return -torch.where(counts, value, torch.zeros_like(value)).sum() / counts.sum().clamp_min(1)
