"""Documents of every format: what is written comes out, offsets are exact, and sections lose
nothing.
"""

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rag.data.documents.blocks import Piece, Unreadable, assemble
from rag.data.documents.convert import convert
from rag.data.records import Document, Kind
from rag.data.split import PATH_SEPARATOR, estimated_tokens, sections
from tests.document_makers import MAKERS

WORDS = st.lists(st.from_regex(r"[a-z]{2,9}", fullmatch=True), min_size=1, max_size=12).map(
    " ".join
)
SENTENCE = WORDS.map(lambda words: f"{words.capitalize()}.")
HEADING = st.from_regex(r"[A-Z][a-z]{3,9}( [a-z]{2,9})?", fullmatch=True)
CELL = st.from_regex(r"[a-z]{2,9}( [a-z]{2,9})?", fullmatch=True)
TABLE = st.integers(2, 3).flatmap(
    lambda width: st.lists(
        st.lists(CELL, min_size=width, max_size=width, unique=True), min_size=2, max_size=4
    )
)
BLOCK = st.one_of(
    st.tuples(st.just("p"), SENTENCE),
    st.tuples(st.just("li"), SENTENCE),
    st.tuples(st.just("table"), TABLE),
    st.tuples(st.just("code"), st.lists(WORDS, min_size=1, max_size=3).map("\n".join)),
)
SECTION = st.tuples(st.sampled_from(["h1", "h2"]), HEADING, st.lists(BLOCK, min_size=1, max_size=4))
CONTENT = st.lists(SECTION, min_size=1, max_size=4).map(
    lambda found: [block for kind, heading, body in found for block in [(kind, heading), *body]]
)


def texts_of(content: list[tuple[str, Any]]) -> list[str]:
    """What people read of it, without marks of lists."""
    shown: list[str] = []
    for kind, value in content:
        if kind == "table":
            shown += [
                "; ".join(f"{a}: {b}" if a != b else b for a, b in zip(value[0], row))
                for row in value[1:]
            ]
        else:
            shown.append(value)
    return shown


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "a.pdf"])
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(content=CONTENT)
def test_what_is_written_comes_out_at_its_offsets(
    name: str, content: list[tuple[str, Any]]
) -> None:
    converted = convert(MAKERS[name](content), name)
    result = [
        converted.text[block.start : block.end].removeprefix("• ") for block in converted.blocks
    ]
    result = result[1:] if name == "a.eml" else result  # sender and receiver
    assert " ".join(result).split() == " ".join(texts_of(content)).split() or name == "a.pptx"
    assert sorted(re.findall(r"\w+", " ".join(result))) == sorted(
        re.findall(r"\w+", " ".join(texts_of(content)))
    )


@settings(max_examples=12, deadline=None)
@given(content=CONTENT.map(lambda result: [block for block in result if block[0] != "table"]))
def test_pdfs_keep_every_word_in_order(content: list[tuple[str, Any]]) -> None:
    converted = convert(MAKERS["a.pdf"](content), "a.pdf")
    result = " ".join(
        converted.text[block.start : block.end].removeprefix("• ") for block in converted.blocks
    )
    assert result.split() == " ".join(texts_of(content)).split()


PIECE = st.builds(
    Piece,
    st.sampled_from(["heading", "paragraph", "item", "row", "code"]),
    st.one_of(
        st.text(max_size=60), st.lists(SENTENCE, max_size=12).map(" ".join), WORDS.map("\n".join)
    ),
    st.integers(1, 4),
    st.sampled_from(["", "1", "ii"]),
)


@settings(max_examples=100, deadline=None)
@given(pieces=st.lists(PIECE, max_size=15), max_tokens=st.integers(16, 80), title=WORDS)
def test_sections_are_spans_that_cover_all_text_and_cross_no_heading(
    pieces: list[Piece], max_tokens: int, title: str
) -> None:
    try:
        converted = assemble(title, pieces)
    except Unreadable:
        assert not any(
            re.search(r"\S", piece.text) and piece.text.isprintable() for piece in pieces
        )
        return
    document = Document("d", converted.title, converted.text, blocks=converted.blocks, path="d.md")
    at = 0
    for shown, start, end, location in [
        *sections(document, max_tokens),
        ("", len(converted.text), 0, None),
    ]:
        assert _is_heading_or_nothing(
            converted, at, start
        )  # in order, and nothing between them is lost
        if location is None:
            break
        inside = [block for block in converted.blocks if block.start < end and block.end > start]
        assert all(block.kind != "heading" for block in inside) or len(inside) == 1
        assert shown.startswith(converted.title)
        text = converted.text[start:end]
        assert text == text.strip()
        assert (
            estimated_tokens(text) <= max(max_tokens - estimated_tokens(shown), max_tokens // 2)
            or " " not in text
        )
        at = end


def _is_heading_or_nothing(converted: Document, start: int, end: int) -> bool:
    """Whether only white space and whole headings stand there."""
    left = list(converted.text[start:end])
    for block in converted.blocks:
        if block.kind == "heading" and start <= block.start and block.end <= end:
            left[block.start - start : block.end - start] = " " * (block.end - block.start)
    return not "".join(left).strip()


def _passages(document: Document, max_tokens: int) -> list[tuple[str, str]]:
    return [
        (title, document.text[start:end]) for title, start, end, _ in sections(document, max_tokens)
    ]


def _document(*blocks: tuple[Kind, str, int]) -> Document:
    converted = assemble("Guide", [Piece(kind, text, level) for kind, text, level in blocks])
    return Document("g", "Guide", converted.text, blocks=converted.blocks, path="g.md")


def test_titles_are_paths_and_headings_without_text_are_passages() -> None:
    document = _document(
        ("heading", "Guide", 1),
        ("heading", "Install", 2),
        ("heading", "Linux", 3),
        ("paragraph", "Use apt.", 0),
        ("heading", "Windows", 3),
        ("heading", "Use", 2),
        ("paragraph", "Run it.", 0),
        ("heading", "The end", 1),
    )
    assert _passages(document, 64) == [
        ("Guide › Install › Linux", "Use apt."),
        ("Guide › Install", "Windows"),
        ("Guide › Use", "Run it."),
        ("Guide", "The end"),
    ]
    headings = [location.headings for _, _, _, location in sections(document, 64)]
    assert headings[0] == ("Guide", "Install", "Linux")


def test_lists_and_code_stay_whole_with_the_line_that_introduces_them() -> None:
    words = " ".join(["word"] * 20) + "."
    items: list[tuple[Kind, str, int]] = [("item", f"• {name} {name}", 0) for name in "abcdefgh"]
    document = _document(("paragraph", words, 0), ("paragraph", "The options are:", 0), *items)
    assert [text.split("\n")[0] for _, text in _passages(document, 40)] == [
        words,
        "The options are:",
    ]
    long = _document(("code", "\n".join(f"line {n}" for n in range(40)), 0))
    parts = [text for _, text in _passages(long, 32)]
    assert "\n".join(parts) == long.text
    assert all(part.startswith("line ") for part in parts)


def test_deep_paths_keep_their_ends() -> None:
    names = [f"Heading number {n} with several words in it" for n in range(6)]
    blocks: list[tuple[Kind, str, int]] = [("heading", name, n + 1) for n, name in enumerate(names)]
    ((title, _, _, location),) = sections(_document(*blocks, ("paragraph", "Text.", 0)), 64)
    assert title.split(PATH_SEPARATOR)[0] == "Guide"
    assert title.endswith(names[-1])
    assert estimated_tokens(title) <= 0.35 * 64 or title.count(PATH_SEPARATOR) == 1
    assert location.headings == tuple(names)
