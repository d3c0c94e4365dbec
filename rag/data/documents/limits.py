"""Limits on the resources that a document may use, and archives that are opened within these limits."""

import io
import re
import zipfile

from rag.data.documents.blocks import Unreadable

MAX_BYTES = 500_000_000  # of a file
MAX_CHARS = 20_000_000  # of its text
_MAX_UNPACKED = 2_000_000_000  # bytes of all files of an archive (DOCX, PPTX, XLSX, EPUB) together
_MAX_RATIO, _RATIO_FROM_BYTES = 100, 50_000_000  # by which it may grow; smaller ones do no harm


def check_nesting(text: str, opening: str, most: int) -> None:
    """Refuse text in which more than `most` of the brackets `opening` are open at once.

    Parsers of such text take time with the square of the depth, or end at a limit of the language.

    Raises:
        Unreadable: it is nested deeper.
    """
    ends = {"[": "]", "{": "}"}
    depth = 0
    for bracket in re.findall(f"[{re.escape(opening + ''.join(map(ends.__getitem__, opening)))}]", text):
        depth = depth + 1 if bracket in opening else max(depth - 1, 0)
        if depth > most:
            raise Unreadable("nested too deeply", "save it as plain text", f"{most} brackets in each other")


def open_archive(data: bytes) -> zipfile.ZipFile:
    """Open a ZIP file whose members together stay within the limits.

    The sizes in the archive's directory are added up; Python's reader gives no member more bytes than that.

    Raises:
        Unreadable: it is damaged, encrypted, or too large when unpacked.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        detail = f"not a readable archive: {error}"
        raise Unreadable("broken file", "get a whole copy of it", detail) from error
    members = archive.infolist()
    if any(member.flag_bits & 1 for member in members):
        raise Unreadable("encrypted", "save a copy without a password")
    unpacked = sum(member.file_size for member in members)
    too_dense = unpacked > _RATIO_FROM_BYTES and unpacked > _MAX_RATIO * len(data)
    if too_dense or unpacked > _MAX_UNPACKED:
        detail = f"{len(data):,} bytes would become {unpacked:,}: a zip bomb?"
        raise Unreadable("too large when unpacked", "split it", detail)
    return archive
