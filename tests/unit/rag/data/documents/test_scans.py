"""Scanned pages: their words in the order of reading, told apart from text that a file states."""

import io
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image, ImageDraw, ImageFont

from indexers.passage_writer import writing_passages
from indexers.passages import PassageStore
from rag.data.documents import scans
from rag.data.documents.blocks import Unreadable
from rag.data.documents.convert import convert
from rag.data.split import split_documents
from tests import document_makers as make
from tests.support.messages import refusal

LEFT = "The lighthouse keeper counted nineteen ships before the storm reached the harbour."
RIGHT = "Her brother repaired the old generator and carried the oil up the narrow stairs."


def scan(*places: tuple[int, int, int, str]) -> bytes:
    """A PDF of one picture, in which texts stand at these places in these sizes."""
    picture = Image.new("L", (1240, 1754), "white")
    draw = ImageDraw.Draw(picture)
    for left, top, size, text in places:
        lines = textwrap.fill(text, 36)
        draw.multiline_text((left, top), lines, "black", ImageFont.load_default(size), spacing=8)
    file = io.BytesIO()
    picture.save(file, "PDF", resolution=150)
    return file.getvalue()


def test_columns_are_read_one_after_the_other_and_the_place_says_ocr(tmp_path: Path) -> None:
    data = scan((100, 100, 44, "Harbour report"), (100, 200, 26, LEFT), (660, 200, 26, RIGHT))
    document = convert(data, "report.pdf")
    assert document.text.split() == f"Harbour report {LEFT} {RIGHT}".split()
    assert document.title == "Harbour report"
    [passage] = split_documents([replace(document, path="report.pdf")])
    with writing_passages(tmp_path) as writer:
        writer.add_many([passage])
    assert [it.location.to_json()["ocr"] for it in PassageStore(tmp_path)] == [True]


def test_without_the_recogniser_the_remedy_names_its_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scans, "installed_version", lambda name: None)
    with refusal(Unreadable):
        convert(scan((100, 100, 30, LEFT)), "report.pdf")


def test_pages_that_state_their_text_or_are_empty_are_not_recognised() -> None:
    document = convert(make.pdf([[(50.0, 700.0, 10.0, "F", "Some text here.")], []]), "a.pdf")
    assert document.scanned == ()
