from pathlib import Path

import pytest

from indexers.passages import PassageStore, PassageStoreWriter
from rag.bench.gold import find_gold, gold_rank, has_gold
from rag.core.errors import ConfigError, DataError
from rag.core.types import GoldPassage, Hit, Passage, Question

PASSAGES = [
    Passage("a", "Danube", "The Danube rises in the Black Forest."),
    Passage("b", "Rhine", "The Rhine  ends in\nthe North Sea."),
    Passage("c", "Rhine again", "The Rhine ends in the North Sea."),
]


def quoted(text: str) -> tuple[GoldPassage, ...]:
    return (GoldPassage(Passage("", "", text)),)


@pytest.fixture
def store(tmp_path: Path) -> PassageStore:
    with PassageStoreWriter(tmp_path) as writer:
        writer.add_many(PASSAGES)
    return PassageStore.open(tmp_path)


def test_texts_match_whatever_their_white_space_and_all_copies_count(store: PassageStore) -> None:
    questions = [
        Question("1", "Where does it end?", ("North Sea",), gold=quoted("The Rhine ends in the North Sea.")),
        Question("2", "Where does it rise?", ("Black Forest",), gold=quoted(PASSAGES[0].text)),
        Question("3", "Who?", ("nobody",), gold=quoted("Not in the index.")),
    ]
    gold = find_gold(questions, store)
    assert gold.kind == "text"
    assert gold.rows == ({1, 2}, {0}, frozenset())
    assert gold.found == 2


def test_ids_come_first_and_positive_contexts_are_texts_too(store: PassageStore) -> None:
    assert find_gold([Question("1", "?", gold_passage_ids=("b", "gone"))], store).rows == ({1},)
    positives = Question("2", "?", gold=quoted(PASSAGES[0].text), gold_are_alternatives=True)
    assert find_gold([positives], store).rows == ({0},)


def test_answers_are_the_last_resort(store: PassageStore) -> None:
    question = Question("1", "Where does it end?", ("north sea",))
    gold = find_gold([question], store)
    assert gold.kind == "answer"
    hits = [Hit(0, "a", 2.0), Hit(1, "b", 1.0)]
    assert gold_rank(question, gold.rows[0], gold.kind, hits, store) == 2


def test_rank_counts_from_one_and_is_none_without_a_gold_hit(store: PassageStore) -> None:
    question, hits = Question("1", "?"), [Hit(0, "a", 2.0), Hit(2, "c", 1.0)]
    assert gold_rank(question, frozenset({2}), "text", hits, store) == 2
    assert gold_rank(question, frozenset({1}), "text", hits, store) is None


def test_a_store_cut_otherwise_is_refused(store: PassageStore) -> None:
    with pytest.raises(DataError, match="only 0 of 1 questions"):
        find_gold([Question("1", "?", gold=quoted("Elsewhere."))], store)
    with pytest.raises(DataError, match="neither gold passages nor answers"):
        find_gold([Question("1", "?")], store)
    with pytest.raises(DataError, match="no question"):
        find_gold([], store)
    assert not has_gold(Question("1", "?"))
    with pytest.raises(ConfigError, match="unknown"):
        find_gold([Question("1", "?")], store, kind="title")  # type: ignore[arg-type]
