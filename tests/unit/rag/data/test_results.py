import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from rag.core.errors import DataError
from rag.core.types import Passage
from rag.data.examples import Candidate, Example
from rag.data.files.dpr_family import DPR_RESULTS, write_results
from rag.data.files.tables import TREC_QRELS, TREC_RUN, write_run


def hit(id: str, title: str = "", text: str = "", score: float | None = None, **known) -> Candidate:
    return Candidate(Passage(id, title, text), "retrieved", score=score, **known)


RESULTS = [
    Example("q1", "who?", ("A",), (hit("1", "T", "x é", 1 / 3, has_answer=True), hit("2", "", "y", -2.5))),
    Example("", "when?"),
]


def as_examples(rankings, tag: str = "rag") -> list[Example]:
    return [
        Example(question, "", candidates=tuple(hit(p, score=s) for p, s in ranking), meta={"tag": tag})
        for question, ranking in rankings
    ]


def test_dpr_results_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "out" / "results.json"
    assert write_results(path, iter(RESULTS)) == 2
    assert list(DPR_RESULTS.read(path)) == RESULTS
    first = json.loads(path.read_text())[0]
    assert list(first["ctxs"][0]) == ["id", "title", "text", "score", "has_answer"]
    assert write_results(path, []) == 0
    assert json.loads(path.read_text()) == []
    assert list(DPR_RESULTS.read(path)) == []


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_results(path, RESULTS)
    before = path.read_bytes()

    def interrupted() -> Iterator[Example]:
        yield RESULTS[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_results(path, interrupted())
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
    (result,) = DPR_RESULTS.read(path)
    assert result.candidates == (hit("wiki:7", "T", "x", 81.5),)
    path.write_text("".join(json.dumps(record) + "\n" for record in dpr * 2))
    assert [r.passages[0].id for r in DPR_RESULTS.read(path)] == ["wiki:7", "wiki:7"]
    contexts = [{"docid": "7", "score": 2, "text": '"T"\nx', "has_answer": False}]
    path.write_text(json.dumps({"3": {"question": "q", "answers": ["a"], "contexts": contexts}}))
    (result,) = DPR_RESULTS.read(path)
    assert result == Example("3", "q", ("a",), (hit("7", "T", "x", 2.0, has_answer=False),))
    del contexts[0]["docid"]
    path.write_text(json.dumps({"3": {"question": "q", "answers": ["a"], "contexts": contexts}}))
    assert next(DPR_RESULTS.read(path)).passages[0].title == "T"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ('[{"question": "q", "ctxs": 3}]', "record 1: ctxs is not a list"),
        ('[{"question": "q", "ctxs": [{"id": "1", "text": "x", "title": "", "score": "high"}]}]', "high"),
        ("[3]", "record 1"),
        ('{"a": 3}', "r.json:1: no question"),
        ('{"question": "q", "ctxs": []}\n{"x\n', r"r\.json:2"),
    ],
)
def test_malformed_results_are_named(tmp_path: Path, data: str, words: str) -> None:
    (tmp_path / "r.json").write_text(data)
    with pytest.raises(DataError, match=words):
        list(DPR_RESULTS.read(tmp_path / "r.json"))


def test_trec_run(tmp_path: Path) -> None:
    run = [("q1", [("b", 0.1 + 0.2), ("a", 1e-17)]), ("q2", [("a", -3.0)])]
    write_run(tmp_path / "x.run", as_examples(run, tag="dense"))
    assert (tmp_path / "x.run").read_text().splitlines()[0] == "q1 Q0 b 1 0.30000000000000004 dense"
    found = [
        (r.id, [(c.passage.id, c.score) for c in r.candidates]) for r in TREC_RUN.read(tmp_path / "x.run")
    ]
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
        write_run(tmp_path / "x.run", as_examples([ranking]))
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
