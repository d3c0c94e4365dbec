import json
from pathlib import Path

import pytest

from rag.core.errors import DataError
from rag.core.types import Passage
from rag.data.examples import Candidate, Example, read_examples, write_examples, write_run


def hit(id: str, title: str = "", text: str = "", score: float | None = None, **known) -> Candidate:
    return Candidate(Passage(id, title, text), "retrieved", score=score, **known)


RESULTS = [
    Example("q1", "who?", ("A",), (hit("1", "T", "x é", 1 / 3, has_answer=True), hit("2", "", "y", -2.5))),
    Example("", "when?"),
]


def test_dpr_results_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "out" / "results.json"
    assert write_examples(path, iter(RESULTS)) == 2
    assert list(read_examples(path, needs="passages")) == RESULTS[:1]
    first = json.loads(path.read_text())[0]
    assert list(first["ctxs"][0]) == ["id", "title", "text", "score", "has_answer"]
    assert write_examples(path, []) == 0
    assert json.loads(path.read_text()) == []


@pytest.mark.parametrize(
    ("question", "passage", "words"),
    [("q 1", "a", "white space"), ("q", "a b", "white space"), ("q", "", "is empty")],
)
def test_what_a_run_cannot_hold_is_refused(tmp_path: Path, question: str, passage: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        write_run(tmp_path / "x.run", [Example(question, "", candidates=(hit(passage, score=1.0),))])
    assert list(tmp_path.iterdir()) == []
