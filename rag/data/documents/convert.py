"""Convert a file into a document: recognise its format by content and name, then convert it within limits."""

from collections.abc import Callable

from rag.core.errors import RagError
from rag.data.documents import (
    epub,
    html,
    mail,
    markdown,
    odf,
    office,
    pandoc,
    pdf,
    plain,
    rst,
    sheets,
    subtitles,
)  # fmt: skip
from rag.data.documents.blocks import Converted, Piece, Unreadable, assemble, clean
from rag.data.documents.kinds import kind_by_name, kind_of
from rag.data.documents.limits import Limits


def convert(data: bytes, name: str, limits: Limits | None = None, encoding: str = "utf-8") -> Converted:
    r"""Convert a document.

    Args:
        data: the whole file.
        name: its name, for the format.
        encoding: encoding of text that is not UTF-8 and does not declare one.

    Raises:
        Unreadable: it cannot be read; states why, and what to do.

    Example:
        >>> converted = convert(b"# Guide\n\n## Linux\n\nUse *apt*.\n", "guide.md")
        >>> converted.title, [(block.kind, converted.text_of(block)) for block in converted.blocks][1:]
        ('Guide', [('heading', 'Linux'), ('paragraph', 'Use apt.')])
    """
    limits = limits or Limits()
    try:
        title, pieces, notes = _read(data, name, limits, encoding, depth=0)
    except RagError:
        raise
    except MemoryError as error:
        raise Unreadable("too large", "split it", f"over {limits.memory_mib} MiB of memory") from error
    except RecursionError as error:
        raise Unreadable(
            "nested too deeply", "save it as plain text", "its elements hold one another"
        ) from error
    except Exception as error:  # whatever the libraries raise over damaged files
        detail = f"{type(error).__name__}: {clean(str(error))[:120]}"
        raise Unreadable(
            "broken file", "open and save it again, or get a whole copy of it", detail
        ) from error
    if sum(len(piece.text) for piece in pieces) > limits.max_chars:
        raise Unreadable("too long", "split it", f"more than {limits.max_chars:,} characters")
    return assemble(title, pieces, notes)


def _read(
    data: bytes, name: str, limits: Limits, encoding: str, depth: int
) -> tuple[str, list[Piece], tuple[str, ...]]:
    kind = kind_of(data, name)
    if kind == "pdf":
        return pdf.pdf(data, limits)
    if kind == "xlsx":
        return sheets.workbook(data, limits)
    if read := _ARCHIVES.get(kind):
        return *read(data, limits), ()
    if kind == "rtf":  # in 7-bit characters
        return *pandoc.read(data, kind, limits), ()
    if read_mail := _MAIL.get(kind):

        def attached(part: bytes, part_name: str) -> list[Piece]:
            if depth or not part_name or (kind_by_name(part_name) is None and b"%PDF-" not in part[:1024]):
                return []
            try:
                return _read(part, part_name, limits, encoding, depth + 1)[1]
            except (RagError, MemoryError):
                raise
            except Exception as error:  # one damaged attachment does not cost the message
                raise Unreadable("broken file", "ask for it again", type(error).__name__) from error

        return *read_mail(data, attached), ()
    source, notes = plain.decode(data, encoding)
    if kind in pandoc.FORMATS:
        return *pandoc.read(source.encode(), kind, limits), notes
    return *_TEXTS[kind](source), notes


_MAIL = {"mail": mail.message, "mbox": mail.mailbox}
_ARCHIVES: dict[str, Callable[[bytes, Limits], tuple[str, list[Piece]]]] = {
    "docx": office.word,
    "pptx": office.slides,
    "epub": epub.book,
    "odt": odf.text,
    "ods": odf.spreadsheet,
    "odp": odf.presentation,
}
_TEXTS: dict[str, Callable[[str], tuple[str, list[Piece]]]] = {
    "html": html.page,
    "markdown": markdown.markdown,
    "rst": rst.rst,
    "subtitles": subtitles.subtitles,
    "text": plain.text,
    "csv": lambda source: ("", list(sheets.csv_table(source))),
    "notebook": markdown.notebook,
    "code": plain.code,
}
