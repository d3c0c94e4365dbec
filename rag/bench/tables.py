"""Questions about the cells of tables in every format, and how many are read and answered right.

`python -m rag.bench.tables FOLDER [SEED]` makes 24 documents, indexes them and asks 120 questions,
half of them held out by document: look at the mistakes of the other half alone.
"""

import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rag.bench.table_files import FILES, MadeTable
from rag.core.types import Passage
from rag.data.files.rows import write_json_lines
from rag.data.table_text import table_rows
from rag.data.text import exact_match
from readers.words import words

_SYLLABLES = ["bar", "ven", "tol", "kir", "dan", "mos", "fel", "gra", "lun", "per", "sol", "tri"]
_FIRST_NAMES = [
    "Ann",
    "Bob",
    "Cleo",
    "Dirk",
    "Elsa",
    "Finn",
    "Gwen",
    "Hugo",
    "Iris",
    "Jack",
    "Kira",
    "Liam",
    "Mona",
    "Nils",
    "Olga",
    "Paul",
]
_PROSE = (
    "This page was made by {name} for the people of {place}. Its figures are checked every year."
)
_N_ROWS = 5
_N_QUESTIONS = 5  # of a document


@dataclass(frozen=True, slots=True)
class TableQuestion:
    """A question about one cell.

    Attributes:
        headings: the names of its column from the outermost level on, "" aside.
        labels: what names its row.
    """

    question: str
    answer: str
    document: str
    is_held_out: bool
    headings: tuple[str, ...]
    labels: tuple[str, ...]


_MakeCell = Callable[[random.Random, int], str]
"""Makes the cell of a column in a row, by number."""


@dataclass(frozen=True, slots=True)
class _Topic:
    """A kind of table: headings, the makers of its cells, and a question for each column of values.

    In questions {row} is the last label of the row and {company} the name of the document.
    """

    title: str
    headings: tuple[tuple[str, ...], ...]
    n_labels: int
    columns: tuple[_MakeCell, ...]
    questions: tuple[str, ...]


def _amount(least: int, most: int, unit: str = "", decimals: int = 0) -> _MakeCell:
    return lambda draw, _: f"{draw.uniform(least, most):,.{decimals}f} {unit}".strip()


def _one_of(*texts: str) -> _MakeCell:
    return lambda draw, _: draw.choice(texts)


def _name(draw: random.Random, _: int = 0) -> str:
    return "".join(draw.sample(_SYLLABLES, 3)).capitalize()


def _code(draw: random.Random, _: int) -> str:
    return f"{_name(draw)[:2].upper()}-{draw.randrange(100, 999)}"


def _person(draw: random.Random, _: int) -> str:
    return f"{draw.choice(_FIRST_NAMES)} {_name(draw)}"


def _date(draw: random.Random, _: int) -> str:
    return f"{draw.randrange(1, 28)} {draw.choice(['March', 'June', 'October'])} {draw.randrange(2019, 2026)}"


