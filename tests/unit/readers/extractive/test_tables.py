"""Cells of tables: which of them fit a question, and what that does to an answer's rank and
score.
"""

import pytest

from rag.core.types import Passage
from rag.data.table_text import table_rows
from readers.extractive.ranking import TableMatch
from readers.extractive.reader import ExtractiveReader
from readers.words import content_words
from tests.support.reading import read_one, with_settings

QUESTION = "how many meters is the bridge?"
NAMED = "Team: Ajax; Points: 61; Coach: Ten Hag\nTeam: PSV; Points: 58; Coach: Schmidt"
BARS = "Team | Points | Coach\nAjax | 61 | Ten Hag\nPSV | 58 | Schmidt"
MARKED = "| Team | Points | Coach |\n| --- | --- | --- |\n| Ajax | 61 | Ten Hag |\n| PSV | 58 | Schmidt |"
TABLE = Passage("t", "", "tower: meters: 324; built: 1889\nbridge: meters: 51; built: 1901")
PROSE = Passage("p", "", "A river bridge was built near the city in 1907.")
QUOTED = NAMED.replace("Points: 61", "Note: “old: yes; big | new”; Points: 61")
LABELLED = "Ajax: Points: 61; Coach: Ten Hag\nPSV: Points: 58; Coach: Schmidt"


def match_of(question: str, *texts: str) -> TableMatch:
    return TableMatch(content_words(question), dict(enumerate(texts)))


def best(question: str, text: str) -> str:
    match = match_of(question, "No table here: none at all; none.", text)
    cells = [cell for row in table_rows(text) for cell in row.cells]
    return max(cells, key=lambda cell: match(1, cell.start, cell.end)).value


@pytest.mark.parametrize("text", [NAMED, BARS, MARKED, LABELLED, QUOTED])
def test_the_cell_of_the_row_and_column_asked_for_fits_best(text: str) -> None:
    assert best("How many points does PSV have?", text) == "58"
    assert best("Who is the coach of Ajax?", text) == "Ten Hag"


def test_what_is_no_cell_fits_nothing() -> None:
    text = f"The team was strong.\n\n{NAMED}\n\nPoints are what a team wins."
    match = match_of("How many points has the team PSV?", text)
    for words in ("strong", "wins", "Points: 58", "58; Coach: Schmidt\n\nPoints"):
        at = text.rindex(words)
        assert match(0, at, at + len(words)) == 0.0, words
    assert not match_of("How many points has PSV?", "Prose without a table: none.")
    assert not match_of("Why?", text)


def test_the_first_answer_keeps_its_own_score(reader: ExtractiveReader) -> None:
    reader = with_settings(reader, spans_per_window=60, candidates=200)
    weighted = with_settings(reader, table_weight=50.0)
    plain, result = (read_one(r, QUESTION, [PROSE, TABLE], n_best=200) for r in (reader, weighted))
    first = result.answers[0]
    assert (first.text, first.evidence.passage_id) == ("51", "t")
    assert plain.answers[0].text != "51"
    assert first.score < plain.answers[0].score  # what it gained does not count
    of_prose = [
        {a.text: a.score for a in r.answers if a.evidence.passage_id == "p"}
        for r in (plain, result)
    ]
    for text, score in of_prose[1].items():
        assert score == pytest.approx(of_prose[0][text] - 50.0 * 3, abs=1e-3)
    assert read_one(weighted, QUESTION, [PROSE]) == read_one(reader, QUESTION, [PROSE])


def test_further_spans_count_in_cells_alone(reader: ExtractiveReader) -> None:
    def answers(passages: list[Passage], **changes: float) -> set[tuple[str, int]]:
        changed = with_settings(reader, spans_per_window=1, candidates=200, **changes)
        result = read_one(changed, QUESTION, passages, n_best=200)
        return {(answer.text, answer.evidence.passage_id) for answer in result.answers}

    plain = answers([PROSE, TABLE])
    assert len(plain) == 2
    assert (
        answers([PROSE, TABLE], table_spans=60) == plain
    )  # without a weight nothing is asked of tables
    more = answers([PROSE, TABLE], table_spans=60, table_weight=1.0) - plain
    assert {("51", "t"), ("324", "t")} <= more | plain
    assert {place for _, place in more} == {"t"}
    assert answers([PROSE], table_spans=60, table_weight=1.0) == answers([PROSE])
