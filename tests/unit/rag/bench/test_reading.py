"""Questions made from manual pages, sets divided by document, contexts as a corpus."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

from rag.bench.reading import corpus
from rag.bench.reading.manuals import manual_questions
from rag.bench.reading.prepare import _divide, _with_bars

PAGE = r"""
.TH FROB "1"
.SH NAME
frob \- arrange the boxes of a warehouse by size
.SH OPTIONS
.TP
\fB\-n\fR, \fB\-\-number\fR=\fI\,COUNT\/\fR
print so many boxes.  The default is 25.
.TP
.BR \-\-no\-wrap
leave long lines as they are
.SH FILES
.IP /etc/frob.conf
settings of the whole machine
.SH NOTES
It speaks the Box Exchange Protocol (BEP) only.
"""


def test_answers_stand_at_their_places_and_keep_every_sign(tmp_path: Path) -> None:
    path = tmp_path / "frob.1.gz"
    path.write_bytes(gzip.compress(PAGE.encode()))
    found: dict[str, dict[str, Any]] = {}
    for seed in range(40):
        for record in manual_questions(path, random.Random(seed), 8):
            for answer in record["answers"]:
                assert record["context"].startswith(answer["text"], answer["start"])
            first = record["answers"][0]["text"]
            assert first.lower() not in record["question"].lower()
            found[first] = record
    assert {"--number", "--no-wrap", "25", "/etc/frob.conf", "frob", "Box Exchange Protocol"} < found.keys()
    assert {"print so many boxes", "arrange the boxes of a warehouse by size"} < found.keys()
    forms = [answer["text"] for answer in found["--number"]["answers"]]
    assert forms[:3] == ["--number", "-n", "-n, --number"]


def test_a_document_is_on_one_side(tmp_path: Path) -> None:
    records = [{"title": f"t{n % 20}", "question": f"q{n}"} for n in range(100)]
    _divide(tmp_path, "set", records, lambda record: str(record["title"]), 0.4)
    sides = [
        list(map(json.loads, gzip.decompress((tmp_path / f"set-{part}.jsonl.gz").read_bytes()).splitlines()))
        for part in ("train", "held-out")
    ]
    titles = [{record["title"] for record in side} for side in sides]
    assert sum(map(len, sides)) == 100
    assert titles[0]
    assert titles[1]
    assert not titles[0] & titles[1]


def test_a_table_with_bars_keeps_its_cells() -> None:
    rows = [f"Name: n{n}; Year: {n}; Club: c" for n in range(3)]
    tables = [
        _with_bars({"title": f"t{n}", "context": "\n".join(rows), "answers": [{"text": "n1", "start": 99}]})
        for n in range(30)
    ]
    barred = [table for table in tables if "|" in table["context"]]
    assert 3 <= len(barred) <= 18
    assert barred[0]["context"] == "Name | Year | Club\nn0 | 0 | c\nn1 | 1 | c\nn2 | 2 | c"
    assert barred[0]["answers"] == ["n1"]


def test_contexts_become_a_corpus_that_does_not_know_the_answers(tmp_path: Path) -> None:
    text = " ".join(f"word{n}" for n in range(25))
    asked = [("a", "word3", text), ("b", "word19 word20", text), ("c", "word3", text + " more")]
    records = [
        {"id": id, "title": "T", "context": context, "question": f"{id}?",
         "answers": [{"text": answer, "start": context.index(answer)}]}
        for id, answer, context in asked
    ]  # fmt: skip
    (tmp_path / "set.jsonl").write_text("\n".join(map(json.dumps, records)))
    corpus.main(tmp_path / "set.jsonl", tmp_path / "out", words=10)
    read = [list(map(json.loads, (tmp_path / "out" / f"{name}.jsonl").read_text().splitlines()))
            for name in ("passages", "questions")]  # fmt: skip
    joined = " ".join(one["text"] for one in read[0])
    assert joined.split() == [*text.split(), *text.split()[20:], "more"]  # the windows of both, each once
    assert len({one["id"] for one in read[0]}) == len(read[0]) == 4
    assert [(one["id"], one["answers"]) for one in read[1]] == [(id, [answer]) for id, answer, _ in asked]
    assert [one["gold_passage_ids"] for one in read[1]] == [["0-0"], [], ["0-0"]]  # a border cuts b's answer
