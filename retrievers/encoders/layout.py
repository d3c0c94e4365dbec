"""How a passage's title and text become what an encoder reads."""

from __future__ import annotations

import string
from collections.abc import Sequence

from rag.core.errors import ConfigError

__all__ = ["PAIR", "PassageLayout"]

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
            fields = [field for _, field, spec, _ in string.Formatter().parse(layout) if field is not None]
        except ValueError as error:
            raise ConfigError(f"passage layout {layout!r}: {error}") from error
        if "text" not in fields or set(fields) - {"title", "text"}:
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
