"""Recognise the format of a document by its file name and its content."""

import io
import re
import zipfile

from rag.data.documents.blocks import Unreadable
from rag.data.formats import is_text, kind_by_name

_MAX_UNPACKED = 2_000_000_000  # bytes of all files of an archive (DOCX, PPTX, XLSX, EPUB) together
_GET_AGAIN = "get a whole copy of it"
_BINARY = ("pdf", "docx", "pptx", "xlsx", "epub", "odt")
_SAVE = "save it as DOCX, PPTX, XLSX, PDF, EML or TXT"
_MEMBERS = (
    ("word/document.xml", "docx"),
    ("ppt/presentation.xml", "pptx"),
    ("xl/workbook.xml", "xlsx"),
    ("META-INF/container.xml", "epub"),
)
_ODT = (
    "application/vnd.oasis.opendocument.text",
    "application/vnd.oasis.opendocument.text-template",
)
_MAN = re.compile(rb"^\.(?:TH|Dt)[ \t]", re.MULTILINE)  # begins a manual page
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # old Office files, and new ones with a password
_HTML = re.compile(
    rb"\s*(?:<\?xml[^>]*>\s*)?(?:<!--(?:(?!-->).)*-->\s*)*<(?:!doctype\s+html|html|head|body)\b",
    re.I | re.S,
)


def kind_of(data: bytes, name: str) -> str:
    """Format of a document by its content, otherwise by its name, otherwise text."""
    named = kind_by_name(name)
    if not data.strip():
        what_to_do = _GET_AGAIN if named in _BINARY else "nothing to do: there is no text in it"
        raise Unreadable("empty", what_to_do, f"{len(data)} bytes")
    if b"%PDF-" in data[:1024] and (
        named in (None, *_BINARY) or data.lstrip().startswith(b"%PDF-")
    ):
        return "pdf"
    if data.startswith(b"PK") and zipfile.is_zipfile(io.BytesIO(data)):
        return _kind_of_archive(data)
    if data.startswith(_OLE):
        if "EncryptedPackage".encode("utf-16-le") in data:
            raise Unreadable("encrypted", "save a copy without a password")
        raise Unreadable("old Office format", _SAVE)
    if data.startswith(b"{\\rtf"):
        return "rtf"
    if named in (None, "text", "man", "unread", *_BINARY) and _HTML.match(data[:4096]):
        return "html"
    if named in _BINARY:
        what_to_do = "name it .txt, or as what it is" if is_text(data[:4096]) else _GET_AGAIN
        raise Unreadable("broken file", what_to_do, f"its content is not {named.upper()}")
    if named is None and re.match(rb"From \S+.*\d{4}\r?\n[\w-]+:", data[:1024]):
        return "mbox"
    if named == "unread":
        raise Unreadable("format not read", _SAVE)
    if named in (None, "text", "man"):
        return "man" if _MAN.search(data[: 1 << 16]) else "text"
    return named


def _kind_of_archive(data: bytes) -> str:
    with open_archive(data) as archive:
        members = set(archive.namelist())
        declared = (
            archive.read("mimetype").decode("latin-1").strip() if "mimetype" in members else ""
        )
    if declared in _ODT:
        return "odt"
    kind = next((kind for member, kind in _MEMBERS if member in members), None)
    if kind is None:
        raise Unreadable("format not read", f"{_SAVE}, or unpack it", "an archive, not a document")
    return kind


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
