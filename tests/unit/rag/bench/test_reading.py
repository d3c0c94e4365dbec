"""Contexts of a question set as a corpus."""

from pathlib import Path

from rag.bench import reading
from rag.data.files.rows import json_records, write_json_lines


def test_contexts_become_a_corpus_that_does_not_know_the_answers(tmp_path: Path) -> None:
    text = " ".join(f"word{n}" for n in range(25))
    samples = [("a", "word3", text), ("b", "word19 word20", text), ("c", "word3", text + " more")]
    records = [
        {
            "id": id,
            "title": "T",
            "context": context,
            "question": f"{id}?",
            "answers": [{"text": answer, "start": context.index(answer)}],
        }
        for id, answer, context in samples
    ]
    write_json_lines(tmp_path / "set.jsonl", records)
    reading.main(tmp_path / "set.jsonl", out=tmp_path / "out", words=10)
    read = [
        list(json_records(tmp_path / "out" / f"{name}.jsonl")) for name in ("passages", "questions")
    ]
    joined = " ".join(item["text"] for item in read[0])
    assert joined.split() == [
        *text.split(),
        *text.split()[20:],
        "more",
    ]  # the windows of both, each once
    assert len({item["id"] for item in read[0]}) == len(read[0]) == 4
    assert [(item["id"], item["answers"]) for item in read[1]] == [
        (id, [answer]) for id, answer, _ in samples
    ]
    assert [item["gold_passage_ids"] for item in read[1]] == [
        ["0-0"],
        [],
        ["0-0"],
    ]  # a border cuts b's answer
