"""Text: without what UTF-8 may not hold; in columns."""

from collections.abc import Iterable, Sequence


def as_unicode(text: str) -> str:
    """The text with question marks for halves of surrogate pairs, which JSON may hold and UTF-8 may not.

    Example:
        >>> as_unicode("caf\\ud800")
        'caf?'
    """
    return text.encode("utf-8", "replace").decode("utf-8")


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
