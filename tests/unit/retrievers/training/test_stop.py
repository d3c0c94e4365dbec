"""A stop rule learns from question sets which questions need another passage."""

import json

import numpy as np
import pytest

from indexers.build import build_index
from indexers.settings import BuildSettings
from rag.core.errors import ConfigError
from rag.core.types import GoldPassage, Passage, Question
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.multihop import STOP_FILE, LearnedStop
from retrievers.open import open_retriever
from retrievers.training.stop import hops_of, learn_stop

ENCODER = "all-MiniLM-L6-v2"
RIVERS = ["Danube", "Rhine", "Elbe", "Oder", "Main", "Inn"]


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """(one-hop file, two-hop file, index): two-hop questions ask of "the country where"."""
    place = tmp_path_factory.mktemp("stop")
    passages = [
        Passage(river.lower(), river, f"The {river} is a river that rises in land {river}.")
        for river in RIVERS
    ]
    passages += [
        Passage(f"land-{river}", f"land {river}", f"land {river} has a capital and people.")
        for river in RIVERS
    ]
    one = [{"question": f"Is the {river} long?", "gold_passage_ids": [river.lower()]} for river in RIVERS]
    two = [
        {"question": f"What is the capital of the country where the {river} rises?",
         "gold_passage_ids": [river.lower(), f"land-{river}"]}
        for river in RIVERS
    ]  # fmt: skip
    files = []
    for name, records in (("one", one), ("two", two)):
        files.append(place / f"{name}.jsonl")
        files[-1].write_text("".join(json.dumps(record) + "\n" for record in records))
    index = build_index(
        passages, place / "index", encoder=BiEncoder.load(), settings=BuildSettings(retriever="dense")
    )
    return *files, index


def test_one_hop_questions_stay_one_hop(sets, tmp_path):
    from indexers.index import Index

    one, two, place = sets
    rule, (figures,) = learn_stop([one, two], ENCODER)
    assert (figures.complete, figures.incomplete) == (6, 6)
    assert figures.kept == 1.0
    assert figures.lost == 0.0
    rule.save(tmp_path / STOP_FILE)
    with Index.open(place) as index:
        searcher = open_retriever(index, f"multihop:beam=3,stop={tmp_path / STOP_FILE}")
        asked = ["Is the Rhine long?", "What is the capital of the country where the Elbe rises?"]
        assert [len(paths[0].hits) for paths in searcher.search_paths(asked, 3)] == [1, 2]
        plain = open_retriever(index, "dense").search(asked[:1], 7)
        assert searcher.search(asked[:1], 7) == plain


def test_sets_that_all_say_the_same_give_a_certain_rule(sets):
    _, two, _ = sets
    rule, (figures,) = learn_stop([two], ENCODER)
    assert not rule(np.zeros((1, rule.weights.shape[1]), np.float32), 1).any()
    assert (figures.complete, figures.incomplete, figures.lost) == (0, 6, 0.0)
    assert isinstance(rule, LearnedStop)
    with pytest.raises(ConfigError, match="one hop"):
        learn_stop([two], ENCODER, hops=1)


def test_hops_are_the_gold_passages_that_are_needed():
    gold = tuple(GoldPassage(Passage("", title, "x")) for title in "ab")
    assert hops_of(Question("1", "q", gold=gold)) == 2
    assert hops_of(Question("1", "q", gold=gold, gold_are_alternatives=True)) == 1
    assert hops_of(Question("1", "q", gold_passage_ids=("a", "b", "c"))) == 3
    assert hops_of(Question("1", "q", gold=gold, hops=4)) == 4
    assert hops_of(Question("1", "q")) == 0
