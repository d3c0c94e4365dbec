"""EPUB books: the chapters of an archive in reading order, each of them XHTML."""

import posixpath
import zipfile
from urllib.parse import unquote
from xml.etree import ElementTree

from rag.data.documents import html
from rag.data.documents.blocks import Piece, clean
from rag.data.documents.kinds import open_archive
from rag.data.documents.plain import decode

_CONTAINER = "META-INF/container.xml"


def book(data: bytes) -> tuple[str, list[Piece]]:
    """Title and pieces of a book: its chapters in reading order, without the table of contents."""
    with open_archive(data) as archive:
        root = _xml(archive, _CONTAINER).find(".//{*}rootfile")
        place = root.attrib["full-path"] if root is not None else ""
        package = _xml(archive, place)
        title = package.find(".//{*}title")
        pieces: list[Piece] = []
        items = {item.attrib.get("id"): item.attrib for item in package.iterfind(".//{*}manifest/{*}item")}
        for reference in package.iterfind(".//{*}spine/{*}itemref"):
            item = items.get(reference.attrib.get("idref"), {})
            name = posixpath.normpath(posixpath.join(posixpath.dirname(place), unquote(item.get("href", ""))))
            if name in archive.namelist() and "nav" not in item.get("properties", "").split():
                pieces += html.page(decode(archive.read(name))[0])[1]
        return clean("".join(title.itertext())) if title is not None else "", pieces


def _xml(archive: zipfile.ZipFile, name: str) -> ElementTree.Element:
    return ElementTree.fromstring(archive.read(name))
