"""How a passage's title and text, and a question with passages, become an encoder's input."""

import string
from collections.abc import Sequence

from rag.core.errors import ConfigError
from rag.core.types import Query

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
        try:
            fields = {field for _, field, _, _ in string.Formatter().parse(layout) if field is not None}
        except ValueError as error:
            raise ConfigError(f"passage layout {layout!r}: {error}") from error
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


def render_queries(queries: Sequence[Query], *, prefix: str = "") -> tuple[list[str], list[str]]:
    """First and second segments of queries, in training as in search: the question behind a prefix and with
    ' for ’, and the texts of its passages, "" if there are none.

    The latest passage comes first: if a query is too long, the passages of the first hops are cut.

    Source: Karpukhin et al. 2020, "Dense Passage Retrieval for Open-Domain Question Answering": how their
        released code reads questions; Xiong et al. 2021, "Answering Complex Open-Domain Questions with
        Multi-Hop Dense Retrieval": the second hop's query is the pair of the question and the first passage.

    Example:
        >>> from rag.core.types import Passage
        >>> second = Query("who’s?", (Passage("1", "Danube", "A river."), Passage("2", "Rhine", "Another.")))
        >>> render_queries([second, Query("where?")])
        (["who's?", 'where?'], ['Another. A river.', ''])
    """
    first = [prefix + query.question.replace("’", "'") for query in queries]
    return first, [" ".join(passage.text for passage in reversed(query.passages)) for query in queries]
