"""Search for part numbers, names and codes in files that are made from a seed."""

from __future__ import annotations

import hashlib
import json
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

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

    files = folder / "files"
    questions = [question for question in make_codes(files) if question.half == half]
    texts = [question.text for question in questions]
    built = folder / Path(encoder).name
    build(files, built, encoder=encoder)
    is_first: dict[str, list[bool]] = {}
    with Index.open(built) as index:
        for kind in ("bm25", "dense", "hybrid"):
            is_first[kind] = []
            results = open_retriever(index, kind).search(texts, 1)
            for question, hits in zip(questions, results, strict=True):
                passages = [index.passages[hit.row] for hit in hits]
                found = _words(" ".join(f"{passage.title} {passage.text}" for passage in passages))
                is_first[kind].append(_words(question.record) <= found)
    by_bm25 = np.array(is_first["bm25"])
    title = f"right passage first, per cent of {len(questions)} questions"
    report = Report(title)
    for kind, flags in is_first.items():
        right = np.array(flags, float)
        report.rows[kind] = {
            "all": bootstrap(right).times(100),
            f"{by_bm25.sum()} that BM25 finds": bootstrap(right[by_bm25]).times(100),
        }
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
    words = described["words"]
    for kind in described["kinds"]:
        records: dict[str, str] = {}  # by key
        while len(records) < kind["count"]:
            key = _filled(kind["key"], words, draw)
            if key not in records:
                records[key] = _filled(kind["record"], {**words, "key": [key]}, draw)
        atomic_write_text(folder / kind["file"], kind["head"] + "".join(records.values()))
        for number, key in enumerate(draw.sample(sorted(records), PER_KIND)):
            wording = kind["wordings"][number % len(kind["wordings"])]
            name = f"{kind['kind']}-{number:03d}"
            question = wording.replace("{key}", key)
            questions.append(CodeQuestion(name, question, kind["kind"], records[key]))
    return questions


def _filled(pattern: str, words: dict[str, list[str]], draw: random.Random) -> str:
    """A pattern with a random digit for each ~, and for each {name} a word of that list."""
    digits = re.sub("~", lambda _: str(draw.randrange(10)), pattern)
    return re.sub(r"\{(\w+)\}", lambda name: draw.choice(words[name[1]]), digits)
