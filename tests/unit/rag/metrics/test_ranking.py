"""Retrieval figures against plain definitions and trec_eval itself."""

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from rag.metrics.ranking import average_rank, rank_figures, trec_measures

MEASURES = {
    "R@2": "recall_2",
    "RR": "recip_rank",
    "AP": "map",
    "nDCG@10": "ndcg_cut_10",
    "P@5": "P_5",
}
DOCS = [f"d{i}" for i in range(8)]
RUNS = st.dictionaries(
    st.sampled_from(["q1", "q2", "q3"]),
    st.dictionaries(st.sampled_from(DOCS), st.integers(0, 3), min_size=1),
    min_size=1,
)


@given(RUNS, RUNS)
@settings(max_examples=60, deadline=None)
def test_equal_to_trec_eval_for_a_ranking_in_its_order(scores: dict, qrels: dict) -> None:
    by_score_then_id = {  # both falling, as that program orders ties
        q: [d for d, _ in sorted(docs.items(), key=lambda pair: pair[::-1], reverse=True)]
        for q, docs in scores.items()
    }
    ours = trec_measures(by_score_then_id, qrels, list(MEASURES))
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, set(MEASURES.values()))
    theirs = evaluator.evaluate(
        {q: {d: float(s) for d, s in docs.items()} for q, docs in scores.items()}
    )
    relevant = {q for q, grades in qrels.items() if any(grades.values())}
    for name, official in MEASURES.items():
        assert set(ours[name]) == relevant
        for question, value in ours[name].items():
            assert value == pytest.approx(theirs[question][official] if question in theirs else 0.0)


def test_questions_without_ranking_score_zero_and_without_gold_are_left_out() -> None:
    names = ["RR", "MRR"]
    values = trec_measures({"q1": ["a"]}, {"q1": {"a": 1}, "q2": {"a": 1}, "q3": {"a": 0}}, names)
    assert values == {name: {"q1": 1.0, "q2": 0.0} for name in names}


@given(
    st.lists(st.one_of(st.none(), st.integers(1, 12)), max_size=8),
    st.sets(st.integers(1, 8), min_size=1),
)
def test_figures_of_ranks(ranks: list[int | None], ks: set[int]) -> None:
    figures = rank_figures(ranks, ks)
    assert set(figures) == {"mrr", *(f"top{k}" for k in ks)}
    for number, rank in enumerate(ranks):
        assert figures["mrr"][number] == (1 / rank if rank else 0.0)
        for k in ks:
            assert figures[f"top{k}"][number] == float(rank is not None and rank <= k)


def test_a_collapsed_or_broken_encoder_does_not_rank_perfectly() -> None:
    pool = np.ones((41, 4), np.float32)
    asked = np.ones((3, 4), np.float32)
    assert average_rank(asked, pool, [[0], [1], [2, 3]]) == pytest.approx((20 + 20 + 19.5) / 3)
    assert average_rank(asked * np.nan, pool, [[0], [1], [2]]) == 40
    assert average_rank(np.eye(3), np.eye(3), [[0], [1], [2]]) == 0
    assert (
        average_rank(np.float32([[1, 0]]), np.float32([[1, 0], [1, 5], [2, 0], [0, 1]]), [[0]])
        == 1.5
    )
