"""Small files that would use all of the time or memory, and converters whose parent is gone."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import openpyxl
import pytest

from rag.data.corpus import read_documents
from rag.data.documents.blocks import Unreadable
from rag.data.documents.convert import convert
from rag.data.documents.read import CONVERTER, document_from
from rag.data.documents.tables import FORMULAS
from rag.data.records import BadRecord, ReadReport
from tests import document_makers as make

_ALIASES = "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefghi", "bcdefghij")
)


def request(path: Path, timeout_s: float, memory_mib: int = 4096) -> bytes:
    return (
        json.dumps({"path": str(path), "timeout_s": timeout_s, "memory_mib": memory_mib}).encode()
        + b"\n"
    )


def cell_at_the_end() -> bytes:
    book = openpyxl.Workbook()
    book.active["A1"], book.active["XFD1048576"] = "First", "Last"
    return make.saved(book)


def repeated_cell() -> bytes:
    """A sheet that says to have more rows and columns than any."""
    repeated = 'table:number-columns-repeated="99999999"'
    cell = f"<table:table-cell {repeated}><text:p>x</text:p></table:table-cell>"
    row = f'<table:table-row table:number-rows-repeated="99999999">{cell}</table:table-row>'
    return make.odf(f"<table:table>{row}</table:table>", kind="spreadsheet")


@pytest.mark.parametrize(
    ("name", "data", "found"),
    [
        ("a.md", f"---\na: &a [x]\n{_ALIASES}title: *j\n---\nText.\n".encode(), "a: x\n\nText."),
        ("a.html", b"<table><tr><td>" * 5_000 + b"x", "nested too deeply"),
        ("a.html", b"<div>" * 20_000 + b"x", "nested too deeply"),
        ("a.ipynb", b"[" * 20_000, "broken file"),
        ("a", b"<!-- a -->\n" * 30 + b"<html><body>text</body></html>", "text"),
        ("a.xlsx", cell_at_the_end(), "Sheet\n\nFirst\n\nLast"),
        ("a.ods", repeated_cell(), "too large"),
    ],
)
def test_small_files_take_little_time(name: str, data: bytes, found: str) -> None:
    started = time.process_time()
    try:
        result = convert(data, name).text
    except Unreadable as error:
        result = error.reason
    assert result == found
    assert time.process_time() - started < 4


def test_formulas_without_a_value_are_counted(tmp_path: Path) -> None:
    rows = [
        ["Month", "Litres", "Sum"],
        ["May", 3, "=B2"],
        ["June", 4, "=B2+B3"],
        ["Total", "=SUM(B2:B3)", None],
    ]
    (tmp_path / "use.xlsx").write_bytes(make.workbook({"Use": rows, "Other": [["a", 1]]}))
    report = ReadReport()
    (document,) = read_documents(tmp_path / "use.xlsx", report=report)
    assert "Month: Total" in document.text
    (note,) = report.problems
    assert f"use.xlsx: not read: {FORMULAS}: 3" in note


def test_zeros_that_stand_for_results_to_be_calculated_are_not_read() -> None:
    files = make.members(
        make.workbook({"Use": [["Month", "Sum"], ["May", 0], ["All", "=SUM(B2)"]]})
    )
    name = "xl/worksheets/sheet1.xml"
    files[name] = re.sub(rb"</f><v ?/?>(</v>)?", b"</f><v>0</v>", files[name])
    book = files["xl/workbook.xml"]
    (converted, whole) = (
        convert(make.archive({**files, "xl/workbook.xml": part}), "a.xlsx")
        for part in (book, book.replace(b"fullCalcOnLoad", b"iterate"))
    )
    assert converted.text == "Use\n\nMonth: May; Sum: 0\nMonth: All"
    assert converted.notes == (f"not read: {FORMULAS}: 1",)
    assert (whole.text, whole.notes) == ("Use\n\nMonth: May; Sum: 0\nMonth: All; Sum: 0", ())


def worker(path: Path, timeout_s: float) -> "subprocess.Popen[bytes]":
    """A converter at work on a file that never ends."""
    process = subprocess.Popen(CONVERTER, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdin.write(request(path, timeout_s))
    process.stdin.flush()
    return process


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "endless.txt")
    return tmp_path / "endless.txt"


def test_a_converter_ends_itself_at_its_time_limit(endless: Path) -> None:
    assert worker(endless, 0.5).wait(timeout=60) == -signal.SIGALRM


def test_a_converter_has_so_much_memory_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Text. " * 5_000_000)
    with subprocess.Popen(CONVERTER, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        reply, _ = process.communicate(request(tmp_path / "a.txt", 60, memory_mib=1))
    assert not reply or isinstance(document_from(reply, "a.txt"), BadRecord)


def test_a_converter_ends_with_its_parent(endless: Path) -> None:
    process = worker(endless, 600)
    process.stdin.close()  # as the end of the parent does, however it ends
    assert process.wait(timeout=60) == 0
