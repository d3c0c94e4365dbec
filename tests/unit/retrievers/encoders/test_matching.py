from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from indexers.index import Index
from indexers.index_writer import write_index
from indexers.settings import BuildSettings
from rag.core.types import Passage
from retrievers.encoders.matching import FEATURES, TokenMatch
from retrievers.encoders.static import StaticEncoder
from retrievers.hybrid import Fusion, HybridRetriever
from retrievers.open import open_retriever

QUESTION = "Who found the structure of penicillin?"
PASSAGES = [
    Passage(
        "a",
        "Dorothy Hodgkin",
        "She found the structure of penicillin by X-rays. " + "She lived. " * 50,
    ),
    Passage("b", "", "Penicillin is a group of antibiotics."),
    Passage("c", "", ""),
    Passage(
        "d",
        "The structure of penicillin",
        "Structure found. " + "Nothing else. " * 30 + "Penicillin.",
    ),
    Passage("e", "Rhine", "The Rhine ends in the North Sea"),
]


@pytest.fixture(scope="module")
def encoder() -> StaticEncoder:
    return StaticEncoder.load("static")


def by_hand(encoder: StaticEncoder, question: str, passage: Passage) -> list[float]:
    """The features of one pair, token by token."""

    def vectors(text: str) -> list[np.ndarray]:
        return [encoder.vectors[token] for token in encoder.tokens([text])[0]]

    def cosine(one: np.ndarray, other: np.ndarray) -> float:
        return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))

    def share(values: list[float], weights: list[float]) -> float:
        return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)

    asked, title = vectors(question), vectors(passage.title)
    passage_vectors = vectors(f"{passage.title} {passage.text}".strip())
    if not passage_vectors:
        return [0.0] * len(FEATURES)
    weights = [float(v @ v) for v in asked]
    windows = [passage_vectors[n : n + 32] for n in range(0, max(1, len(passage_vectors) - 16), 16)]
    whole = sum(passage_vectors) / len(passage_vectors)
    mean = sum(asked) / len(asked)
    ids = encoder.tokens([question])[0].tolist()
    own = encoder.tokens(encoder.rendered([passage.title], [passage.text]))[0].tolist()
    pairs, theirs = list(pairwise(ids)), set(pairwise(own))
    return [
        cosine(mean, whole),
        share([max(cosine(q, p) for p in passage_vectors) for q in asked], weights),
        max(
            share([max(cosine(q, p) for p in window) for q in asked], weights) for window in windows
        ),
        share([float(pair in theirs) for pair in pairs], [x + y for x, y in pairwise(weights)]),
        share(
            [max(0.0, *(cosine(q, t) for q in asked)) ** 2 for t in title],
            [float(t @ t) for t in title],
        )
        if title
        else 0.0,
        max(float(p @ mean) for p in passage_vectors)
        / np.linalg.norm(mean)
        / np.sqrt((encoder.vectors**2).sum(axis=1).mean()),
    ]


def test_features_are_those_of_every_pair_of_tokens(encoder: StaticEncoder) -> None:
    expected = np.array([by_hand(encoder, QUESTION, passage) for passage in PASSAGES])
    assert len(np.unique(expected[:, FEATURES.index("window")].round(3))) > 3
    np.testing.assert_allclose(
        TokenMatch(encoder).features(QUESTION, PASSAGES), expected, atol=2e-5
    )


def test_the_score_of_a_pair_depends_on_nothing_else(encoder: StaticEncoder) -> None:
    match = TokenMatch(encoder)
    questions = [QUESTION, QUESTION, "rhine", "", "rhine"]
    together = match.score(questions, PASSAGES)
    alone = [match.score([q], [p])[0] for q, p in zip(questions, PASSAGES, strict=True)]
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert together[3] == 0
    assert len(set(together.tolist())) == 4
    assert len(match.score([], [])) == 0


@pytest.fixture(scope="module")
def index_folder(tmp_path_factory: pytest.TempPathFactory, encoder: StaticEncoder) -> Path:
    documents, folder = [p for p in PASSAGES if p.text], tmp_path_factory.mktemp("hybrid") / "index"
    return write_index(
        folder, documents, encoder=encoder, settings=BuildSettings(retriever="hybrid")
    ).directory


def without_matching(index: Index) -> HybridRetriever:
    """Its fused scores alone."""
    plain = open_retriever(index, "hybrid")
    assert isinstance(plain, HybridRetriever)
    plain.matching = None
    return plain


def test_only_the_first_hits_are_matched(
    index_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retrievers.hybrid._MATCH_DEPTH", 2)
    with Index.open(index_folder) as index:
        matching = open_retriever(index, "hybrid")
        plain = without_matching(index)
        first = [hit.row for hit in plain.search([QUESTION], 3)[0]]
        assert len(first) == 3
        assert {hit.row for hit in matching.search([QUESTION], 1)[0]} < set(first[:2])
        assert {hit.row for hit in matching.search([QUESTION], 3)[0]} == set(
            first
        )  # all that are wanted


def test_hybrid_search_with_static_vectors_matches_words(index_folder: Path) -> None:
    with Index.open(index_folder) as index:
        matching = open_retriever(index, "hybrid")
        plain = without_matching(index)
        assert isinstance(matching, HybridRetriever)
        assert matching.matching is not None
        fused = {hit.row: hit.score for hit in plain.search([QUESTION], 10)[0]}
        hits = matching.search([QUESTION], 10)[0]
        added = matching.matching.score(
            [QUESTION] * len(hits), [index.passages[hit.row] for hit in hits]
        )
        np.testing.assert_allclose([hit.score - fused[hit.row] for hit in hits], added, atol=1e-4)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert [hit.row for hit in matching.search([QUESTION], 2)[0]] == [
            hit.row for hit in hits[:2]
        ]
        assert str(matching.fusion) == "zscore:1,1.4"  # of a network it is zscore:1,0.7
        other = open_retriever(index, "hybrid", fusion=Fusion.parse("rrf60:1,1"))
        assert isinstance(other, HybridRetriever)
        assert other.matching is None
