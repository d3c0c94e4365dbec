"""Retrieve, read, answer: the composition, with every part replaced by something small."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict

from indexers.index import Index
from rag.core.errors import ArtifactError, ConfigError, DataError, QuestionError
from rag.core.types import Hit, Passage
from rag.data.corpus import passages_of
from rag.pipeline import Pipeline
from tests.commands import run_successfully
from tests.pipeline_parts import LastWordsReader, MadeRetriever, Store
from tests.support.messages import refusal
from tests.support.verifying import WordVerifier

PASSAGES = [
    Passage("danube", "Danube", "The Danube rises in the Black Forest."),
    Passage("rhine", "Rhine", "The Rhine ends in the North Sea."),
]


def search(questions: Sequence[str], top_k: int) -> list[list[Hit]]:
    hits = [Hit(1, "rhine", 2.0), Hit(0, "danube", 1.0)]
    return [hits[:top_k] if "nothing" not in question else [] for question in questions]


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    index: Any = SimpleNamespace(passages=Store(PASSAGES), version="v1", directory=tmp_path)
    return Pipeline(index, MadeRetriever(search), LastWordsReader())


def test_one_question_gives_one_answer_set_with_exact_evidence(pipeline: Pipeline) -> None:
    result = pipeline.ask("Where does the Rhine end?")
    best = result.answers[0]
    assert (best.text, best.evidence.passage_id) == ("North Sea", "rhine")
    assert best.evidence.text[best.evidence.start : best.evidence.end] == best.text
    assert (best.evidence.score, result.index_version) == (2.0, "v1")
    assert {"total", "read", "fetch_passages"} <= set(result.timings_ms)
    results = pipeline.ask_many(["Where does the Rhine end?", "nothing here"], top_k=1, n_best=1)
    assert [len(result.answers) for result in results] == [1, 0]
    assert (results[1].no_answer_confidence, results[1].is_answered) == (1.0, False)
    assert pipeline.ask_many([]) == []


def test_texts_and_rows_of_any_kind_become_passages() -> None:
    texts = [passage.text for passage in PASSAGES]
    for sent in (np.array(texts), (text for text in texts), tuple(texts)):
        assert [passage.text for passage in passages_of(sent)] == texts
    rows = Dataset.from_dict({"id": [1, 2], "title": ["D", None], "text": texts})
    table = pa.Table.from_pylist(rows.to_list())
    for sent in (rows, rows.to_iterable_dataset(), rows.to_pandas(), table, rows.to_list()):
        assert passages_of(sent) == [Passage("1", "D", texts[0]), Passage("2", "", texts[1])]
    # Those without an id get their number.
    mixed = ["a", {"text": "b"}, {"_id": "z", "text": "c"}, {"id": None, "text": "d"}]
    assert [passage.id for passage in passages_of(mixed)] == ["0", "1", "z", "3"]
    for nothing in (None, float("nan"), pd.NA):
        frame = pd.DataFrame(
            {"title": ["D", nothing], "text": ["It rises.", nothing]}, dtype=object
        )
        with refusal(DataError):
            passages_of(frame)


def test_bad_questions_and_settings(pipeline: Pipeline) -> None:
    with refusal(DataError):
        pipeline.ask_many(["fine", "  "])
    with refusal(DataError):
        pipeline.ask(["q"])  # type: ignore[arg-type]
    with refusal(ConfigError):
        pipeline.ask("q", n_best=0)
    pipeline.reader = None
    with refusal(ConfigError):
        pipeline.ask("q")
    with refusal(ConfigError):
        pipeline.embed(["a"], "query")
    assert len(pipeline.retrieve("q", 2)) == 2


NO_TEXTS = {
    "text": "hello world",
    "bytes": b"hello",
    "mapping": {"1": "one"},
    "blank": ["a", " \n"],
    "none in a list": [None],
    "no text field": [{"text": float("nan")}],
    "metadata that is text": [{"text": "a", "metadata": "2020"}],
    "value that is a mapping": [{"text": "a", "metadata": {"year": {}}}],
    "empty list": [],
    "none": None,
    "set of splits": DatasetDict({"train": Dataset.from_dict({"text": ["a"]})}),
    "id twice": [{"id": 7, "text": "a"}, {"id": "7", "text": "b"}],
    "unknown fields": [{"Name": "Danube"}],
}


@pytest.mark.parametrize("texts", NO_TEXTS.values(), ids=NO_TEXTS)
def test_what_is_no_list_of_texts_is_refused(texts: Any) -> None:
    with refusal(DataError):
        Pipeline.from_texts(texts, retriever="bm25", reader=False)


def test_metadata_of_rows_serves_filters() -> None:
    rows = [
        {"id": str(year), "text": "the danube", "metadata": {"year": year}} for year in (1999, 2001)
    ]
    rows.append({"id": "none", "text": "the danube", "metadata": float("nan")})
    with Pipeline.from_texts(rows, retriever="bm25", reader=False) as pipeline:
        result = pipeline.retrieve("danube", 3, filter={"year": {"gte": 2000}})
    assert [hit.passage_id for hit, _ in result] == ["2001"]


def test_texts_have_a_language() -> None:
    texts = ["Die Häuser am Fluss wurden gebaut.", "Ein Berg der Alpen."]
    with Pipeline.from_texts(texts, retriever="bm25", reader=False, language="de") as pipeline:
        assert pipeline.index.language == "de"
        assert [hit.row for hit, _ in pipeline.retrieve("Welches Haus?", 2)] == [0]
    with refusal(ConfigError):
        Pipeline.from_texts(texts, retriever="bm25", language="klingon")


def test_each_question_says_why_nothing_was_read_for_it() -> None:
    with Pipeline.from_texts(["The danube is long.", "The rhine."], retriever="bm25") as pipeline:
        answers = pipeline.ask_many(["How long is the danube?", "volga", "Hello!"])
    notices = ["", "no passage has a word of it", "a greeting asks for nothing"]
    assert [answer.notice for answer in answers] == notices


def test_an_index_is_closed_where_no_pipeline_comes_of_it_and_after_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr("readers.verifying.open.load_verifier", lambda *_: WordVerifier())
    index = tmp_path / "index"
    Pipeline.from_texts(["Rivers flow."], out=index, retriever="bm25", reader=False).close()
    closed = list[Index]()

    def close(index: Index) -> None:
        closed.append(index)

    monkeypatch.setattr(Index, "close", close)
    with refusal(ArtifactError):
        Pipeline.open(index, reader=tmp_path / "none")
    run_successfully("ask", "What flows?", "--index", index)
    run_successfully("verify", "Rivers flow.", "--index", index)
    assert len(closed) == 3
    with refusal(ArtifactError) as caught:
        Pipeline.from_texts(["Rivers flow."], retriever="bm25", reader=tmp_path / "none")
    # The error holds what was made; the folder is deleted nevertheless.
    assert caught.traceback
    assert not list(temporary.iterdir())


def test_closing_releases_the_index_and_removes_a_temporary_one() -> None:
    pipeline = Pipeline.from_texts(
        [passage.text for passage in PASSAGES], retriever="bm25", reader=False
    )
    [result] = pipeline.retrieve_many(["Where does the Danube rise?"], 1)
    assert result[0][1].text == PASSAGES[0].text
    place = pipeline.index.directory
    pipeline.close()
    assert "lucene" not in vars(pipeline.index)
    assert not place.exists()
    pipeline.close()
    for call in (pipeline.retrieve_many, pipeline.ask_many, pipeline.search):
        with refusal(ConfigError):
            call(["Where does the Danube rise?"])
    with refusal(ConfigError):
        pipeline.passage("0")


NO_QUESTIONS = {
    "none": None,
    "mapping": {"q": "x"},
    "table": pd.DataFrame({"q": ["x"]}),
    "number": ["x", float("nan")],
    "bytes": [b"x"],
}


@pytest.mark.parametrize("questions", NO_QUESTIONS.values(), ids=NO_QUESTIONS)
def test_what_is_no_list_of_questions_is_refused(pipeline: Pipeline, questions: Any) -> None:
    for ask in (pipeline.ask_many, pipeline.retrieve_many, pipeline.search):
        with refusal(DataError):
            ask(questions)


def test_numbers_are_whole_and_may_be_those_of_numpy(pipeline: Pipeline) -> None:
    for wrong in ("5", 5.0, True, None, 0, 1001):
        with refusal(ConfigError):
            pipeline.retrieve("q", wrong)  # type: ignore[arg-type]
    searched: list[Any] = []
    pipeline.retriever.search = lambda q, k, **_: searched.append(k) or [[]] * len(q)  # type: ignore
    pipeline.retrieve_many(np.array(["q", "r"]), np.int64(3))  # type: ignore[arg-type]
    assert [type(k) for k in searched] == [int]


def test_settings_that_nothing_reads_are_refused() -> None:
    with refusal(ConfigError):
        Pipeline.from_texts(["a"], retriever="bm25", encoder="some/model", reader=False)
    with refusal(ConfigError):
        Pipeline.from_texts(["a"], retriever="hybird")  # type: ignore[arg-type]
    with refusal(DataError):
        Pipeline.from_texts(["word " * 50_000], retriever="bm25")


@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_vectors_of_texts_are_those_that_are_searched(kind: Any) -> None:
    texts = ["The Danube rises in the Black Forest.", "The Rhine ends in the North Sea."]
    with Pipeline.from_texts(texts, retriever=kind, encoder="static", reader=False) as pipeline:
        (question,), passages = (
            pipeline.embed(["Where?"], "query"),
            pipeline.embed(texts, "passage"),
        )
        dense = pipeline.retriever.members[0] if kind == "hybrid" else pipeline.retriever  # type: ignore[attr-defined]
        hits = {hit.row: hit.score for hit in dense.search(["Where?"], 2)[0]}
        assert passages @ question == pytest.approx([hits[0], hits[1]], abs=1e-5)


def test_claims_are_judged_by_what_is_found(pipeline: Pipeline) -> None:
    pipeline = Pipeline(pipeline.index, pipeline.retriever, None, WordVerifier())
    claims = ["The Rhine ends in the North Sea.", "Where does it end?", "nothing here is found"]
    supported, question, unfound = pipeline.verify(claims, top_k=1)
    assert (supported.label, supported.evidence.passage_id) == ("supported", "rhine")
    assert (supported.evidence.score, supported.index_version) == (2.0, "v1")
    assert {"retrieve", "judge", "total"} <= set(supported.timings_ms)
    assert (question.label, question.notice) == ("not_judged", "a question is no claim")
    assert (unfound.label, unfound.evidence) == ("not_enough", None)
    sentences = ["The Rhine ends in the North Sea.", "However, it is long.", "long " * 201]
    verdicts = pipeline.verify(sentences, in_text=True)
    assert [verdict.label for verdict in verdicts] == ["supported", "not_judged", "not_judged"]
    assert "201 words" in verdicts[2].notice
    assert pipeline.verify([]) == []


BAD_CLAIMS = {
    "blank": ([" "], {}, QuestionError),
    "many words": (["a", "so " * 201], {}, QuestionError),
    "many characters": (["w" * 4001], {}, QuestionError),
    "number": ([7], {}, QuestionError),
    "text": ("a claim", {}, DataError),
    "no passages": (["a"], {"top_k": 0}, ConfigError),
    "no verifier": (["a"], {}, ConfigError),
}


@pytest.mark.parametrize(("claims", "options", "error"), BAD_CLAIMS.values(), ids=BAD_CLAIMS)
def test_bad_claims(pipeline: Pipeline, claims: Any, options: Any, error: type[Exception]) -> None:
    number: Any = 7
    pipeline = Pipeline(pipeline.index, pipeline.retriever, None, number)
    with refusal(error):
        pipeline.verify(claims, **options)
