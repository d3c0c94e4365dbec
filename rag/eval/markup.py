"""A few lines of HTML building in which text is always escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["Html", "el", "join", "marked"]

_VOID = frozenset({"br", "circle", "hr", "line", "meta", "path", "polygon", "polyline", "rect"})


class Html(str):
    """Text that is markup already; everything else is escaped."""

    __slots__ = ()


Child = str | int | float | None


def el(name: str, *children: Child | Iterable[Child], **attributes: str | int | float | None) -> Html:
    """One element. Children that are not `Html` are escaped; attributes lose a trailing "_" and turn "_"
    into "-".

    Example:
        >>> el("p", "a < b", class_="note")
        '<p class="note">a &lt; b</p>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID and not children:
        return Html(f"<{name}{written}/>" if name not in ("br", "hr", "meta") else f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Iterable[Child | Iterable[Child]]) -> Html:
    """Markup of several children, nested lists flattened, None left out."""
    parts = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Html):
            parts.append(str(child))
        elif isinstance(child, (str, int, float)):
            parts.append(escape(str(child), quote=False))
        else:
            parts.append(str(join(child)))
    return Html("".join(parts))


def marked(text: str, spans: Sequence[tuple[int, int, str]], *, limit: int = 700) -> Html:
    """Text with highlighted spans, cut to about `limit` characters around the first one.

    Args:
        text: any text.
        spans: (start, end, class) in characters; a span that overlaps an earlier one is left out.
        limit: characters to show.

    Example:
        >>> marked("in the Black Forest.", [(7, 19, "read")])
        'in the <mark class="read">Black Forest</mark>.'
    """
    kept: list[tuple[int, int, str]] = []
    for start, end, kind in sorted(spans):
        if 0 <= start < end <= len(text) and (not kept or start >= kept[-1][1]):
            kept.append((start, end, kind))
    first, last = 0, len(text)
    if len(text) > limit:
        middle = kept[0][0] if kept else 0
        first = max(0, min(middle - limit // 3, len(text) - limit))
        last = first + limit
        kept = [span for span in kept if span[0] >= first and span[1] <= last]
    parts: list[Child] = ["… "] if first else []
    position = first
    for start, end, kind in kept:
        parts += [text[position:start], el("mark", text[start:end], class_=kind)]
        position = end
    parts.append(text[position:last])
    return join([*parts, " …" if last < len(text) else None])
