from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from rag.core.errors import ConfigError
from rag.core.types import Passage, Query
from rag.data.examples import Candidate, Example
from rag.training.distributed import World
from rag.training.fit import Loss
from retrievers.encoders.settings import TOKENS
from retrievers.examples.batches import (
    IGNORED,
    POSITIVE,
    Epochs,
    RetrieverBatches,
    TargetBatches,
    check_negatives,
)
from retrievers.examples.data import ExampleTable
from retrievers.training.dpr import contrastive_batches
from retrievers.training.reranker import GroupBatches
from retrievers.training.validation import HeldOutScores
from tests.support.messages import refusal


def passage(n):
    return Passage(f"p{n}", f"Title {n}", f"the river {n} rises in the forest")


def examples(count=12):
    return [
        Example.labelled(
            f"q{n}",
            f"who wrote {n}",
            (f"answer{n}",),
            (passage(n),),
            [
                Candidate(passage(100 + (n + k) % 7), "hard_negative", "bm25", k + 1, 9.5 - k)
                for k in range(4)
            ],
        )
        for n in range(count)
    ]


def test_a_query_brings_its_passages_and_their_targets():
    aimed = tuple(Candidate(passage(n), "retrieved", target=n / 2) for n in (3, 1))
    asked = [Example("0", "who", (), aimed), Example("1", "who", (), aimed[:1], (passage(5),) * 3)]
    data = ExampleTable.of(asked)
    assert data.take(np.array([1, 0])) == asked[::-1]
    batches = TargetBatches(data, Epochs(2, 2))
    batch = batches[0]
    at = batches.epochs[0].tolist().index(1)
    assert batch.questions[at] == Query("who", (passage(5),) * 3)
    listed = [
        {batch.passages[n]: target for n, target in enumerate(row) if target == target}
        for row in batch.targets.tolist()
    ]
    assert listed[at] == {passage(3): 1.5}
    assert listed[1 - at] == {passage(3): 1.5, passage(1): 0.5}


def test_a_table_holds_what_training_needs_and_each_passage_once_per_role():
    twice = replace(
        examples()[3], candidates=(*examples()[3].candidates, *examples()[3].candidates)
    )
    unjudged = Candidate(passage(50), "retrieved")
    data = ExampleTable.of([*examples(3), replace(twice, candidates=(*twice.candidates, unjudged))])
    assert (len(data), data.column("id").tolist(), data.has_negatives) == (
        4,
        ["q0", "q1", "q2", "q3"],
        True,
    )
    for table, example in zip(data, examples(4), strict=True):
        assert (table.query, table.positives) == (example.query, example.positives)
        assert table.answers == example.answers
        assert [n.passage for n in table.negatives] == [n.passage for n in example.negatives]
    assert not ExampleTable.of([Example.labelled("q", "who", (), (passage(0),))]).has_negatives


def test_a_negative_that_is_a_positive_too_is_none():
    asked = [
        Example.labelled(str(n), "who", (), [passage(n)], [passage(n), passage(9)])
        for n in range(2)
    ]
    data = ExampleTable.of(asked)
    expected = [[passage(9)]] * 2
    assert [[n.passage for n in example.negatives] for example in data] == expected
    groups = GroupBatches(list(data), Epochs(2, 2), 5)[0]
    assert sorted(passages[1:] for _, passages in groups) == expected
    batch = RetrieverBatches(data, Epochs(2, 2), hard_negatives=5, mask_false_negatives=False)[0]
    assert sorted(p.id for p in batch.passages) == ["p0", "p1", "p9", "p9"]


def test_batches_depend_on_the_step_alone():
    data = ExampleTable.of(examples())

    def texts(batches, step):
        return batches[step].questions, batches[step].passages

    one, other = (RetrieverBatches(data, Epochs(len(data), 4, epochs=3)) for _ in range(2))
    assert len(one) == 9
    straight = [texts(one, step) for step in range(9)]
    assert [texts(other, step) for step in reversed(range(9))] == straight[::-1]
    assert straight[0] != straight[3]
    assert texts(RetrieverBatches(data, Epochs(len(data), 4, epochs=3, seed=14)), 0) != straight[0]
    assert len(RetrieverBatches(data, Epochs(len(data), 4, epochs=3, max_batches=5))) == 5
    with pytest.raises(IndexError):
        one[9]


