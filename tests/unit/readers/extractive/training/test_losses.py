"""Every objective against loops over its equation."""

import itertools

import numpy as np
import pytest
import torch

from readers.extractive.training.losses import marginal_loss, span_loss

QUESTIONS, PASSAGES, SIZE = 5, 3, 7
CLS = [(p * SIZE, p * SIZE) for p in range(PASSAGES)]
SPANS = [[(8, 10)], [(1, 2), (15, 18)], CLS, [(3, 3), (2, 5), (9, 9)], CLS]
HAS_ANSWER = [True, True, False, True, False]


def case(seed: int = 3) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    start, end = torch.randn(2, QUESTIONS, PASSAGES, SIZE, generator=draw, dtype=torch.float64)
    allowed = torch.rand(QUESTIONS, PASSAGES, SIZE, generator=draw) < 0.7
    allowed[..., 0] = True
    widest = max(map(len, SPANS))
    starts, ends = torch.zeros(2, QUESTIONS, widest, dtype=torch.int64)
    acceptable = torch.zeros(QUESTIONS, widest, dtype=torch.bool)
    for question, spans in enumerate(SPANS):
        for column, (first, last) in enumerate(spans):
            starts[question, column], ends[question, column] = first, last
            acceptable[question, column] = True
            allowed[question].view(-1)[[first, last]] = True
    return {
        "start_logits": start,
        "end_logits": end,
        "allowed": allowed,
        "starts": starts,
        "ends": ends,
        "acceptable": acceptable,
    }


def brute_loss(inputs: dict[str, torch.Tensor], normalisation: str) -> float:
    """The docstring's equation, question by question, with loops."""
    start, end, allowed = (inputs[k].numpy() for k in ("start_logits", "end_logits", "allowed"))
    values = []
    for q in range(QUESTIONS):

        def chance(logits: np.ndarray, position: int, q: int = q) -> float:
            places = list(itertools.product(range(PASSAGES), range(SIZE)))
            if normalisation == "passage":
                places = [(p, t) for p, t in places if p == position // SIZE]
            whole = sum(np.exp(logits[q, p, t]) for p, t in places if allowed[q, p, t])
            return float(np.exp(logits[q].reshape(-1)[position]) / whole)

        chances = [chance(start, first) * chance(end, last) for first, last in SPANS[q]]
        if not HAS_ANSWER[q] and normalisation == "passage":
            values.append(np.mean(np.log(chances)))
        else:
            values.append(np.log(sum(chances)))
    return -0.5 * float(np.mean(values))


@pytest.mark.parametrize("normalisation", ["shared", "passage"])
def test_span_losses_equal_their_equation(normalisation: str) -> None:
    inputs = case()
    result = span_loss(**inputs, has_answer=torch.tensor(HAS_ANSWER), normalisation=normalisation)  # type: ignore[arg-type]
    assert float(result) == pytest.approx(brute_loss(inputs, normalisation))


def test_the_choice_of_passages_equals_its_equation() -> None:
    torch.manual_seed(1)
    logits = torch.randn(3, 10, dtype=torch.float64)
    allowed = torch.rand(3, 10) < 0.8
    right = torch.zeros(3, 10, dtype=torch.bool)
    right[0, 7:9], right[2, 0] = True, True  # the second question has no answer here
    chances = logits.exp() * (allowed | right)
    chances = chances / chances.sum(1, keepdim=True)
    expected = -(torch.log(chances[0, 7] + chances[0, 8]) + torch.log(chances[2, 0])) / 2
    assert float(marginal_loss(logits, allowed | right, right)) == pytest.approx(float(expected))
