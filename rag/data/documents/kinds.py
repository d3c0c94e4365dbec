"""Recognise the format of a document by its file name and its content."""

import io
import re
import zipfile

from rag.data.documents.blocks import Unreadable
from rag.data.formats import is_text, kind_by_name

# Bytes of all files of an archive (DOCX, PPTX, XLSX, EPUB, ODT, ODS) together.
_MAX_UNPACKED = 2_000_000_000
_HEAD_BYTES = 4096
_GET_AGAIN = "get a whole copy of it"
_SAVE = "save it as DOCX, PPTX, XLSX, PDF, HTML, EML or TXT"
_BINARY = ("pdf", "docx", "pptx", "xlsx", "epub", "odt", "ods")
_KIND_OF_MEMBER = {
    "word/document.xml": "docx",
    "ppt/presentation.xml": "pptx",
    "xl/workbook.xml": "xlsx",
    "META-INF/container.xml": "epub",
}
_OPEN_DOCUMENT = rb"application/vnd\.oasis\.opendocument\.(?:text|spreadsheet)(?:-template)?"
# An OpenDocument file without an archive.
_FLAT_DOCUMENT = re.compile(
    rb"(?:\xef\xbb\xbf)?(?:<\?xml[^>]*>)?\s*<office:document\s[^>]*\soffice:mimetype=[\"']"
    + _OPEN_DOCUMENT
)
# What Office draws from data, in a part of its file.
_DRAWN = {
    "charts": re.compile(r"\w+/charts/chart[^/]*\.xml"),
    "diagrams": re.compile(r"\w+/diagrams/data[^/]*\.xml"),
}
_TYPES = "[Content_Types].xml"
_MAIN_TYPE = re.compile(rb"application/vnd\.[\w.-]+\.main\+xml")
# Begins old Office files, and new ones with a password.
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_MANUAL_PAGE = re.compile(rb"^\.(?:TH|Dt)[ \t]", re.MULTILINE)
_MAILBOX = re.compile(rb"From \S+.*\d{4}\r?\n[\w-]+:")
_HTML = re.compile(
    rb"\s*(?:<\?xml[^>]*>\s*)?(?:<!--(?:(?!-->).)*-->\s*)*<(?:!doctype\s+html|html|head|body)\b",
    re.IGNORECASE | re.DOTALL,
)


def kind_of(data: bytes, name: str) -> str:
    """The kind of a document by its content, otherwise by its name, otherwise text.

    Raises:
        Unreadable: it is empty, encrypted, of a kind that is not read, or not what its name says.
    """
    by_name = kind_by_name(name)
    is_named_binary = by_name in _BINARY
    if not data.strip():
        remedy = _GET_AGAIN if is_named_binary else "nothing to do: there is no text in it"
        raise Unreadable("empty", remedy, f"{len(data)} bytes")
    may_have_preamble = by_name is None or is_named_binary
    if data.lstrip().startswith(b"%PDF-") or (may_have_preamble and b"%PDF-" in data[:1024]):
        return "pdf"
    if data.startswith(b"PK") and zipfile.is_zipfile(io.BytesIO(data)):
        return _kind_of_archive(data, by_name)
    if data.startswith(_OLE):
        if "EncryptedPackage".encode("utf-16-le") in data:
            raise Unreadable("encrypted", "save a copy without a password")
        raise Unreadable("old Office format", _SAVE)
    if data.startswith(b"{\\rtf"):
        return "rtf"
    if _FLAT_DOCUMENT.match(data):
        return "odt"
    head = data[:_HEAD_BYTES]
    is_said_by_name = by_name not in (None, "text", "man", "unread", *_BINARY)
    if not is_said_by_name and _HTML.match(head):
        return "html"
    if is_named_binary:
        remedy = "name it .txt, or as what it is" if is_text(head) else _GET_AGAIN
        raise Unreadable("broken file", remedy, f"its content is not {str(by_name).upper()}")
    if by_name == "unread":
        raise Unreadable("format not read", _SAVE)
    if by_name is None and _MAILBOX.match(data[:1024]):
        return "mbox"
    if by_name in (None, "text", "man"):
        return "man" if _MANUAL_PAGE.search(data[: 1 << 16]) else "text"
    return by_name


def _kind_of_archive(data: bytes, by_name: str | None) -> str:
    with open_archive(data) as archive:
        members = archive.namelist()
        declared = archive.read("mimetype").strip() if "mimetype" in members else b""
        if re.fullmatch(_OPEN_DOCUMENT, declared):
            return "odt"
    for member, kind in _KIND_OF_MEMBER.items():
        if member in members:
            return kind
    if by_name == "unread":
        raise Unreadable("format not read", _SAVE)
    raise Unreadable("format not read", f"{_SAVE}, or unpack it", "an archive, not a document")


def open_archive(data: bytes) -> zipfile.ZipFile:
    """Open a ZIP file that is not encrypted, and whose members stay within the limits.

    The sizes in the archive's directory are added up; Python's reader gives no member more bytes
    than that.
    """
    archive = zipfile.ZipFile(io.BytesIO(data))
    members = archive.infolist()
    if any(member.flag_bits & 1 for member in members):
        raise Unreadable("encrypted", "save a copy without a password")
    unpacked = sum(member.file_size for member in members)
    if unpacked > _MAX_UNPACKED:
        detail = f"{len(data):,} bytes would become {unpacked:,}: a zip bomb?"
        raise Unreadable("too large when unpacked", "split it", detail)
    return archive


def as_document(data: bytes, kind: bytes) -> io.BytesIO:
    """A file of Office as libraries open it: not as a template, as a show, or with macros.

    Args:
        kind: the type of its main part in an ordinary file, such as "wordprocessingml.document".
    """
    main_type = b"application/vnd.openxmlformats-officedocument." + kind + b".main+xml"
    copied = io.BytesIO()
    with open_archive(data) as source, zipfile.ZipFile(copied, "w") as target:
        if main_type in source.read(_TYPES):
            return io.BytesIO(data)
        for name in source.namelist():
            part = source.read(name)
            target.writestr(name, _MAIN_TYPE.sub(main_type, part) if name == _TYPES else part)
    return copied


def count_drawn(data: bytes) -> dict[str, int]:
    """How many charts and diagrams a file of Office has."""
    members = open_archive(data).namelist()
    return {what: len(list(filter(part.fullmatch, members))) for what, part in _DRAWN.items()}
