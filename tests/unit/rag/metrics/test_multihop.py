"""Multi-hop figures against plain definitions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag.metrics.multihop import multihop_scores, path_scores

DOCS = [f"d{i}" for i in range(8)]
PATHS = st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True), max_size=5)


@given(
    st.permutations(DOCS),
    st.sets(st.sampled_from([*DOCS, "absent"]), min_size=1),
    st.integers(1, 9),
)
def test_multihop_coverage(order: list[str], gold: set[str], k: int) -> None:
    scores = multihop_scores(order, gold, [k])
    top = set(order[:k])
    assert scores[f"passage_em@{k}"] == float(gold <= top)
    assert scores[f"passage_any@{k}"] == float(bool(gold & top))
    assert scores[f"passage_recall@{k}"] == pytest.approx(len(gold & top) / len(gold))


@given(
    PATHS, st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True), st.integers(1, 6)
)
def test_paths(paths: list[list[str]], gold: list[str], k: int) -> None:
    scores = path_scores(paths, gold, [k])
    assert scores[f"path_em@{k}"] == float(any(sorted(path) == sorted(gold) for path in paths[:k]))
    held = [key for path in paths[:k] for key in path]
    assert scores[f"path_cover@{k}"] == float(all(key in held for key in gold))
    for hop, key in enumerate(gold, start=1):
        assert scores[f"hop{hop}_recall@{k}"] == float(key in held)
    assert len(scores) == 2 + len(gold)
