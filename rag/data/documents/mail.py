"""Convert e-mail: subject, sender, recipient, date, the message and its attachments; also
mailboxes.
"""

import email
import email.policy
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from email.message import MIMEPart
from mimetypes import guess_extension

from rag.core.errors import RagError
from rag.data.documents import html
from rag.data.documents.blocks import Content, Piece, Unreadable, clean, not_read
from rag.data.documents.plain import decode, decode_as, text
from rag.data.metadata import GROUPS_FIELD

_READ_TEXT_OF = {"text/plain": text, "text/html": html.page}
_HEADERS = ("From", "To", "Cc", "Date")
# The line before each message of a mailbox: sender, time, year.
_SEPARATOR = re.compile(rb"(?:\A|(?<=\n\n)|(?<=\n\r\n))From [^\n]*\d\d:\d\d[^\n]*\d{4}[^\n]*\n")

# What Thunderbird writes into messages that it shows no more, and removes later.
_DELETED = re.compile(r"\w*[89a-f]", re.IGNORECASE)

ReadAttachment = Callable[[bytes, str], Content]
"""Converts an attachment, by its bytes and file name."""


def message(data: bytes, read_attachment: ReadAttachment) -> Content:
    """A message, with notes on attachments that are not read; the title is the subject."""
    parsed = _parsed(data)
    if not parsed.keys():
        raise Unreadable("broken file", "save the message again", "it has no header of an e-mail")
    reader = _MailReader(read_attachment)
    return Content(_header(parsed, "Subject"), reader.pieces(parsed, 1), reader.notes)


def mailbox(data: bytes, read_attachment: ReadAttachment) -> Content:
    """An mbox file: each message is a section with its subject as heading."""
    reader = _MailReader(read_attachment)
    pieces: list[Piece] = []
    n_deleted = 0
    for part in map(_parsed, _SEPARATOR.split(data)):
        if _DELETED.fullmatch(_header(part, "X-Mozilla-Status")):
            n_deleted += 1
        elif part.keys():
            pieces += reader.section(part, 1, "Message")
    if not pieces and not n_deleted:
        raise Unreadable("broken file", "export the mailbox again", "no message in it has a header")
    return Content("", pieces, [*reader.notes, *not_read({"deleted messages": n_deleted})])


def _parsed(data: bytes) -> MIMEPart:
    return email.message_from_bytes(data, policy=email.policy.default)


class _MailReader:
    """Reads messages, and notes what it does not read of them."""

    def __init__(self, read_attachment: ReadAttachment) -> None:
        self._read_attachment = read_attachment
        self.notes: list[str] = []

    def section(self, parsed: MIMEPart, level: int, name: str) -> list[Piece]:
        """A message among others, under its subject; a damaged message does not cost the others."""
        heading = Piece("heading", _header(parsed, "Subject") or name, level)
        try:
            return [heading, *self.pieces(parsed, level + 1)]
        except Unreadable as error:
            reason = error.reason
        except (RagError, MemoryError):
            raise
        except RecursionError:
            reason = "nested too deeply"
        except Exception as error:
            reason = type(error).__name__
        self.notes.append(f"message {heading.text!r}: not read ({reason})")
        return [heading]

    def pieces(self, parsed: MIMEPart, level: int) -> list[Piece]:
        """The headers, the text and the attachments of a message.

        Args:
            level: level of the headings above attachments.
        """
        values = {name: _header(parsed, name) for name in _HEADERS}
        headers = "; ".join(f"{name}: {value}" for name, value in values.items() if value)
        pieces = [Piece("paragraph", headers)]
        body, text_pieces = _body(parsed)
        attachments = _beside(parsed, body)
        if body is not None:
            pieces += _below(text_pieces, level - 1)
        elif not parsed.is_multipart():
            # Such as a PDF that was sent alone.
            attachments = iter([parsed])
        files: list[Piece] = []
        for part in attachments:
            kind = part.get_content_type()
            if kind == "message/rfc822":
                files += self.section(part.get_content(), level, "Attached message")
            elif kind in _READ_TEXT_OF and not (part.get_filename() or part.is_attachment()):
                # The text goes on, such as behind a picture or with the last lines of a list.
                pieces += _below(_READ_TEXT_OF[kind](_text(part)).pieces, level - 1)
            elif not part.is_multipart():
                files += self._attachment(part, level)
        return pieces + files

    def _attachment(self, part: MIMEPart, level: int) -> list[Piece]:
        extension = guess_extension(part.get_content_type()) or ""
        name = part.get_filename() or f"attachment{extension}"
        try:
            content = self._read_attachment(_bytes(part), name)
            if GROUPS_FIELD in content.fields:
                # Other people may read the message.
                raise Unreadable("it names groups", "index it as a file beside the message")
        except Unreadable as error:
            is_picture = part.get_content_maintype() == "image"
            notes = [] if is_picture else [f"not read ({error.reason})"]
            content = Content("", [], notes)
        self.notes += [f"attachment {name}: {note}" for note in content.notes]
        return [Piece("heading", name, level), *_below(content.pieces, level)]


def _body(parsed: MIMEPart) -> tuple[MIMEPart | None, Sequence[Piece]]:
    """The text of a message: plain, unless its page has over twice as many letters, since some
    programs write nothing but "see the page" for those who see none.
    """
    body: MIMEPart | None = None
    pieces: Sequence[Piece] = ()
    for kind, read in _READ_TEXT_OF.items():
        part = parsed.get_body((kind.removeprefix("text/"),))
        if part is None:
            continue
        read_pieces = read(_text(part)).pieces
        if body is None or html.n_letters(read_pieces) > 2 * html.n_letters(pieces):
            body = part
            pieces = read_pieces
    return body, pieces


def _beside(part: MIMEPart, body: MIMEPart | None, *, restated: bool = False) -> Iterator[MIMEPart]:
    """The parts that are attached to a body, however deep they stand, without other forms of it."""
    restated |= part.get_content_subtype() in ("alternative", "related")
    for inner in part.iter_parts():
        if inner.get_content_maintype() == "multipart":
            yield from _beside(inner, body, restated=restated)
        elif inner is not body:
            # Pictures belong to the look of a message.
            is_file = inner.get_filename() and inner.get_content_maintype() != "image"
            if is_file or not restated:
                yield inner


def _below(pieces: Iterable[Piece], levels: int) -> list[Piece]:
    """Pieces of a message or a file whose headings stand below a heading of this level."""
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
    """A part's text, even if it names no encoding, or an encoding that does not exist or does not
    fit.

    Raises:
        Unreadable: it is in another encoding than `decode` reads.
    """
    data = _bytes(part)
    with suppress(LookupError, ValueError):
        return decode_as(data, part.get_content_charset("ascii"))
    return decode(data)[0]


def _bytes(part: MIMEPart) -> bytes:
    content = part.get_payload(decode=True)
    return content if isinstance(content, bytes) else b""
