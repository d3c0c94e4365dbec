"""How a passage's title and text, and a question with passages, become what an encoder reads."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass

from rag.core.errors import ConfigError
from rag.core.types import Passage

__all__ = ["PAIR", "PassageLayout", "Query", "QueryLayout"]

PAIR = "pair"


class PassageLayout:
    """Either "pair", two segments `[CLS] title [SEP] text [SEP]`, or a template with {title} and {text}.

    A passage without a title is its text alone, whatever the layout.

    Raises:
        ConfigError: the template has no {text} or names something else.

    Example:
        >>> PassageLayout("{title}. {text}").render(["Danube", ""], ["A river.", "A text."])
        (['Danube. A river.', 'A text.'], None)
        >>> PassageLayout("pair").render(["Danube"], ["A river."], prefix="passage: ")
        (['passage: Danube'], ['A river.'])
    """

    def __init__(self, layout: str) -> None:
        self.layout = layout
        if layout == PAIR:
            return
        fields = _fields("passage", layout)
        if "text" not in fields or fields - {"title", "text"}:
            raise ConfigError(
                f"passage layout {layout!r}: expected {PAIR!r} or a template with {{text}} and {{title}}",
                hint='for example "{title} {text}"',
            )

    def render(
        self, titles: Sequence[str], texts: Sequence[str], *, prefix: str = ""
    ) -> tuple[list[str], list[str] | None]:
        """First and second segments; the second is None if there is only one segment.

        In a pair without a title the first segment is the text and the second is empty.
        """
        if self.layout == PAIR:
            first = [prefix + (title or text) for title, text in zip(titles, texts, strict=True)]
            return first, [text if title else "" for title, text in zip(titles, texts, strict=True)]
        return [
            prefix + (self.layout.format(title=title, text=text) if title else text)
            for title, text in zip(titles, texts, strict=True)
        ], None


@dataclass(frozen=True, slots=True)
class Query:
    """What a question tower reads: a question, alone or with passages that were found for it so far.

    Attributes:
        question: its text.
        passages: in the order in which they were found; empty for a first search.
    """

    question: str
    passages: tuple[Passage, ...] = ()


class QueryLayout:
    """Either "pair", two segments `[CLS] question [SEP] passages [SEP]`, or a template with {question} and
    {passages}. A query without passages is its question alone, whatever the layout. The newest passage comes
    first: where a query is too long, what was found first is cut.

    Args:
        layout: of the whole.
        passage: template of each passage, with {text} and perhaps {title}; they are joined by blanks.

    Raises:
        ConfigError: a template lacks a field or names something else.

    Source: Xiong et al. 2021, "Answering Complex Open-Domain Questions with Multi-Hop Dense Retrieval": the
        second hop's query is the pair of the question and the first passage's text.

    Example:
        >>> found = Query("who?", (Passage("1", "Danube", "A river."),))
        >>> QueryLayout().render([found, Query("where?")])
        (['who?', 'where?'], ['A river.', ''])
        >>> QueryLayout("{passages} {question}", "{title}: {text}").render([found])
        (['Danube: A river. who?'], None)
    """

    def __init__(self, layout: str = PAIR, passage: str = "{text}") -> None:
        self.layout, self.passage = layout, passage
        if passage == PAIR:
            raise ConfigError("the passages of a query are one segment: give a template such as {text}")
        self._passages = PassageLayout(passage)
        if layout != PAIR and _fields("query", layout) != {"question", "passages"}:
            raise ConfigError(
                f"query layout {layout!r}: expected {PAIR!r} or a template with {{question}}, {{passages}}",
                hint='for example "{question} {passages}"',
            )

    def render(self, queries: Sequence[Query]) -> tuple[list[str], list[str] | None]:
        """First and second segments; the second is None if there is only one segment."""
        passages = [
            " ".join(self._passages.render([p.title for p in found], [p.text for p in found])[0])
            for found in (query.passages[::-1] for query in queries)
        ]
        if self.layout == PAIR:
            return [query.question for query in queries], passages
        return [
            self.layout.format(question=query.question, passages=texts) if texts else query.question
            for query, texts in zip(queries, passages, strict=True)
        ], None


def _fields(of: str, layout: str) -> set[str]:
    """Names in the braces of a template."""
    try:
        return {field for _, field, _, _ in string.Formatter().parse(layout) if field is not None}
    except ValueError as error:
        raise ConfigError(f"{of} layout {layout!r}: {error}") from error
