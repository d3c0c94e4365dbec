"""E-mail: subject, who wrote when to whom, the message, and its attachments."""

from __future__ import annotations

import email
import email.policy
from collections.abc import Callable
from email.message import MIMEPart

from rag.data.documents import html
from rag.data.documents.blocks import Piece, Unreadable, clean
from rag.data.documents.plain import text

_SHOWN = ("From", "To", "Cc", "Date")
_MAX_DEPTH = 3  # of messages within messages

Attached = Callable[[bytes, str], list[Piece]]


def message(data: bytes, attached: Attached) -> tuple[str, list[Piece]]:
    """Title and pieces; the title is the subject.

    Args:
        attached: gives the pieces of an attachment from its bytes and its file name.

    Raises:
        Unreadable: it has no header of an e-mail.
    """
    found = email.message_from_bytes(data, policy=email.policy.default)
    if not found.keys():
        raise Unreadable("broken file", "save the message again", "it has no header of an e-mail")
    return clean(str(found.get("Subject", ""))), list(_pieces(found, attached, 1))


def _pieces(found: MIMEPart, attached: Attached, level: int) -> list[Piece]:
    head = "; ".join(f"{name}: {clean(str(found[name]))}" for name in _SHOWN if found[name])
    pieces = [Piece("paragraph", head)]
    body = found.get_body(("plain", "html"))
    if body is not None:
        content = _text(body)
        pieces += html.page(content)[1] if body.get_content_subtype() == "html" else text(content)[1]
    for part in found.iter_attachments():
        name = part.get_filename() or ""
        if part.get_content_type() == "message/rfc822" and level < _MAX_DEPTH:
            inner = part.get_content()
            pieces.append(Piece("heading", clean(str(inner.get("Subject", ""))) or "Attached message", level))
            pieces += _pieces(inner, attached, level + 1)
        elif name and not part.is_multipart():
            pieces.append(Piece("heading", name, level))
            try:
                pieces += attached(_bytes(part), name)
            except Unreadable as error:
                pieces.append(Piece("paragraph", f"(not read: {error.reason})"))
    return pieces


def _text(part: MIMEPart) -> str:
    """A part's text, even if it names an encoding that does not exist or does not fit."""
    try:
        return str(part.get_content())
    except (LookupError, UnicodeError):
        return _bytes(part).decode("utf-8", "replace")


def _bytes(part: MIMEPart) -> bytes:
    content = part.get_payload(decode=True)
    return content if isinstance(content, bytes) else b""
