"""Recognise the format of a document by its file name and its content."""

import codecs
import io
import re
import zipfile
from pathlib import PurePath

from rag.data.documents.blocks import Unreadable

_SUFFIXES = {
    "pdf": "pdf",
    "docx": "docx docm",
    "pptx": "pptx pptm",
    "xlsx": "xlsx xlsm",
    "epub": "epub",
    "html": "html htm xhtml",
    "markdown": "md markdown mdx",
    "rst": "rst rest",
    "mail": "eml",
    "mbox": "mbox",
    "text": "txt text",
    "asciidoc": "adoc asciidoc",
    "org": "org",
    "latex": "tex",
    "rtf": "rtf",
    "man": "man",
    "csv": "csv tsv",
    "ipynb": "ipynb",
    "odt": "odt ott",
    "code": "c h cc cpp cxx hpp cs go java kt scala swift rs rb php pl pm js jsx mjs ts tsx vue lua r jl m "
    "sh bash zsh fish ps1 bat sql yaml yml toml ini cfg conf properties xml json gradle cmake mk tf proto "
    "graphql ex exs erl hs ml clj lisp el vim dart log py pyi",
    "unread": "doc dot pages wpd ppt key odp xls numbers ods djvu ps mobi azw3 msg mht srt vtt",
}
_BY_SUFFIX = {
    f".{suffix}": kind for kind, suffixes in _SUFFIXES.items() for suffix in suffixes.split()
}
_TEXT_NAMES = ("readme", "license", "copying", "changelog", "news", "authors", "install", "todo")
_BY_NAME = {**dict.fromkeys(_TEXT_NAMES, "text"), "makefile": "code", "dockerfile": "code"}
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
_SECTION = re.compile(r"\.[1-9][a-z]{0,3}$")  # of manual pages
_MAN = re.compile(rb"^\.(?:TH|Dt)[ \t]", re.MULTILINE)  # begins a manual page
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # old Office files, and new ones with a password
_HTML = re.compile(
    rb"\s*(?:<\?xml[^>]*>\s*)?(?:<!--(?:(?!-->).)*-->\s*)*<(?:!doctype\s+html|html|head|body)\b",
    re.I | re.S,
)


def kind_by_name(name: str) -> str | None:
    """Format of a document by its file name, "unread" for those not read; None if the name tells
    none.

    Example:
        >>> kind_by_name("Guide.PDF"), kind_by_name("Makefile"), kind_by_name("photo.jpg")
        ('pdf', 'code', None)
    """
    path = PurePath(name.lower())
    by_section = "man" if _SECTION.match(path.suffix) else None
    return _BY_SUFFIX.get(path.suffix) or _BY_NAME.get(path.name) or by_section


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


def is_text(head: bytes) -> bool:
    """Whether the first bytes of a file look like text: UTF-8 without control characters."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)  # may end within a character
    except UnicodeDecodeError:
        return False
    return bool(text.strip()) and re.search("[\0-\x07]", text) is None


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
