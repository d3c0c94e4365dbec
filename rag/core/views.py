"""Representations of records: one short line, HTML with highlighted evidence, tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rag.core.types import Answer, AnswerSet, Evidence

_CONTEXT_CHARS = 240  # shown on both sides of an answer


def shortened(text: str, most: int = 60) -> str:
    """The beginning of a text, in quotes.

    Example:
        >>> print(shortened("The Danube rises in the Black Forest.", 20))
        'The Danube rises in …'
    """
    return repr(text if len(text) <= most else text[:most].rstrip() + " …")


def text_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table: first column left-aligned, the others right-aligned.

    Example:
        >>> print("\\n".join(text_table(("search", "ms"), [("flat", "1.2"), ("bare", "1.19")])))
        search    ms
        flat     1.2
        bare    1.19
    """
    cells = [columns, *rows]
    first, *widths = (max(map(len, column)) for column in zip(*cells, strict=True))
    lines = ("  ".join([row[0].ljust(first), *map(str.rjust, row[1:], widths)]) for row in cells)
    return [line.rstrip() for line in lines]


def highlighted(evidence: Evidence) -> str:
    """The answer in its passage as HTML, everything else escaped; without a span the passage's beginning.

    Example:
        >>> from rag.core.types import Evidence
        >>> highlighted(Evidence("1", "", "1 < 2 in Oslo.", 9, 13, 0.0))
        '1 &lt; 2 in <mark>Oslo</mark>.'
    """
    text, start, end = evidence.text, evidence.start, evidence.end
    if start is None or end is None:
        return escape(text[: 2 * _CONTEXT_CHARS]) + " …" * (len(text) > 2 * _CONTEXT_CHARS)
    left, right = max(0, start - _CONTEXT_CHARS), min(len(text), end + _CONTEXT_CHARS)
    before, after = escape(text[left:start]), escape(text[end:right])
    marked = f"{before}<mark>{escape(text[start:end])}</mark>{after}"
    return "… " * (left > 0) + marked + " …" * (right < len(text))


def answer_html(answer: Answer) -> str:
    """An answer, its confidence and its evidence."""
    evidence = answer.evidence
    source = evidence.title or evidence.passage_id
    if evidence.location is not None:
        source += f" · {evidence.location}"
    note = f"<div><em>{escape(answer.note)}</em></div>" if answer.note else ""
    return (
        f"<div><strong>{escape(answer.text)}</strong> ({answer.confidence:.0%})</div>"
        f"<blockquote>{highlighted(evidence)}<br><small>{escape(source)}</small></blockquote>{note}"
    )


def answers_html(result: AnswerSet) -> str:
    """A question with its answers, or a sentence that none is likely enough."""
    parts = [f"<p><strong>{escape(result.question)}</strong></p>"]
    if result.failure:
        parts.append(f"<p>not read: {escape(result.failure)}</p>")
    elif not result.is_answered:
        parts.append(f"<p>no answer found ({result.no_answer_confidence:.0%})</p>")
    elif result.kind == "passage":
        parts.append("<p>asks for yes or no, which the reader cannot tell; this bears on it:</p>")
    listed = "".join(f"<li>{answer_html(answer)}</li>" for answer in result.answers)
    return "".join(parts) + (f"<ol>{listed}</ol>" if listed else "")