def test_every_held_out_question_counts_once_whatever_the_size_of_its_batch():
    config = SimpleNamespace(batch_size=5, hard_negatives=1, mask_false_negatives=True, seed=3)
    seen = []

    def loss(batch):
        values = [int(query.question) ** 2 for query in batch.questions]
        seen.extend(values)
        return Loss(torch.tensor(float(np.mean(values))), len(values), 0)

    held_out = [replace(example, question=str(n)) for n, example in enumerate(examples())]
    scores = HeldOutScores(config, held_out, contrastive_batches, loss)
    assert [len(batch.questions) for batch in scores.batches] == [4, 4, 4]
    scores = HeldOutScores(config, held_out[:11], contrastive_batches, loss)
    figures = scores(Mock(**{"model.settings.passage.pooling": TOKENS}))
    assert sorted(seen) == [n**2 for n in range(11)]
    assert figures == {"nll": pytest.approx(np.mean(seen))}


def test_one_of_several_positives_is_drawn_at_every_visit():
    """By the step alone; what was not drawn is no negative."""
    asked = [
        Example.labelled("q", "who", (), map(passage, (0, 1)), map(passage, (2, 3))),
        Example.labelled("r", "where", (), [passage(4)], [passage(5)]),
    ]
    data = ExampleTable.of(asked)

    def right(step):
        batches = RetrieverBatches(data, Epochs(2, 2, epochs=200, seed=3))
        batch = batches[step]
        labels = batch.labels[batches.epochs[step].tolist().index(0)].tolist()
        positive = labels.index(POSITIVE)
        golds = [passage(0), passage(1)]
        left_out = [n for n, p in enumerate(batch.passages) if p in golds and n != positive]
        assert all(labels[n] == IGNORED for n in left_out)
        return golds.index(batch.passages[positive])

    taken = [right(step) for step in range(200)]
    assert 70 < sum(taken) < 130
    assert [right(step) for step in (150, 7, 31)] == [taken[step] for step in (150, 7, 31)]


def test_positives_of_another_example_of_the_question_are_no_negatives():
    """Triples of texts have an example for every pair."""
    asked = [
        Example.labelled(str(n), question, (), [passage(n)], [passage(9)])
        for n, question in enumerate(["who", "who", "where"])
    ]
    batches = RetrieverBatches(ExampleTable.of(asked), Epochs(3, 3))
    batch = batches[0]
    left_out = {
        (query.question, positive, batch.passages[column].id)
        for query, row, number in zip(
            batch.questions, batch.labels.tolist(), batches.epochs[0], strict=True
        )
        for positive in [f"p{number}"]
        for column, label in enumerate(row)
        if label == IGNORED
    }
    assert left_out == {("who", "p0", "p1"), ("who", "p1", "p0")}


def test_batches_without_negatives_are_refused():
    alone = [Example.labelled(str(n), "who", ("river",), (passage(0),)) for n in range(4)]
    config = SimpleNamespace(batch_size=9, hard_negatives=1, mask_false_negatives=True, seed=3)
    with refusal(ConfigError):
        HeldOutScores(config, alone, contrastive_batches, loss=None)
    with refusal(ConfigError):
        check_negatives(contrastive_batches(config, ExampleTable.of(alone), once=True))
    # A single batch of a run may have none.
    alone += [Example.labelled(str(n), "where", (), (passage(n),)) for n in range(4, 6)]
    config.batch_size = 2
    check_negatives(contrastive_batches(config, ExampleTable.of(alone), once=True))
    HeldOutScores(config, alone, contrastive_batches, loss=None)
    with refusal(ConfigError):
        World(size=8).share(4)
