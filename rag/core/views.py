"""Tables for the terminal."""

from collections.abc import Iterable, Sequence


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
