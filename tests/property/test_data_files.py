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
    rankings = [
        (
            question,
            sorted(((p, np.float32(s)) for p, s in passages.items()), key=lambda pair: -pair[1]),
        )
        for question, passages in run.items()
    ]
    hits = (
        (q, [Candidate(Passage(p, "", ""), "retrieved", score=s) for p, s in it])
        for q, it in rankings
    )
    write_run(place, [Example(question, "", candidates=tuple(listed)) for question, listed in hits])
    written: dict[str, list[tuple[np.float32, str]]] = {}
    for question, _, passage, _, score, _ in map(str.split, place.read_text().splitlines()):
        written.setdefault(question, []).append((np.float32(score), passage))
    for question, listed in rankings:
        # trec_eval's order.
        assert written[question] == sorted(written[question], reverse=True)
        assert [passage for _, passage in written[question]] == [passage for passage, _ in listed]
        values = [score for _, score in listed]
        if len(set(values)) == len(values):
            assert [score for score, _ in written[question]] == values


@settings(deadline=None)
@given(st.lists(cells, min_size=2, max_size=5), st.sampled_from(["\t", ",", ";"]))
def test_rows_of_the_csv_module_are_read_back(place: Path, row: list[str], delimiter: str) -> None:
    names = [f"column{number}" for number in range(len(row))]
    path = str(place.with_suffix(".csv"))
    with open(path, "w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([names, row])
    rows = read_rows(path, lambda _: None, format="csv")
    assert [list(cells.values()) for _, _, cells in rows] == [row]
