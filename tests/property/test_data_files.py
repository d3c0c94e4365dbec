"""Properties of files: what is written is what is read."""

import csv
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag.core.types import Passage
from rag.data.examples import Candidate, Example, write_run
from rag.data.files.rows import read_rows

lines = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
ids = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=6)
scores = st.floats(allow_nan=False, allow_infinity=False, width=32)
cells = st.text(alphabet='ab"\t, é', max_size=8)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "file"


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(ids, st.dictionaries(ids, scores, min_size=1, max_size=4), max_size=4))
def test_trec_runs_keep_float32_scores_and_their_order(
    place: Path, run: dict[str, dict[str, float]]
) -> None:
    examples = []
    for question, of_passages in run.items():
        hits = [
            Candidate(Passage(passage, "", ""), "retrieved", score=np.float32(score))
            for passage, score in of_passages.items()
        ]
        hits.sort(key=lambda hit: -hit.score)
        examples.append(Example(question, "", candidates=tuple(hits)))
    write_run(place, examples)
    written: dict[str, list[tuple[np.float32, str]]] = {}
    for question, _, passage, _, score, _ in map(str.split, place.read_text().splitlines()):
        written.setdefault(question, []).append((np.float32(score), passage))
    for example in examples:
        lines = written[example.id]
        # trec_eval's order.
        assert lines == sorted(lines, reverse=True)
        assert [passage for _, passage in lines] == [hit.passage.id for hit in example.candidates]
        values = [hit.score for hit in example.candidates]
        if len(set(values)) == len(values):
            assert [score for score, _ in lines] == values


@settings(deadline=None)
@given(st.lists(cells, min_size=2, max_size=5), st.sampled_from(["\t", ",", ";"]))
def test_rows_of_the_csv_module_are_read_back(place: Path, row: list[str], delimiter: str) -> None:
    names = [f"column{number}" for number in range(len(row))]
    path = str(place.with_suffix(".csv"))
    with open(path, "w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([names, row])
    rows = read_rows(path, lambda _: None, format="csv")
    assert [list(cells.values()) for _, _, cells in rows] == [row]
