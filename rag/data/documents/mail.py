"""Convert e-mail: subject, sender, recipient, date, the message and its attachments; also
mailboxes.
"""

import email
import email.policy
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from email.message import MIMEPart
from mimetypes import guess_extension

from rag.core.errors import RagError
from rag.data.documents import html
from rag.data.documents.blocks import Piece, Unreadable, clean
from rag.data.documents.plain import decode, text

_SHOWN = ("From", "To", "Cc", "Date")
# the line before each message: sender, time, year
_SEPARATOR = re.compile(rb"(?:\A|(?<=\n\n)|(?<=\n\r\n))From [^\n]*\d\d:\d\d[^\n]*\d{4}[^\n]*\n")

# converts an attachment, by its bytes and file name, into pieces and notes
Attached = Callable[[bytes, str], tuple[list[Piece], Iterable[str]]]


def message(data: bytes, attached: Attached) -> tuple[str, list[Piece], list[str]]:
    """Title, pieces, and notes on attachments that are not read; the title is the subject."""
    parsed = email.message_from_bytes(data, policy=email.policy.default)
    if not parsed.keys():
        raise Unreadable("broken file", "save the message again", "it has no header of an e-mail")
    notes = list[str]()
    return _header(parsed, "Subject"), _pieces(parsed, attached, 1, notes), notes


def mailbox(data: bytes, attached: Attached) -> tuple[str, list[Piece], list[str]]:
    """Title, pieces and notes of an mbox file: each message is a section with its subject as
    heading.
    """
    pieces, notes = list[Piece](), list[str]()
    for part in _SEPARATOR.split(data):
        content = email.message_from_bytes(part, policy=email.policy.default)
        if content.keys():
            pieces += _section(content, attached, 1, notes, "Message")
    if not pieces:
        raise Unreadable("broken file", "export the mailbox again", "no message in it has a header")
    return "", pieces, notes


def _section(
    parsed: MIMEPart, attached: Attached, level: int, notes: list[str], name: str
) -> list[Piece]:
    """A message among others, under its subject; one that is damaged does not cost the others."""
    heading = Piece("heading", _header(parsed, "Subject") or name, level)
    try:
        return [heading, *_pieces(parsed, attached, level + 1, notes)]
    except (RagError, MemoryError):
        raise
    except Exception as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else type(error).__name__
        notes.append(f"message {heading.text!r}: not read ({reason})")
        return [heading]


def _pieces(parsed: MIMEPart, attached: Attached, level: int, notes: list[str]) -> list[Piece]:
    shown = ((name, _header(parsed, name)) for name in _SHOWN)
    head = "; ".join(f"{name}: {value}" for name, value in shown if value)
    pieces = [Piece("paragraph", head)]
    body = parsed.get_body(("plain", "html"))
    if body is not None:
        content = _text(body)
        read = html.page(content)[1] if body.get_content_subtype() == "html" else text(content)[1]
        pieces += _below(read, level - 1)
    is_attachment = body is None and not parsed.is_multipart()  # such as a PDF that was sent alone
    for part in [parsed] if is_attachment else parsed.iter_attachments():
        if part.get_content_type() == "message/rfc822":
            pieces += _section(part.get_content(), attached, level, notes, "Attached message")
        elif not part.is_multipart():
            name = (
                part.get_filename() or f"attachment{guess_extension(part.get_content_type()) or ''}"
            )
            try:
                read, lost = attached(_bytes(part), name)
            except Unreadable as error:
                read, lost = [], [f"not read ({error.reason})"]
            pieces += [Piece("heading", name, level), *_below(read, level)]
            notes += [f"attachment {name}: {note}" for note in lost]
    return pieces


def _below(pieces: Iterable[Piece], levels: int) -> list[Piece]:
    """Pieces of a message or a file whose headings stand below one of this level."""
    return [
        replace(piece, level=piece.level + levels) if piece.level else piece for piece in pieces
    ]


def _header(parsed: MIMEPart, name: str) -> str:
    """A header's text, unparsed where it is so odd that the parser fails; "" if there is none."""
    try:
        return clean(str(parsed.get(name, "")))
    except Exception:
        raw = (value for key, value in parsed.raw_items() if key.lower() == name.lower())
        return clean(str(next(raw, "")))


def _text(part: MIMEPart) -> str:
    """A part's text, even if it names no encoding, or one that does not exist or does not fit."""
    try:
        return str(part.get_content()) if part.get_content_charset() else decode(_bytes(part))[0]
    except (LookupError, ValueError, Unreadable):
        return _bytes(part).decode("utf-8", "replace")


def _bytes(part: MIMEPart) -> bytes:
    content = part.get_payload(decode=True)
    return content if isinstance(content, bytes) else b""
