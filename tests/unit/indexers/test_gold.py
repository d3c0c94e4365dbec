"""Gold passages of a question set in an index that cuts, names or copies them in its own way."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from indexers.documents import Documents, Put, writing_documents
from indexers.gold import GoldLookup, GoldPassages
from indexers.passage_writer import writing_passages
from indexers.passages import PassageStore
from rag.core.types import GoldPassage, Hit, Passage, Question

Store = tuple[PassageStore, Documents]
RHINE = "The Rhine rises in the Swiss Alps and ends in the North Sea near Rotterdam."
PASSAGES = [
    Passage("a", "Danube", "The Danube rises in the Black Forest."),
    Passage("b", "Danube (copy)", "The  Danube rises\nin the Black Forest."),
    Passage("c", "Rhine", f"Rivers. {RHINE} It is long."),
    Passage("d", "Rhine", f"More. {RHINE} It is wide."),
]


def write(place: Path, puts: Iterable[Put]) -> Store:
    with writing_passages(place) as writer, writing_documents(place) as add:
        for put in puts:
            writer.add_many(put.passages)
            add(put)
    return PassageStore(place), Documents(place)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return write(tmp_path, (Put(passage.id, "", [passage]) for passage in PASSAGES))


def question_with(
    *quoted: Passage, ids: tuple[str, ...] = (), answers: tuple[str, ...] = ()
) -> Question:
    return Question("q", "?", answers, ids, tuple(GoldPassage(passage) for passage in quoted))


def test_ids_count_where_the_text_agrees_and_texts_with_their_title_first(store: Store) -> None:
    danube = Passage("", "Danube (copy)", "The Danube rises in the Black Forest.")
    result = GoldLookup(*store).find(
        [
            question_with(ids=("c", "gone")),
            question_with(danube, ids=("a",)),
            question_with(danube, ids=("c",)),
            question_with(danube, PASSAGES[2], ids=("a",)),
            question_with(),
            question_with(danube),
        ]
    )
    by_text = GoldPassages((1,), how="text")
    assert result == [
        GoldPassages((2,), how="id"),
        GoldPassages((0,), how="id"),
        by_text,  # "c" is another passage in this index
        GoldPassages((0, 2), how="id"),  # the other quoted passage has no gold id
        GoldPassages(),
        by_text,
    ]


def test_the_id_of_a_document_stands_for_all_its_passages(tmp_path: Path) -> None:
    ids = {"d1": ["d1-0", "d1-1", "d1-2"], "d10": ["d10-0"], "d2": ["d2"]}
    puts = (
        Put(name, "", [Passage(id, "", f"text {id}") for id in pieces])
        for name, pieces in ids.items()
    )
    lookup = GoldLookup(*write(tmp_path, puts))
    result = lookup.find(
        [question_with(ids=names) for names in (("d1",), ("d2", "d10"), ("d10", "gone"), ("d",))]
    )
    assert result == [
        GoldPassages((0, 1, 2), how="document"),
        GoldPassages((4,), how="id"),
        GoldPassages((3,), how="document"),
        GoldPassages(),
    ]


def test_overlap_prefers_a_passage_with_the_answer_and_what_is_missing_is_told(
    store: Store,
) -> None:
    rhine, nile = Passage("", "Rhine", RHINE), Passage("", "Nile", "The Nile flows to the north.")

    def near(texts: list[str], top_k: int) -> list[list[Hit]]:
        assert texts == [RHINE, nile.text]
        return [[Hit(row, PASSAGES[row].id, 1.0) for row in range(4)]] * 2

    question = question_with(rhine, nile, answers=("wide",))
    (result,) = GoldLookup(*store, near).find([question])
    assert result == GoldPassages((3,), (nile,), "overlap")
    (without,) = GoldLookup(*store).find([question])
    assert (without.rows, without.missing, without.how) == ((), (rhine, nile), "given")
