"""RAG's decodings against every answer that there is, scored one by one."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from readers.generative.marginal import Hypothesis, answer_log_likelihood, decode, posterior
from readers.generative.model import Seq2Seq
from tests.tiny_generator import random_seq2seq

START, END, PAD, WORDS, LONGEST = 1, 2, 0, 7, 3
PASSAGES = [[[3, 4, 5, 2], [5, 6, 2], [6, 6, 3, 4, 2]], [[4, 2], [6, 5, 4, 2]]]
SCORES = [torch.tensor([0.4, -0.2, 0.9]), torch.tensor([1.0, 0.0])]
ALL = [
    tuple(ids)
    for n in range(LONGEST + 1)
    for ids in product([w for w in range(WORDS) if w != END], repeat=n)
]


def tiny(kind: str, forced: int | None = None) -> Seq2Seq:
    model = random_seq2seq(kind, WORDS, pad=PAD, start=START, end=END, seed=3)
    model.generation_config.forced_bos_token_id = forced
    names = {"bos_token_id": START, "eos_token_id": END, "pad_token_id": PAD, "sep_token_id": None}
    return Seq2Seq(model, SimpleNamespace(**names))


def read(ours: Seq2Seq) -> Any:
    with torch.no_grad():
        return ours.encode([[ids] for passages in PASSAGES for ids in passages])


@torch.no_grad()
def everything(ours: Seq2Seq, question: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(A, K, T) log-probabilities of all answers under each passage by itself, and which tokens
    count.
    """
    labels = ours.targets(ALL)
    memory = ours.encode([[ids] for ids in PASSAGES[question]])
    each = [ours.token_log_probs(memory.rows([k] * len(ALL)), labels) for k in range(len(memory))]
    return torch.stack(each, 1), labels >= 0


def ranked(hypotheses: list[Hypothesis]) -> list[tuple[int, ...]]:
    return [hypothesis.ids for hypothesis in hypotheses]


@pytest.mark.parametrize("forced", [None, 4])
@pytest.mark.parametrize(("kind", "marginal"), product(("bart", "t5"), ("sequence", "token")))
def test_wide_beams_find_the_likeliest_answers_of_all(
    kind: str, marginal: Any, forced: int | None
) -> None:
    ours = tiny(kind, forced)
    result = decode(ours, read(ours), SCORES, marginal=marginal, answer_tokens=LONGEST, beams=300)
    for question, hypotheses in enumerate(result):
        logp, spoken = everything(ours, question)
        scores = SCORES[question].expand(len(ALL), -1)
        values = answer_log_likelihood(marginal, scores, logp)
        best = values.topk(5)
        assert ranked(hypotheses)[:5] == [ALL[i] for i in best.indices.tolist()]
        assert [h.score for h in hypotheses[:5]] == pytest.approx(best.values.tolist(), abs=1e-4)
        weights = posterior(marginal, scores, logp, spoken)[best.indices[0]].tolist()
        assert list(hypotheses[0].weights) == pytest.approx(weights, abs=1e-4)
        if forced is None and marginal == "sequence":
            assert float(values.exp().sum()) < 1.001  # of all whole answers of at most three tokens


@pytest.mark.parametrize("beams", [1, 2])
def test_an_answer_counts_under_all_passages_whichever_found_it(beams: int) -> None:
    ours = tiny("bart")
    memory = read(ours)

    def found(part: Any, scores: list[torch.Tensor]) -> list[list[Hypothesis]]:
        return decode(ours, part, scores, marginal="sequence", answer_tokens=LONGEST, beams=beams)

    begin = 0
    for question, hypotheses in enumerate(found(memory, SCORES)):
        prior = SCORES[question].log_softmax(0)
        whole = everything(ours, question)[0].sum(2)  # (A, K)
        rows = range(begin, begin + len(prior))
        begin += len(prior)
        alone = [found(memory.rows([row]), [torch.zeros(1)])[0] for row in rows]
        assert set(ranked(hypotheses)) == {ids for mine in alone for ids in ranked(mine)}
        for hypothesis in hypotheses:
            joint = prior + whole[ALL.index(hypothesis.ids)]
            assert hypothesis.score == pytest.approx(float(joint.logsumexp(0)), abs=1e-4)
            assert hypothesis.weights == pytest.approx(joint.softmax(0).tolist(), abs=1e-4)
