"""Validation figures, against brute force."""

import numpy as np
import pytest

from rag.core.types import Passage
from rag.data.examples import Example
from retrievers.training.validation import pool_rank
from tests.unit.indexers.conftest import WordEncoder


def test_average_rank_of_the_gold_passage() -> None:
    corpus = [Passage(str(n), f"title {n % 7}", f"text number {n} says w{n}") for n in range(60)]
    examples = [
        Example.labelled(
            str(n), f"question {n}", (), (corpus[5 * n], corpus[5 * n + 1]), (corpus[n],)
        )
        for n in range(12)
    ]
    pool = [p for n, p in enumerate(corpus) if n < 12 or n % 5 < 2]
    encoder = WordEncoder()
    vectors = encoder.encode_passages([p.title for p in pool], [p.text for p in pool])
    expected = []
    for example in examples:
        scores = (encoder.encode_queries([example.query]) @ vectors.T)[0]
        gold, other = (pool.index(positive) for positive in example.positives)
        expected.append(sum(score > scores[gold] for n, score in enumerate(scores) if n != other))
    assert pool_rank(examples, encoder.encode_queries, encoder.encode_passages) == pytest.approx(
        np.mean(expected)
    )
