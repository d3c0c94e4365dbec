"""How many cells of tables in PDFs are read right, on 30 made files whose cells are known.

`python -m rag.bench.pdf_tables [SEED]` prints the share of cells for each kind of file, and the time
per page.
"""

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from statistics import mean, median

from rag.bench.table_files import MadeTable, PdfPage, pdf, spots, wrapped
from rag.data.documents.convert import convert
from rag.data.documents.grid import Cell, filled, table
from rag.data.table_text import table_rows
from rag.metrics.significance import bootstrap

_WORDS = (
    "valve pump motor filter north south early heavy light steel copper glass paper cotton river "
    "harbour market winter summer garden window letter number record station morning evening"
)
_KINDS = (
    "ruled",
    "unruled",
    "ruled, wrapped",
    "unruled, wrapped",
    "ruled, two levels",
    "unruled, two levels",
    "ruled, several",
    "unruled, several",
    "unruled, beside prose",
    "prose in two columns",
)
_FILES_OF_KIND = 3


@dataclass(frozen=True, slots=True)
class MadePdf:
    """A file of one page and its tables."""

    kind: str
    data: bytes
    tables: tuple[MadeTable, ...]


def made_pdfs(seed: str = "1") -> Iterator[MadePdf]:
    """Three files of each kind."""
    for kind in _KINDS:
        for number in range(_FILES_OF_KIND):
            yield _made(kind, random.Random(f"{seed} {kind} {number}"))


def _made(kind: str, draw: random.Random) -> MadePdf:
    page = PdfPage()
    y = page.prose(50, 800, [_phrase(draw, 3).capitalize()], size=16)
    tables: list[MadeTable] = []
    if kind == "prose in two columns":
        for left in (50, 310):
            page.prose(left, y - 10, wrapped(_sentences(draw, 60), 46))
    elif kind == "unruled, beside prose":
        page.prose(50, y - 10, wrapped(_sentences(draw, 50), 46))
        tables.append(_table(kind, draw))
        page.table(310, y - 60, tables[0], is_ruled=False)
    else:
        y = page.prose(50, y - 8, wrapped(_sentences(draw, 6), 90))
        tables += [_table(kind, draw) for _ in range(3 if "several" in kind else 1)]
        most = 14 if "wrapped" in kind else 30
        for made in tables:
            y = page.prose(50, y - 12, [f"{_phrase(draw, 2).capitalize()}:"])
            y = page.table(50, y - 6, made, is_ruled="unruled" not in kind, most=most)
            y = page.prose(50, y - 14, wrapped(_sentences(draw, 4), 90))
    return MadePdf(kind, pdf([page]), tuple(tables))


def _table(kind: str, draw: random.Random) -> MadeTable:
    n_columns = draw.randrange(3, 6)
    headings: list[tuple[str, ...]] = list(zip(_phrase(draw, n_columns).title().split()))
    if "two levels" in kind:
        headings += [("Change", "Day"), ("Change", "Year")]
    if "wrapped" in kind:
        headings[1] = (_phrase(draw, 3).capitalize(),)
    rows = [_row(kind, len(headings), draw) for _ in range(draw.randrange(4, 9))]
    return MadeTable("", headings, 1, rows)


def _row(kind: str, n_columns: int, draw: random.Random) -> list[str]:
    label = _phrase(draw, 4 if "wrapped" in kind and draw.random() < 0.5 else 1)
    values = [f"{draw.uniform(1, 5000):,.{draw.randrange(3)}f}" for _ in range(n_columns - 2)]
    return [label, _phrase(draw, draw.randrange(1, 3)), *values]


def _phrase(draw: random.Random, n_words: int) -> str:
    return " ".join(draw.sample(_WORDS.split(), n_words))


def _sentences(draw: random.Random, count: int) -> str:
    return " ".join(f"{_phrase(draw, draw.randrange(5, 12)).capitalize()}." for _ in range(count))


def expected_text(made: MadeTable) -> str:
    """The lines that the table's true cells give."""
    n_rows = made.depth + len(made.rows)
    rows: list[list[Cell]] = [[] for _ in range(n_rows)]
    for spot in spots(made):
        is_heading = spot.row < made.depth
        cell = Cell(spot.text, spot.n_rows, spot.n_columns, is_heading)
        rows[spot.row].append(cell)
    return "\n".join(piece.text for piece in table(filled(rows)))


def cells_of(text: str) -> Counter[tuple[str, str, str]]:
    """The cells in the rows of a text: the row's first value, the column's name and the value."""
    cells = Counter[tuple[str, str, str]]()
    for row in table_rows(text):
        for cell in row.cells:
            cells[row.cells[0].value, cell.column, cell.value] += 1
    return cells


def share_read(made: MadePdf) -> tuple[float, int]:
    """The share of a file's cells that are read right, and how many are read that it has not."""
    converted = convert(made.data, "a.pdf")
    rows = [converted.text_of(block) for block in converted.blocks if block.kind == "row"]
    found = cells_of("\n".join(rows))
    expected = cells_of("\n".join(map(expected_text, made.tables)))
    share = (found & expected).total() / max(expected.total(), 1)
    return share, (found - expected).total()


def main() -> None:
    """Print the shares by kind, and the time per page."""
    pdfs = list(made_pdfs(*sys.argv[1:]))
    shares = []
    for kind, of_kind in groupby(pdfs, key=attrgetter("kind")):
        results = [(made, *share_read(made)) for made in of_kind]
        shares += [share for made, share, _ in results if made.tables]
        right = mean(share for _, share, _ in results)
        wrong = sum(n_wrong for _, _, n_wrong in results)
        print(f"{kind}: {right:.1%} of the cells are right, {wrong} read are none")
    print("all:", bootstrap(shares))
    rounds = []
    for _ in range(5):
        start = time.perf_counter()
        for made in pdfs:
            convert(made.data, "a.pdf")
        rounds.append(1000 * (time.perf_counter() - start) / len(pdfs))
    print(f"{median(rounds):.1f} ms a page")


if __name__ == "__main__":
    main()
