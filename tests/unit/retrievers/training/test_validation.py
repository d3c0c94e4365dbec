"""Validation figures, against brute force."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rag.core.errors import DataError
from rag.core.types import Passage, Query
from rag.data.examples import Example
from retrievers.training import validation
from retrievers.training.validation import CorpusSearch, pool_rank, retrieval_scores


class _Store(list[Passage]):
    def get_many(self, rows: Any) -> list[Passage]:
        return [self[row] for row in rows]


class _Encoder:
    """A vector that depends on the text alone."""

    def _vectors(self, texts: Sequence[str]) -> Any:
        seeds = [sum((n + 1) * ord(letter) for n, letter in enumerate(text)) for text in texts]
        return np.stack([np.random.default_rng(seed).normal(size=8) for seed in seeds]).astype(np.float32)

    def encode_queries(self, queries: Sequence[Query]) -> Any:
        return self._vectors([" ".join((q.question, *(p.text for p in q.passages))) for q in queries])

    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Any:
        return self._vectors([f"{title} {text}" for title, text in zip(titles, texts, strict=True)])


def _corpus(count: int) -> _Store:
    return _Store(Passage(str(n), f"title {n % 7}", f"text number {n} says w{n}") for n in range(count))


def _examples(corpus: _Store, count: int) -> list[Example]:
    return [
        Example.labelled(
            str(n),
            f"question {n}",
            (f"w{5 * n}",),
            (corpus[5 * n], corpus[5 * n + 1]),
            (corpus[n],),
        )
        for n in range(count)
    ]


def _ranks(corpus: _Store, examples: list[Example]) -> list[int]:
    encoder = _Encoder()
    vectors = encoder.encode_passages([p.title for p in corpus], [p.text for p in corpus])
    found = []
    for example in examples:
        scores = (encoder.encode_queries([example.query]) @ vectors.T)[0]
        order = np.argsort(-scores, kind="stable").tolist()
        found.append(1 + min(order.index(corpus.index(positive)) for positive in example.positives))
    return found


def test_search_equals_brute_force_whatever_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = _corpus(300)
    examples = _examples(corpus, 20)
    expected = retrieval_scores(_ranks(corpus, examples))
    for block in (7, 64, 8192):
        monkeypatch.setattr(validation, "_BLOCK", block)
        assert CorpusSearch(corpus, examples).measure(_Encoder()) == pytest.approx(expected)
    assert 0 < expected["mrr"] < 100


def test_a_pool_holds_the_positives_and_a_sample() -> None:
    corpus = _corpus(300)
    examples = _examples(corpus, 20)
    search = CorpusSearch(corpus, examples, limit=100, seed=3)
    rows = set(search._rows.tolist())
    assert {row for n in range(20) for row in (5 * n, 5 * n + 1)} <= rows
    assert len(search) <= 100
    assert rows == set(CorpusSearch(corpus, examples, limit=100, seed=3)._rows.tolist())
    smaller = search.measure(_Encoder())
    assert smaller["mrr"] >= CorpusSearch(corpus, examples).measure(_Encoder())["mrr"]


def test_positives_that_are_not_in_the_corpus(caplog: pytest.LogCaptureFixture) -> None:
    corpus = _corpus(100)
    examples = _examples(corpus, 4)
    lost = Example.labelled("lost", "q", ("w3",), (Passage("", "Lost title", "not there"),))
    with caplog.at_level(logging.WARNING):
        search = CorpusSearch(corpus, [*examples, lost])
    assert "1 of 5 held-out questions have no positive in the corpus" in caplog.text
    assert "'Lost title'" in caplog.text
    assert (search.kind, search.missing) == ("positive", 1)
    assert search.measure(_Encoder())["top100"] <= 80

    others = [Example.labelled(e.id, e.question, e.answers, lost.positives) for e in examples]
    search = CorpusSearch(corpus, [*others, lost])
    assert search.kind == "answer"
    assert search.measure(_Encoder())["top100"] == 100  # each answer is in some passage of 100

    without = [Example.labelled(e.id, e.question, (), lost.positives) for e in examples]
    with pytest.raises(DataError, match="4 of 4 held-out questions have no positive"):
        CorpusSearch(corpus, without)


def test_average_rank_of_the_gold_passage() -> None:
    corpus = _corpus(60)
    examples = _examples(corpus, 12)
    pool = [p for n, p in enumerate(corpus) if n < 12 or n % 5 < 2]
    encoder = _Encoder()
    vectors = encoder.encode_passages([p.title for p in pool], [p.text for p in pool])
    expected = []
    for example in examples:
        scores = (encoder.encode_queries([example.query]) @ vectors.T)[0]
        gold, other = (pool.index(positive) for positive in example.positives)
        expected.append(sum(score > scores[gold] for n, score in enumerate(scores) if n != other))
    assert pool_rank(encoder, examples) == pytest.approx(np.mean(expected))
