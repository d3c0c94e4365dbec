"""Searches with a filter beside unfiltered exhaustive ones from which the selected passages are
taken.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexers.documents import Put
from indexers.index import Index
from indexers.index_writer import write_index
from indexers.protocols import Selection
from indexers.settings import BuildSettings
from rag.core.types import Hit, Location, Passage, Question
from rag.data.corpus import read_documents
from rag.data.files.rows import write_json_lines
from rag.data.filters import Condition, FilterError, parse_filter, parse_options
from rag.data.records import CorpusOptions
from rag.data.split import split_documents
from rag.eval.runs import write_results
from rag.pipeline import Pipeline
from retrievers.first_stage import DenseRetriever, SparseRetriever
from retrievers.hybrid import HybridRetriever
from retrievers.multihop import MultiHopRetriever
from tests.pipeline_parts import LastWordsReader
from tests.support.filters import compared
from tests.support.messages import refusal
from tests.unit.indexers.conftest import WordEncoder

WORDS = [
    f"{first}{second}" for first in "bdfgklmnprst" for second in ("ato", "ume", "ilo", "ora", "esk")
]
QUESTIONS = [f"{WORDS[n]} {WORDS[n + 7]} {WORDS[3 * n]}" for n in range(8)]


def corpus() -> list[Passage]:
    """600 passages of unequal length, in three folders, every sixth of them in year 2000, 2001,
    …
    """
    draw = np.random.default_rng(3)
    return [
        Passage(
            f"doc{n // 4}-{n % 4}",
            "",
            " ".join(draw.choice(WORDS, draw.integers(5, 60))) + f" unique{n}",
            Location(f"{('guide', 'guide/setup', 'notes')[n // 200]}/file{n // 4}.md"),
            (("year", 2000 + n % 6), ("tags", ("even" if n % 2 == 0 else "odd", "all"))),
        )
        for n in range(600)
    ]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    place = tmp_path_factory.mktemp("filtered") / "index"
    settings = BuildSettings(retriever="hybrid")
    passages = corpus()
    puts = [Put(f"doc{n}", "", passages[4 * n : 4 * n + 4]) for n in range(150)]
    write_index(place, puts, encoder=WordEncoder(), settings=settings)
    return Index.open(place)


def same(found: list[list[Hit]], expected: list[list[Hit]], decimals: int) -> bool:
    """Equal ranks and scores: Anserini rounds to four decimals and lowers ties by steps of 1e-6."""
    rounded = [
        [[(hit.row, round(hit.score, decimals)) for hit in hits] for hits in lists]
        for lists in (found, expected)
    ]
    return rounded[0] == rounded[1]


Fits = Callable[[Passage, dict[str, Any]], bool]
FILE_3 = "doc3"
FILES_1_9 = ("doc109", "doc119", "doc129", "doc139", "doc149")
# name: a filter, and whether it selects a passage with these fields.
FILTERS: dict[str, tuple[dict[str, Any], Fits]] = {
    "pattern": ({"path": "guide/*"}, lambda p, _: "guide" in str(p.location)),
    "folder": ({"path": "guide/setup/"}, lambda p, _: "setup" in str(p.location)),
    "patterns": (
        {"path": ["notes/file1?9.md", "*/file3.md"]},
        lambda p, _: p.id[:-2] in (FILE_3, *FILES_1_9),
    ),
    "documents": ({"document": ["doc7", "doc30-1"]}, lambda p, _: p.id.startswith("doc7-")),
    "number": ({"year": 2003}, lambda _, fields: fields["year"] == 2003),
    "digits": ({"year": "2003"}, lambda _, fields: fields["year"] == 2003),
    "bounds": (
        {"year": {"gte": 2002, "lt": 2004.5}},
        lambda _, fields: 2002 <= fields["year"] < 2004.5,
    ),
    "tag": ({"tags": "odd"}, lambda _, fields: "odd" in fields["tags"]),
    "two fields": (
        {"tags": ["odd", "x"], "year": [2001, 2002]},
        lambda _, fields: fields["year"] == 2001,
    ),
}


@pytest.mark.parametrize(("given", "fits"), FILTERS.values(), ids=FILTERS)
def test_a_filter_selects_what_its_conditions_say(
    index: Index, given: dict[str, Any], fits: Fits
) -> None:
    expected = [row for row, p in enumerate(corpus()) if fits(p, dict(p.metadata))]
    assert index.select(parse_filter(given) or ()).rows.tolist() == expected


def test_no_filter_is_none_and_equal_filters_alone_share_a_selection() -> None:
    assert parse_filter(()) is parse_filter({}) is None
    assert parse_filter({"year": 1}) != parse_filter({"year": True})


def test_an_index_of_files_lists_folders_and_neighbours(index: Index) -> None:
    passages = corpus()
    assert index.passages[5] == passages[5]
    assert index.folders() == ["guide/", "guide/setup/", "notes/"]
    # Those of other documents are left out.
    assert index.around("doc7-0", 2) == ([], passages[29:31])


def test_fields_that_are_not_there_or_cannot_be_compared_are_named(index: Index) -> None:
    with refusal(FilterError):
        index.select(parse_filter({"yaer": 2003}) or ())
    with refusal(FilterError):
        index.select(parse_options(["year>=abc"]) or ())


@pytest.mark.parametrize(
    "given", [{"path": "guide/*"}, {"year": 2003}, {"document": "doc7"}, {"tags": "odd"}]
)
def test_filtered_lists_are_those_of_an_exhaustive_search(
    index: Index, given: dict[str, Any]
) -> None:
    chosen = index.select(parse_filter(given) or ())
    dense = DenseRetriever(index.dense, index.passages, WordEncoder())
    bm25 = SparseRetriever(index.lucene, index.passages)
    lists = []
    for retriever in (dense, bm25):
        everything = retriever.search(QUESTIONS, len(index.passages))
        expected = [[hit for hit in hits if chosen.mask[hit.row]][:30] for hits in everything]
        actual = retriever.search(QUESTIONS, 30, selected=chosen)
        assert same(actual, expected, 4 if retriever is bm25 else 20)
        lists.append(actual)
    hybrid = HybridRetriever([dense, bm25], index.passages, depth=30)
    # A list cannot lack passages that the filter leaves out.
    depth = min(30, len(chosen))
    fused = hybrid.fusion.fuse(lists, 10, depth=depth, absent_scores=[None, 0.0])
    assert hybrid.search(QUESTIONS, 10, selected=chosen) == fused
    assert hybrid.search(QUESTIONS, 10, selected=Selection(np.zeros(600, bool))) == [[]] * len(
        QUESTIONS
    )
    paths = MultiHopRetriever(dense, index.passages).search_paths(QUESTIONS, 5, selected=chosen)[1]
    assert all(
        chosen.mask[hit.row] for of_question in paths for path in of_question for hit in path.hits
    )
    assert all(paths)


def test_rows_that_lie_apart_are_named_to_lucene(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexers.lucene._MOST_RUNS", 3)
    monkeypatch.setattr("indexers.lucene._TERMS_AT_ONCE", 70)
    lucene = index.lucene
    everything = lucene.search(QUESTIONS, 600)
    for share in (0.2, 0.8):
        mask = np.random.default_rng(1).random(600) < share
        expected = [[pair for pair in hits if mask[pair[0]]][:30] for hits in everything]
        actual = lucene.search(QUESTIONS, 30, Selection(mask))
        rows, scores = (
            [[pair[n] for hits in it for pair in hits] for it in (actual, expected)] for n in (0, 1)
        )
        assert rows[0] == rows[1]
        np.testing.assert_allclose(scores[0], scores[1], atol=5e-5)


def test_answers_come_from_selected_passages_alone(
    index: Index, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = Pipeline(index, DenseRetriever(index.dense, index.passages, WordEncoder()), None)
    result = pipeline.retrieve_many(QUESTIONS, 7, filter={"year": 2004, "path": "notes/*"})
    assert {dict(p.metadata)["year"] for hits in result for _, p in hits} == {2004}
    assert pipeline.retrieve(QUESTIONS[0], 7, filter={"year": 1066}) == []
    assert pipeline.retrieve(QUESTIONS[0], 7, filter={}) == pipeline.retrieve(QUESTIONS[0], 7)
    reading = Pipeline(index, pipeline.retriever, LastWordsReader())
    assert reading.ask(QUESTIONS[0], filter={"year": 1066}).notice == "no passage meets the filter"
    assert reading.ask(QUESTIONS[0], filter={"year": 2004}).notice == ""
    for year, told in ((2004, 0), (1066, 1)):
        write_results(
            reading,
            [Question("q", "x")],
            tmp_path / "x.run",
            3,
            filter=parse_filter({"year": year}),
        )
        assert caplog.text.count("no passage meets the filter") == told


WRONG_FORMS: dict[str, Any] = {
    "path that is a number": {"path": 3},
    "bound of a path": {"path": {"gte": "a"}},
    "unknown bound": {"year": {"above": 3}},
    "no values": {"year": []},
    "value that is null": {"year": None},
    "list": [1],
    "tuple": ("year",),
    "half a surrogate pair": {"document": "\ud800"},
}


@pytest.mark.parametrize("given", WRONG_FORMS.values(), ids=WRONG_FORMS)
def test_a_filter_of_the_wrong_form_is_refused(given: Any) -> None:
    with refusal(FilterError):
        parse_filter(given)


def test_records_keep_the_metadata_that_is_named(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "text": "one two three", "year": 1999, "lang": ["de", "fr"], "other": 1},
        {"id": "b", "text": "four five six", "metadata": {"year": 2001}},
    ]
    path = tmp_path / "corpus.jsonl"
    write_json_lines(path, rows)
    options = CorpusOptions(metadata=["year", "lang"])
    passages = list(split_documents(read_documents(path, options=options), CorpusOptions(words=2)))
    assert [p.metadata for p in passages] == [(("year", 1999), ("lang", ("de", "fr")))] * 2 + [
        (("year", 2001),)
    ] * 2
    plain = [Passage(f"x{n}", "", "plain") for n in range(1500)]
    words = BuildSettings(retriever="bm25")
    write_index(tmp_path / "i", [*plain, *passages], settings=words)
    with Index.open(tmp_path / "i") as index:
        store = index.passages
        assert [store[1500], list(store)[-1]] == [passages[0], passages[-1]]
        assert store[3].metadata == ()
        selected = index.select(parse_filter({"year": {"lt": 2000}}) or ())
        assert selected.rows.tolist() == [1500, 1501]


def test_a_filter_that_would_hold_up_everyone_is_refused() -> None:
    for path in ("*a" * 3_000, ["*a*b*c*"] * 1_000):
        with refusal(FilterError):
            parse_filter({"path": path})


@pytest.mark.parametrize(
    ("options", "values", "selected"),
    [
        (["x>=2020", "x<2021-06"], ("2020-05", "2019-12", "2021-07", 2020), "1000"),
        (["x=nan", "x=7"], ("nan", 7, "7", 8), "1110"),
        (["x=true"], (True, "true", False, 1), "1100"),
    ],
)
def test_numbers_and_texts_are_compared_as_people_mean_them(
    options: list[str], values: tuple[Any, ...], selected: str
) -> None:
    """Tables have nothing but text, and a filter in JSON has numbers."""
    [condition] = parse_options(options) or ()
    assert compared(condition, values) == [digit == "1" for digit in selected]


@pytest.mark.parametrize(
    "options", [["guide"], ["year=>2010"], ["year!=2010"], ["year>=2010", "year>=1995"]]
)
def test_options_of_the_wrong_form_are_refused(options: list[str]) -> None:
    with refusal(FilterError):
        parse_options(options)


def test_brackets_in_a_pattern_of_paths_are_those_of_a_name() -> None:
    paths = ["report[1].pdf", "report1.pdf"]
    assert Condition("path", ("report[1].*",)).match_paths(paths) == ["report[1].pdf"]