def _in_turn(*texts: str, rows: int = 1) -> _MakeCell:
    """The texts in turn, each in so many rows."""
    return lambda _, row: texts[row // rows % len(texts)]


_SALES = _amount(1000, 9999, "€")
_TOPICS = (
    _Topic(
        "Power and price of the devices",
        (("Model",), ("Power", "Idle"), ("Power", "Load"), ("Noise",), ("Price",)),
        1,
        (
            _code,
            _amount(2, 9, "W"),
            _amount(20, 90, "W"),
            _amount(20, 50, "dB"),
            _amount(90, 2000, "€", 2),
        ),
        (
            "What is the idle power of the {row}?",
            "How much power does the {row} take under load?",
            "What is the noise of the {row}?",
            "What is the price of the {row}?",
        ),
    ),
    _Topic(
        "Results of the company",
        (("",), ("2022",), ("2023",), ("2024",), ("2025",)),
        1,
        (
            _in_turn("Sales", "Costs", "Profit", "Staff", "Debt"),
            *[_amount(1000, 9999)] * 4,
        ),
        tuple(
            f"What was the figure for {{row}} of {{company}} in {year}?"
            for year in range(2022, 2026)
        ),
    ),
    _Topic(
        "Members of the teams",
        (("Team",), ("Member",), ("Role",), ("Office",), ("Phone",)),
        2,
        (
            _in_turn("Red", "Blue", "Green", rows=2),
            _person,
            _one_of("lead", "developer", "tester", "writer"),
            _name,
            _amount(100, 999),
        ),
        (
            "What is the role of {row}?",
            "In which office is {row}?",
            "What is the phone number of {row}?",
        ),
    ),
    _Topic(
        "Revenue by region and quarter",
        (("Region",), ("2024", "Q1"), ("2024", "Q2"), ("2025", "Q1"), ("2025", "Q2")),
        1,
        (_in_turn("North", "South", "East", "West", "Benelux"), *[_SALES] * 4),
        tuple(
            f"How high was the revenue of {{company}} in the region {{row}} in {quarter} of {year}?"
            for year in (2024, 2025)
            for quarter in ("Q1", "Q2")
        ),
    ),
    _Topic(
        "Properties of the materials",
        (("Material",), ("Strength", "MPa"), ("Density", "kg/l"), ("Melting point", "°C")),
        1,
        (_code, _amount(100, 900), _amount(1, 9, decimals=2), _amount(300, 1900)),
        (
            "What is the strength of {row}?",
            "What is the density of {row}?",
            "What is the melting point of {row}?",
        ),
    ),
    _Topic(
        "Care of the machines",
        (("Hall",), ("Machine",), ("Technician",), ("Last check",), ("Remark",)),
        2,
        (
            _in_turn("Hall 1", "Hall 2", "Hall 3", rows=2),
            _code,
            _person,
            _date,
            _one_of("clean: daily; oil: weekly", "belts, see page 7: renew", "none | all well"),
        ),
        ("Who is the technician of the {row}?", "When was the last check of the {row}?"),
    ),
    _Topic(
        "Parking rates by town",
        (("",), ("",), ("Rate", "Day"), ("Rate", "Night"), ("Places",)),
        2,
        (
            _in_turn("Coast", "Hills", "Plain", rows=2),
            _name,
            _amount(2, 9, "€", 2),
            _amount(1, 5, "€", 2),
            _amount(100, 999),
        ),
        (
            "What is the day rate in {row}?",
            "What is the night rate in {row}?",
            "How many places are there in {row}?",
        ),
    ),
    _Topic(
        "Costs and margins of the courses",
        (("Course",), ("Fee",), ("Margin",), ("Seats",), ("Teacher",)),
        1,
        (_name, _amount(100, 2000, "€", 2), _amount(5, 40, "%", 1), _amount(8, 30), _person),
        (
            "What is the fee of the course {row}?",
            "What is the margin of the course {row}?",
            "How many seats has the course {row}?",
            "Who is the teacher of the course {row}?",
        ),
    ),
)


def make(folder: Path, seed: str = "1") -> list[TableQuestion]:
    """Write the documents into a folder; returns the questions about them."""
    folder.mkdir(parents=True, exist_ok=True)
    questions: list[TableQuestion] = []
    for first, kind in enumerate(FILES):
        for number in range(4):
            draw = random.Random(f"{seed} {kind} {number}")
            topics = [_TOPICS[(2 * number + first + shift) % len(_TOPICS)] for shift in (0, 1)]
            tables = [_table(topic, draw) for topic in topics]
            name = f"{_name(draw)}.{kind}"
            prose = _PROSE.format(name=_person(draw, 0), place=_name(draw))
            content = FILES[kind](Path(name).stem, prose, tables)
            (folder / name).write_bytes(content)
            n_asked = 1 if kind == "csv" else 2  # such a file holds the first table alone
            drawn: list[TableQuestion] = []
            while len(drawn) < _N_QUESTIONS:
                place = len(drawn) % n_asked
                question = _question(topics[place], tables[place], draw, name, number % 2 == 1)
                if question not in drawn:
                    drawn.append(question)
            questions += drawn
    return questions


def _table(topic: _Topic, draw: random.Random) -> MadeTable:
    rows = []
    for row in range(_N_ROWS):
        rows.append([make_cell(draw, row) for make_cell in topic.columns])
    return MadeTable(topic.title, topic.headings, topic.n_labels, rows)


def _question(
    topic: _Topic, table: MadeTable, draw: random.Random, name: str, is_held_out: bool
) -> TableQuestion:
    row = draw.choice(table.rows)
    number = draw.randrange(len(topic.questions))
    column = topic.n_labels + number
    text = topic.questions[number].format(row=row[topic.n_labels - 1], company=Path(name).stem)
    labels = tuple(row[: topic.n_labels])
    return TableQuestion(text, row[column], name, is_held_out, topic.headings[column], labels)


def stands_under_headings(passage: Passage, question: TableQuestion) -> bool:
    """Whether a passage has a cell with the answer under exactly its headings, in a row with all
    its labels, in the row or in the passage's title.
    """
    expected = set(words(" ".join(question.headings)))
    for row in table_rows(passage.text):
        context = f"{passage.title} {row.line}"
        if not all(label in context for label in question.labels):
            continue
        for cell in row.cells:
            if cell.value == question.answer and set(words(cell.column)) == expected:
                return True
    return False


def is_right(answer: str, question: TableQuestion) -> bool:
    """Whether an answer is the cell's text, with or without its unit."""
    accepted = [question.answer]
    with_unit = re.fullmatch(r"(\d.*) \D+", question.answer)
    if with_unit:
        accepted.append(with_unit[1])
    return bool(exact_match(answer, accepted))


def measure(index: Path, questions: Sequence[TableQuestion]) -> Iterator[dict[str, object]]:
    """For each question whether its cell is read and answered right, and the answer."""
    from rag.pipeline import Pipeline

    with Pipeline.open(index) as pipeline:
        results = pipeline.ask_many([question.question for question in questions])
        passages = list(pipeline.index.passages)
    for question, result in zip(questions, results, strict=True):
        of_document = [
            passage for passage in passages if passage.id.startswith(f"{question.document}-")
        ]
        answer = result.answers[0].text if result.answers else ""
        yield {
            **asdict(question),
            "is_read": any(stands_under_headings(passage, question) for passage in of_document),
            "is_right": bool(answer) and is_right(answer, question),
            "given": answer,
        }


def main() -> None:
    """Make, index, ask, and print shares by format and half."""
    from rag.commands import index

    folder = Path(sys.argv[1])
    questions = make(folder / "documents", *sys.argv[2:3])
    index([str(folder / "documents")], folder / "index")
    results = list(measure(folder / "index", questions))
    write_json_lines(folder / "results.jsonl", results)
    counts = Counter[tuple[str, str, str]]()
    for result in results:
        half = "held out" if result["is_held_out"] else "seen"
        for kind in (Path(str(result["document"])).suffix.removeprefix("."), "all"):
            counts[half, kind, "questions"] += 1
            counts[half, kind, "read"] += bool(result["is_read"])
            counts[half, kind, "right"] += bool(result["is_right"])
    for labels, count in sorted(counts.items()):
        print(*labels, count)


if __name__ == "__main__":
    main()
