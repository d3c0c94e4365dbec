"""Files that commands write for other programs: passages, TREC runs, and MDR's paths."""

import csv
import gzip
import io
import json
import math
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rag.core.errors import ConfigError, DataError
from rag.core.files import atomic_path
from rag.core.types import Passage, Question
from rag.data.examples import Example
from rag.data.files.record import finite, open_text, write_json_lines


def write_passages(path: str | Path, passages: Iterable[Passage]) -> int:
    """Write passages to one file, atomically, and return their number.

    `.jsonl` gives one `{"id", "title", "text"}` per line, `.tsv` the columns `id`, `text`, `title` with a
    header and quoting as in `psgs_w100.tsv`; `.gz` after either compresses. `rag index … --split none` reads
    both.

    Raises:
        ConfigError: the file name has another extension.
        DataError: there was no passage to write.
        ResourceError: the disk is full or the place cannot be written.
    """
    path = Path(path)
    is_gzip = path.suffix == ".gz"
    kind = Path(path.stem).suffix if is_gzip else path.suffix
    if kind not in (".jsonl", ".tsv"):
        raise ConfigError(
            f"cannot tell the format of {path.name!r} from its name",
            hint="name it .jsonl or .tsv, with .gz after it to compress",
        )
    with atomic_path(path) as temporary, ExitStack() as stack:
        raw: Any = stack.enter_context(temporary.open("wb"))
        if is_gzip:  # no name and no time inside: the same passages give the same bytes
            raw = stack.enter_context(gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0))
        stream = stack.enter_context(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        table = csv.writer(stream, delimiter="\t", lineterminator="\n")
        if kind == ".tsv":
            table.writerow(("id", "text", "title"))
        n_passages = 0
        for passage in passages:
            n_passages += 1
            if kind == ".tsv":
                table.writerow((passage.id, passage.text, passage.title))
            else:
                stream.write(json.dumps(passage.to_json(), ensure_ascii=False) + "\n")
        if n_passages == 0:
            raise DataError("no passages to write", hint="every document was empty or refused")
    return n_passages


def write_paths(
    path: str | Path, results: Iterable[tuple[Question, Sequence[tuple[float, Sequence[Passage]]]]]
) -> None:
    """Write MDR's results, one question per line, atomically.

    Each is `{"_id", "question", "candidate_chains": [[{"id", "title", "text"}, …], …], "scores": […]}`, best
    path first; MDR's own files have neither ids nor scores.

    Raises:
        ResourceError: the disk is full or not writable.
    """
    records = (
        {
            "_id": question.id,
            "question": question.text,
            "candidate_chains": [[passage.to_json() for passage in passages] for _, passages in paths],
            "scores": [score for score, _ in paths],
        }
        for question, paths in results
    )
    write_json_lines(Path(path), records)


def write_run(path: Path, examples: Iterable[Example]) -> None:
    """Write a TREC run: ranks from 1 in the order given, scores that read back exactly."""
    with open_text(path) as file:
        for example in examples:
            question = _token(example.id, "question id")
            tag = _token(str(example.meta.get("tag") or "rag"), "tag")
            last, seen = math.inf, set[str]()
            for rank, hit in enumerate(example.candidates, start=1):
                passage = _token(hit.passage.id, "passage id")
                where = f"passage {passage!r} of question {question!r}"
                score = -float(rank) if hit.score is None else finite(hit.score, where)
                if score > last:
                    raise DataError(
                        f"question {question!r}: the score rises at rank {rank}; expected falling scores",
                        hint="distances of an HNSW index must be negated first",
                    )
                if passage in seen:
                    raise DataError(f"question {question!r}: passage {passage!r} stands twice in its ranking")
                last = score
                seen.add(passage)
                file.write(f"{question} Q0 {passage} {rank} {score!r} {tag}\n")


def _token(value: str, what: str) -> str:
    """The value, if it is a token of a file whose fields are separated by blanks.

    Raises:
        DataError: it is empty or holds white space.
    """
    if not value or value.split() != [value]:
        raise DataError(
            f"{what} {value!r} is empty or holds white space, which this format cannot express",
            hint="write a JSON format, or give ids without spaces",
        )
    return value
