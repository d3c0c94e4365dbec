"""Human questions reworded: which are taken, what is sent, what a killed run leaves, what is kept."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from rag.bench.questions import reword as module
from rag.bench.questions.reword import (
    READING_SETS,
    Original,
    fault_of_rewording,
    keep,
    originals,
    write,
)
from rag.core.types import Passage
from rag.data.files.rows import json_records, write_json_lines
from readers.llm.endpoint import endpoint_of
from tests.chat_server import Server, chat

TEXT = "The Danube rises in the Black Forest and ends in the Black Sea after 2,850 kilometers."


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The sets with a question each, one of which is too short."""

    def pack(name: str, value: Any) -> None:
        file = tmp_path / "data" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress(json.dumps(value).encode()))

    answer = {"text": "Black Forest", "start": TEXT.index("Black Forest")}
    for name in READING_SETS:
        question = "Where?" if name == "doc2dial" else "In which forest does the river begin?"
        row = {"id": name, "title": "", "context": TEXT, "question": question, "answers": [answer]}
        pack(f"reading/{name}/train.jsonl.gz", row)
    item = {
        "id": "s1",
        "question": "Where does the Danube end its course?",
        "answers": [{"text": "Black Sea", "answer_start": TEXT.index("Black Sea")}],
    }
    pack("squad/train-v1.1.json.gz", {"data": [{"paragraphs": [{"context": TEXT, "qas": [item]}]}]})
    gold = {"title": "Danube", "text": TEXT}
    nq = {"question": "how long is the danube", "answers": ["long", "2,850 kilometers"]}
    pack("nq/train.jsonl.gz", {**nq, "positive_ctxs": [gold]})
    return tmp_path / "data"


def test_each_set_gives_its_questions_with_the_place_of_the_answer(data: Path) -> None:
    taken = list(originals(data))
    assert [original.set for original in taken] == [*READING_SETS[1:], "squad", "nq"]
    for original in taken:
        assert original.passage.text.startswith(original.answer, original.start)
    assert taken[-1].id.startswith("nq-")
    assert taken[-1].answer == "2,850 kilometers"


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_run_goes_on_behind_what_is_written(
    data: Path, server: Server, tmp_path: Path, concurrency: int
) -> None:
    server.replies = [chat("Which wood is its source in?\nI hope that helps.")]
    raw = tmp_path / "raw.jsonl"
    model = endpoint_of(server.source)
    assert write(data, raw, model, minutes=-1) == 0
    assert write(data, raw, model, minutes=5, concurrency=concurrency) == 6
    assert write(data, raw, model, minutes=5) == 6
    assert len(server.requests) == 6
    starts = {json.dumps(body["messages"][:-1]) for body in server.requests}
    assert len(starts) == 1
    rows = list(json_records(raw))
    assert {row["question"] for row in rows} == {"Which wood is its source in?"}
    assert [row["id"] for row in rows] == [original.id for original in originals(data)]


@pytest.mark.parametrize(
    ("text", "near", "reason"),
    [
        ("Which wood does it come out of?", 0.7, ""),
        ("Which wood does it come out of?", 0.5, "another meaning"),
        ("It comes out of some wood.", 0.7, "no question"),
        ("The river: in which forest does it begin?", 0.9, "the same words"),
        ("Does it come out of the Black Forest?", 0.7, "answer in the question"),
    ],
)
def test_what_asks_for_something_else_or_says_nothing_anew_goes(
    text: str, near: float, reason: str
) -> None:
    passage = Passage("", "", TEXT)
    question = "In which forest does the river begin?"
    original = Original("1", "squad", question, "Black Forest", TEXT.index("Black"), passage)
    assert fault_of_rewording(original, text, near) == reason


def test_what_is_kept_is_found_by_the_shipped_reader_and_quotes_no_passage(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_NEAREST", 0.2)
    raw = tmp_path / "raw.jsonl"
    rows = [
        {"id": "qamr_wikinews", "set": "qamr_wikinews", "question": "Where is its source?"},
        {"id": "s1", "set": "squad", "question": "How many kilometers is the Danube?"},
    ]
    write_json_lines(raw, rows)
    kept = tmp_path / "kept.jsonl"
    counts = keep(data, raw, kept)
    assert counts["squad: the reader finds another answer"] == 1
    assert sum(counts.values()) == 2
    assert TEXT[:20] not in kept.read_text()
