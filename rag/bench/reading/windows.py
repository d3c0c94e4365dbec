"""Readers side by side on questions with a long context, read in windows that are given together.

    python -m rag.bench.reading.windows tatqa/dev-a.jsonl.gz --reader RUN/reader --out figures

Every file's records have context, question and answers ([{text, start}]). The shipped reader comes first, and
each `--reader` is compared with it. What a reader answered is kept in `--out`: a stopped command goes on.
"""

import argparse
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rag.core.arrays import Float64
from rag.core.files import atomic_write_json, read_json, sha256_file
from rag.core.types import Passage
from rag.data.files.record import json_records
from rag.data.text import AnswerMatcher, exact_match, f1
from rag.metrics.calibration import measure_calibration
from rag.metrics.significance import bootstrap, compare_paired
from readers.extractive.files import SHIPPED_READER
from readers.extractive.training.data import window_bounds
from readers.manifest import READER_FILE
from readers.open import open_reader
from readers.protocols import Reader, ReadResult

Record = dict[str, Any]
_FIGURES = ("em", "f1", "f1 shown")
_CHUNK, _EMPTIED = 21, 3


def answer_spans(record: Record) -> list[tuple[int, int]]:
    """First character of each answer in the context, and one past its last."""
    return [(a["start"], a["start"] + len(a["text"])) for a in record["answers"]]


def windows(record: Record, words: int, *, emptied: bool = False) -> list[Passage]:
    """The context in windows, none of which cuts an answer; `emptied`: without those that hold an answer."""
    spans = answer_spans(record)
    matcher = AnswerMatcher([a["text"] for a in record["answers"]])
    texts = [record["context"][begin:end] for begin, end in window_bounds(record["context"], words, spans)]
    return [
        Passage(str(number), record["title"], text)
        for number, text in enumerate(texts)
        if not (emptied and matcher.matches(text))
    ]


def answered(reader: Reader, records: Sequence[Record], words: int) -> list[dict[str, float]]:
    """A row for each question.

    Returns:
        "em" and "f1" of the best guess, its "confidence", "silent": whether "no answer" is likelier, and
        "refused": whether it is when the windows that hold an answer are taken away, which is tried on every
        third question; -1 where it is not, or no window is left.
    """
    rows = []
    for begin in range(0, len(records), _CHUNK):
        part = records[begin : begin + _CHUNK]
        left = [windows(one, words, emptied=True) if n % _EMPTIED == 0 else [] for n, one in enumerate(part)]
        results = (
            _read(reader, part, passages) for passages in ([windows(one, words) for one in part], left)
        )
        for record, result, passages, without in zip(part, next(results), left, next(results), strict=True):
            answers = [a["text"] for a in record["answers"]]
            best = result.answers[0] if result.answers else None
            text = best.text if best else ""
            rows.append(
                {
                    "em": float(exact_match(text, answers)), "f1": f1(text, answers),
                    "confidence": best.confidence if best else 0.0, "silent": float(_is_silent(result)),
                    "refused": float(_is_silent(without)) if passages else -1.0,
                }
            )  # fmt: skip
    return rows


def figures(rows: Sequence[dict[str, float]]) -> dict[str, Float64]:
    """The columns; "f1 shown" is 0 where "no answer" is likelier."""
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    return {**columns, "f1 shown": columns["f1"] * (1.0 - columns["silent"])}


def report(name: str, before: Sequence[dict[str, float]], after: Sequence[dict[str, float]]) -> Iterable[str]:
    """The figures of two readers on a set, in per cent, with 95 % intervals of their paired differences."""
    old, new = figures(before), figures(after)
    yield f"{name}: {len(before)} questions"
    for figure in _FIGURES:
        interval = bootstrap(new[figure])[0]
        paired = compare_paired(old[figure], new[figure])
        change = paired.difference
        yield (
            f"  {figure:9} {100 * old[figure].mean():5.1f} → {100 * new[figure].mean():5.1f} "
            f"[{100 * interval.low:.1f}, {100 * interval.high:.1f}]  {change.times(100):+.1f}, "
            f"p = {paired.p_value:.2g}, "
            f"{paired.wins} better, {paired.losses} worse"
        )
    hidden = [100 * one["silent"][one["em"] == 1].mean() for one in (old, new)]
    silent = [100 * one["silent"].mean() for one in (old, new)]
    refused = [100 * one["refused"][one["refused"] >= 0].mean() for one in (old, new)]
    count = int((new["refused"] >= 0).sum())
    yield f"  no answer: over right ones {hidden[0]:.1f} → {hidden[1]:.1f} %"
    yield f"  no answer: over all {silent[0]:.1f} → {silent[1]:.1f} %"
    yield f"  windows without the answer: refused {refused[0]:.1f} → {refused[1]:.1f} % of {count}"
    measured = [measure_calibration(one["confidence"], one["em"]) for one in (old, new)]
    yield f"  ECE {' → '.join(f'{one.ece:.3f}' for one in measured if one)}"


def _read(reader: Reader, part: Sequence[Record], passages: Sequence[Sequence[Passage]]) -> list[ReadResult]:
    return reader.read(
        [record["question"] for record in part], passages, [[1.0] * len(p) for p in passages], 1
    )


def _is_silent(result: ReadResult) -> bool:
    return not result.answers or result.no_answer_confidence > result.answers[0].confidence


def _drawn(path: Path, skip: int, limit: int) -> list[Record]:
    """Answerable questions number `skip` to `skip + limit`, with the contexts in random order."""
    records = [record for _, record in json_records(path) if record["answers"]]
    order = list(dict.fromkeys(record["context"] for record in records))
    random.Random(1).shuffle(order)
    place = {context: number for number, context in enumerate(order)}
    return sorted(records, key=lambda record: place[record["context"]])[skip : skip + limit]


def main(
    files: Sequence[Path], readers: Sequence[Path], out: Path, *, skip: int, limit: int, words: int
) -> None:
    """Read every set with every reader, and print the comparisons."""
    for path in files:
        records = _drawn(path, skip, limit)
        rows: list[list[dict[str, float]]] = []
        for folder in (SHIPPED_READER, *readers):
            key = f"{path.parent.name}-{skip}-{limit}-{words}-{sha256_file(folder / READER_FILE)[:12]}.json"
            if not (out / key).exists():
                reader = open_reader(folder)
                out.mkdir(parents=True, exist_ok=True)
                atomic_write_json(out / key, answered(reader, records, words))
            rows.append(read_json(out / key))
        for folder, after in zip(readers, rows[1:], strict=True):
            print("\n".join(report(f"{path.parent.name}, {folder}", rows[0], after)), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--reader", dest="readers", type=Path, action="append", default=[])
    parser.add_argument("--out", type=Path, required=True)
    for flag, usual in (("skip", 0), ("limit", 200), ("words", 150)):
        parser.add_argument(f"--{flag}", type=int, default=usual)
    main(**vars(parser.parse_args()))
