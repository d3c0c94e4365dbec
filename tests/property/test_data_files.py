"""Properties of files: what is written is what is read."""

import csv
import io
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag.core.types import Passage
from rag.data.examples import Candidate, Example, write_run
from rag.data.files.rows import table_rows

lines = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
ids = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=6)
scores = st.floats(allow_nan=False, allow_infinity=False, width=32)
cells = st.text(alphabet='ab"\t, é', max_size=8)


def hit(passage: Passage, score: float, has_answer: bool | None = None) -> Candidate:
    return Candidate(passage, "retrieved", score=score, has_answer=has_answer)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "file"


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(ids, st.dictionaries(ids, scores, min_size=1, max_size=4), max_size=4))
def test_trec_runs_keep_float32_scores_exactly(place: Path, run: dict[str, dict[str, float]]) -> None:
    rankings = [
        (question, sorted(((p, np.float32(s)) for p, s in passages.items()), key=lambda pair: -pair[1]))
        for question, passages in run.items()
    ]
    write_run(
        place,
        [
            Example(question, "", candidates=tuple(hit(Passage(p, "", ""), s) for p, s in ranking))
            for question, ranking in rankings
        ],
    )
    written: dict[str, dict[str, float]] = {}
    for question, _, passage, _, score, _ in map(str.split, place.read_text().splitlines()):
        written.setdefault(question, {})[passage] = float(score)
    assert written == run


@settings(deadline=None)
@given(st.lists(cells, min_size=2, max_size=5), st.sampled_from(["\t", ",", ";"]))
def test_rows_of_the_csv_module_are_read_back(row: list[str], delimiter: str) -> None:
    names = [f"column{number}" for number in range(len(row))]
    written = io.StringIO()
    csv.writer(written, delimiter=delimiter).writerows([names, row])
    stream = io.BufferedReader(io.BytesIO(written.getvalue().encode()))  # type: ignore[arg-type]
    found = [list(cells.values()) for _, cells in table_rows(stream, "x", lambda _: (names, True))]
    assert found == [row]
