"""Batches of retriever training: what holds for every data set, step and setting, against brute
force.
"""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rag.core.types import Passage
from rag.data.examples import Example
from retrievers.examples.batches import IGNORED, NEGATIVE, OTHER, POSITIVE, Epochs, RetrieverBatches
from retrievers.examples.data import ExampleTable

WORDS = ("a", "b", "É", "e\u0301", "c", "U.S.", "ΟΔΟΣ", "οδος", "İ", ".", "\u200b", "no")
text = st.lists(st.sampled_from(WORDS), min_size=1, max_size=8).map(" ".join)
passage = st.builds(Passage, st.just(""), st.sampled_from(["", "A"]), text)
short = st.lists(st.sampled_from(WORDS), min_size=0, max_size=3).map(" ".join)
example = st.builds(
    Example.labelled,
    st.just("q"),
    text,
    st.lists(short, max_size=3).map(tuple),
    st.lists(passage, min_size=1, max_size=2).map(tuple),
    st.lists(passage, max_size=4).map(tuple),
)


@settings(max_examples=80, deadline=None)
@given(
    examples=st.lists(example, min_size=1, max_size=6),
    batch_size=st.integers(1, 5),
    hard=st.integers(0, 3),
    seed=st.integers(0, 5),
)
def test_invariants(examples, batch_size, hard, seed):
    data = ExampleTable.of(examples)
    epochs = Epochs(len(data), batch_size, epochs=2, seed=seed)
    batches = RetrieverBatches(data, epochs, hard_negatives=hard)
    for step in range(len(batches)):
        batch = batches[step]
        check(batch, batches.epochs[step].tolist(), examples, hard)
    visited = np.concatenate([batches.epochs[step] for step in range(batches.epochs.per_epoch)])
    assert (
        len(set(visited.tolist())) == len(visited) == batches.epochs.per_epoch * batches.batch_size
    )


def check(batch, numbers, examples, hard):
    texts = [p.content for p in batch.passages]
    assert len(set(texts)) == len(texts)  # every passage is encoded once
    labels = batch.labels.numpy()
    assert (labels != OTHER).any(0).all()  # and every passage was brought by a question
    assert ((labels == POSITIVE).sum(1) == 1).all()
    for b, number in enumerate(numbers):
        asked = examples[number]
        assert batch.questions[b].question == asked.question
        assert texts[labels[b].argmax()] in [p.content for p in asked.positives]
        # Several examples may be of one question.
        of_question = [examples[n] for n in numbers if examples[n].question == asked.question]
        gold = [p.content for example in of_question for p in example.positives]
        own = {texts[p] for p in np.flatnonzero(labels[b] == NEGATIVE)}
        known = {n.passage.content for n in asked.negatives}
        assert own <= known - set(gold)
        assert len(own) <= hard
        if not known & set(gold):
            assert len(own) == min(hard, len(known))
        assert {texts[p] for p in np.flatnonzero(labels[b] == IGNORED)} == (
            (set(gold) & set(texts)) - {texts[labels[b].argmax()]}
        )
