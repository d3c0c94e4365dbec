"""Search for part numbers, names and codes in files that are made from a seed."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rag.bench.report import Report
from rag.core.files import atomic_write_text
from rag.metrics.significance import bootstrap

RECORDS = Path(__file__).with_suffix(".json")
PER_KIND = 50


@dataclass(frozen=True, slots=True)
class CodeQuestion:
    """A question about the record of a code.

    Attributes:
        kind: what the code names, such as an article or a person.
        record: the only record with that code as its key, on a line; a right passage has all of it.
    """

    id: str
    text: str
    kind: str
    record: str

    @property
    def half(self) -> str:
        """The part of the set: "read" while a search is chosen, "unread" for its last check."""
        digest = hashlib.sha256(self.id.encode()).digest()
        return "unread" if digest[0] % 2 else "read"


def run_codes_benchmark(
    folder: Path,
    half: Literal["read", "unread"] = "read",
    encoder: str = "minilm-qa",
) -> Report:
    """Search for part numbers, names and codes: hybrid search beside BM25 and dense search.

    Args:
        folder: Gets handbooks, tables, logs and settings, and their index, which a later run uses.
        half: Questions that may be looked at while a search is chosen (read), or the others.
        encoder: Encoder of the passages.
    """
    from indexers.index import Index
    from rag.commands import index as build
    from retrievers.open import open_retriever

    report = Report("codes", {"half": half, "encoder": encoder})
    files = folder / "files"
    questions = [question for question in make_codes(files) if question.half == half]
    texts = [question.text for question in questions]
    place = folder / Path(encoder).name
    build(files, place, encoder=encoder)
    is_first: dict[str, list[bool]] = {}
    with Index.open(place) as index:
        passages = [_words(f"{passage.title} {passage.text}") for passage in index.passages]
        for kind in ("bm25", "dense", "hybrid"):
            found = open_retriever(index, kind).search(texts, 1)
            is_first[kind] = [
                any(_words(question.record) <= passages[hit.row] for hit in hits)
                for question, hits in zip(questions, found, strict=True)
            ]
    by_bm25 = np.array(is_first["bm25"])
    rows = []
    for kind, values in is_first.items():
        right = np.array(values, float)
        figures = {"first": bootstrap(right)[0], "where_bm25": bootstrap(right[by_bm25])[0]}
        report.figures[kind] = figures
        rows.append((kind, *(f"{figure.times(100):.1f}" for figure in figures.values())))
    title = f"right passage first, per cent of {len(questions)} questions"
    report.add_table(title, ("retriever", "all", f"{by_bm25.sum()} that BM25 finds"), rows)
    return report


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def make_codes(folder: Path, *, seed: int = 0) -> list[CodeQuestion]:
    """Write handbooks, tables, logs and settings into a folder; returns the questions.

    Codes of different kinds have numbers of the same shape, and records mention codes of others.
    """
    described = json.loads(RECORDS.read_text(encoding="utf-8"))
    draw = random.Random(seed)
    questions = []
    for kind in described["kinds"]:
        records = dict(_records(kind, described["words"], draw))
        text = kind["head"] + "".join(records.values())
        atomic_write_text(folder / kind["file"], text)
        for number, key in enumerate(draw.sample(sorted(records), PER_KIND)):
            wording = kind["wordings"][number % len(kind["wordings"])]
            question = wording.replace("{key}", key)
            name = f"{kind['kind']}-{number:03d}"
            questions.append(CodeQuestion(name, question, kind["kind"], records[key]))
    return questions


def _records(
    kind: dict[str, Any], words: dict[str, list[str]], draw: random.Random
) -> Iterator[tuple[str, str]]:
    """Keys and records of a kind, in which every key is drawn once."""
    keys = set[str]()
    while len(keys) < kind["count"]:
        key = _filled(kind["key"], words, draw)
        if key not in keys:
            keys.add(key)
            yield key, _filled(kind["record"], {**words, "key": [key]}, draw)


def _filled(pattern: str, words: dict[str, list[str]], draw: random.Random) -> str:
    """A pattern with a random digit for each ~, and for each {name} a word of that list."""
    digits = re.sub("~", lambda _: str(draw.randrange(10)), pattern)
    return re.sub(r"\{(\w+)\}", lambda name: draw.choice(words[name[1]]), digits)
