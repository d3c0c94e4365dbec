"""A corpus of the contexts of a question set, in windows, and its questions.

    python -m rag.bench.reading.corpus tatqa/dev-a.jsonl.gz --out tatqa

Writes `passages.jsonl` for `rag index --split none` and `questions.jsonl` for `rag evaluate`.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from rag.bench.reading.windows import Record, windows
from rag.data.files.record import json_records, write_json_lines


def corpus(records: list[Record], words: int) -> Iterator[Record]:
    """The windows of all contexts, each text once; none of them knows where an answer stands."""
    contexts = {record["context"]: record for record in records}
    seen = set[str]()
    for number, record in enumerate(contexts.values()):
        for place, window in enumerate(windows({**record, "answers": []}, words)):
            if window.text not in seen:
                seen.add(window.text)
                yield {"id": f"{number}-{place}", "title": window.title, "text": window.text}


def main(file: Path, out: Path, *, words: int) -> None:
    """Write both files."""
    records = [record for _, record in json_records(file)]
    out.mkdir(parents=True, exist_ok=True)
    write_json_lines(out / "passages.jsonl", corpus(records, words))
    questions = (
        {"id": one["id"], "question": one["question"], "answers": [a["text"] for a in one["answers"]]}
        for one in records
    )
    write_json_lines(out / "questions.jsonl", questions)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--words", type=int, default=150)
    main(**vars(parser.parse_args()))
