from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from rag.core.errors import DataError
from rag.data.files.dpr_family import DPR_RESULTS
from rag.data.files.record import Context, Record
from rag.data.files.results import read_dpr_results
from rag.data.files.tables import TREC_QRELS, TREC_RUN

RESULTS = [
    Record("q1", "who?", ("A",), (Context("1", "T", "x é", 1 / 3, True), Context("2", "", "y", -2.5))),
    Record("", "when?", ()),
]


def as_records(rankings, tag: str = "rag") -> list[Record]:
    return [
        Record(question, contexts=tuple(Context(p, score=s) for p, s in ranking), meta={"tag": tag})
        for question, ranking in rankings
    ]


def test_dpr_results_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "out" / "results.json"
    assert DPR_RESULTS.write(path, iter(RESULTS)) == 2
    assert list(read_dpr_results(path)) == RESULTS
    first = json.loads(path.read_text())[0]
    assert list(first["ctxs"][0]) == ["id", "title", "text", "score", "has_answer"]
    assert DPR_RESULTS.write(path, []) == 0
    assert json.loads(path.read_text()) == []
    assert list(read_dpr_results(path)) == []


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    DPR_RESULTS.write(path, RESULTS)
    before = path.read_bytes()

    def interrupted() -> Iterator[Record]:
        yield RESULTS[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        DPR_RESULTS.write(path, interrupted())
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["results.json"]


def test_files_of_others(tmp_path: Path) -> None:
    dpr = [
        {
            "question": "q",
            "answers": ["a"],
            "ctxs": [{"id": "wiki:7", "title": "T", "text": "x", "score": "81.5"}],
        }
    ]
    path = tmp_path / "r.json"
    path.write_text(json.dumps(dpr))
    (result,) = read_dpr_results(path)
    assert result.contexts == (Context("wiki:7", "T", "x", 81.5),)
    path.write_text("".join(json.dumps(record) + "\n" for record in dpr * 2))
    assert [r.contexts[0].id for r in read_dpr_results(path)] == ["wiki:7", "wiki:7"]
    contexts = [{"docid": "7", "score": 2, "text": '"T"\nx', "has_answer": False}]
    path.write_text(json.dumps({"3": {"question": "q", "answers": ["a"], "contexts": contexts}}))
    (result,) = read_dpr_results(path)
    assert result == Record("3", "q", ("a",), (Context("7", "T", "x", 2.0, False),))
    del contexts[0]["docid"]
    path.write_text(json.dumps({"3": {"question": "q", "answers": ["a"], "contexts": contexts}}))
    assert next(read_dpr_results(path)).contexts[0].title == "T"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ('[{"question": "q"}]', "record 1: no ctxs"),
        ('[{"question": "q", "ctxs": [{"id": "1"}]}]', "record 1: a passage without text"),
        ('[{"question": "q", "ctxs": [{"id": "1", "text": "x", "title": "", "score": "high"}]}]', "high"),
        ("[3]", "record 1"),
        ('{"a": 3}', "r.json:1: no question"),
        ('{"question": "q", "ctxs": []}\n{"x\n', r"r\.json:2"),
    ],
)
def test_malformed_results_are_named(tmp_path: Path, data: str, words: str) -> None:
    (tmp_path / "r.json").write_text(data)
    with pytest.raises(DataError, match=words):
        list(read_dpr_results(tmp_path / "r.json"))


def test_trec_run(tmp_path: Path) -> None:
    run = [("q1", [("b", 0.1 + 0.2), ("a", 1e-17)]), ("q2", [("a", -3.0)])]
    TREC_RUN.write(tmp_path / "x.run", as_records(run, tag="dense"))
    assert (tmp_path / "x.run").read_text().splitlines()[0] == "q1 Q0 b 1 0.30000000000000004 dense"
    found = [(r.id, [(c.id, c.score) for c in r.contexts]) for r in TREC_RUN.read(tmp_path / "x.run")]
    assert found == run


@pytest.mark.parametrize(
    ("ranking", "words"),
    [
        (("q 1", [("a", 1.0)]), "white space"),
        (("q", [("a b", 1.0)]), "white space"),
        (("q", [("", 1.0)]), "is empty"),
        (("q", [("a", math.nan)]), "finite"),
        (("q", [("a", -math.inf)]), "finite"),
        (("q", [("a", 1.0), ("b", 2.0)]), "rises at rank 2"),
        (("q", [("a", 1.0), ("a", 1.0)]), "twice"),
    ],
)
def test_what_a_run_cannot_hold_is_refused(tmp_path: Path, ranking, words: str) -> None:
    with pytest.raises(DataError, match=words):
        TREC_RUN.write(tmp_path / "x.run", as_records([ranking]))
    assert list(tmp_path.iterdir()) == []


def test_malformed_runs_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("q Q0 a 1 1.0 t\nq Q0 b\n")
    with pytest.raises(DataError, match="x:2: 3 fields"):
        list(TREC_RUN.read(path))
    path.write_text("q Q0 a 1 one t\n")
    with pytest.raises(DataError, match="x:1: score 'one'"):
        list(TREC_RUN.read(path))
    path.write_text("q 0 a yes\n")
    with pytest.raises(DataError, match="whole number"):
        list(TREC_QRELS.read(path))
