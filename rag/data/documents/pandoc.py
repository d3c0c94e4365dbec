"""RTF, LaTeX, manual pages, Org, AsciiDoc and Jupyter notebooks by pandoc, where it is
installed.
"""

import ctypes
import functools
import itertools
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rag.data.documents import bsd_pages, html, plain
from rag.data.documents.blocks import Content, Unreadable, not_read

_TIMEOUT_S = 60
_VERSION_TIMEOUT_S = 5
# Older versions lose text of manual pages and AsciiDoc, and some have no sandbox.
_LEAST_VERSION = (3, 1)
REMEDY = (
    "install pandoc 3.1 or later (`pip install pypandoc_binary`), or save it as DOCX, PDF or HTML"
)
# Pandoc takes all letters of RTF for Western European, unless a number in Unicode stands before them.
_OTHER_CODE_PAGE = re.compile(rb"\\ansicpg(?!1252|0|65001)\d+(?s:.*?)(?<!\d)(?<!\d )\\'[89a-fA-F]")
# The number of a paragraph of RTF, as its writer shows it: pandoc counts anew behind other paragraphs.
_RTF_NUMBER = re.compile(
    rb"\{\\listtext(?:\\[a-z]+-?\d* ?)*\s*((?:\w{1,4}[.)])+)\s*\\tab\s*\}([^{}]*?)\\ls\d+\b"
)
_MACRO_DEFINITION = re.compile(rb"^\.de1? .*?^\.\.$", re.MULTILINE | re.DOTALL)
_BSD_PAGE = re.compile(rb"^\.Dd ", re.MULTILINE)
# An apostrophe, as DocBook's pages define it.
_APOSTROPHE = rb"\*(Aq"
# Pandoc writes this word in place of a table of tbl that spans columns or has other modifiers.
_LOST_TABLE = "TABLE"
_TABLE = re.compile(
    rb"^\.TS.*\n(?P<form>(?>(?:(?!\.TE).*\n)*?.*\.[ \t]*\n))(?P<rows>(?:(?!\.TE).*\n)*+)\.TE",
    re.MULTILINE,
)
_SEPARATOR = re.compile(rb"tab *\((.)\)")
_BLOCK = re.compile(rb"T\{\n(.*?)\nT\}", re.DOTALL)
_REQUEST = re.compile(rb"^\.[A-Za-z]+ ?", re.MULTILINE)
_INCLUDE = re.compile(rb"^include::.*$", re.MULTILINE)
_UNDERLINED = re.compile(rb"(?:\A|(?<=\n\n)|(?<=\]\n))(\w.*)\n([-=~^+])\2{2,}$", re.MULTILINE)
# What underlines the headings of AsciiDoc, by level; pandoc does not know these headings.
_UNDERLINES = b"=-~^+"
_LATEX_HEADING = re.compile(r"^\\(?:part|chapter|(?:sub)*section)\*?\{(.*)\}\s*$", re.MULTILINE)


def read(data: bytes, kind: str) -> Content:
    """Read a document of a kind that pandoc knows; nothing that it names is opened or executed.

    Args:
        kind: "rtf", "latex", "man", "org", "asciidoc" or "ipynb".
    """
    program = find_pandoc(f"it reads {kind.upper()} files")
    if kind == "rtf" and _OTHER_CODE_PAGE.search(data):
        detail = "letters of another code page than Windows-1252"
        raise Unreadable("unknown encoding", "save it as DOCX, PDF or HTML", detail)
    if kind == "man":
        return _read_manual_page(program, data)
    if kind == "asciidoc":
        data = _UNDERLINED.sub(_on_one_line, _INCLUDE.sub(b"", data))
    if kind == "rtf":
        data = _RTF_NUMBER.sub(rb"{\1 }\2", data)
    if kind == "org":
        # An underscore within a name begins no subscript.
        data = b"#+OPTIONS: ^:nil\n" + data
    content = _run(program, kind, data)
    if kind == "ipynb":
        # Pandoc does not know the format of raw cells.
        n_raw = data.count(b'"cell_type": "raw"')
        counts = {"outputs": data.count(b'"output_type"'), "raw cells": n_raw}
        return replace(content, notes=not_read(counts))
    return content


def latex(source: str) -> Content:
    """Read LaTeX; as plain text with headings where pandoc does not understand it."""
    try:
        return read(source.encode(), "latex")
    except Unreadable as error:
        if error.reason != "broken file":
            raise
        marked = _LATEX_HEADING.sub(lambda line: f"\n\n{line[1]}\n{'=' * len(line[1])}\n\n", source)
        return replace(plain.text(marked), notes=[f"read as plain text ({error.detail})"])


def _read_manual_page(program: str, data: bytes) -> Content:
    data = _MACRO_DEFINITION.sub(b"", data)
    if _BSD_PAGE.search(data):
        with suppress(Unreadable):
            return _run(program, "mdoc", data)
        # Pandoc's reader of BSD's macros refuses pages that groff and mandoc show, and its reader of
        # other pages drops what these macros hold. Latin-1 keeps the bytes of any encoding.
        data = bsd_pages.as_man(data.decode("latin-1")).encode("latin-1")
    data = data.replace(_APOSTROPHE, rb"\(aq")
    if b"\\{" not in data:
        # Pandoc stops at the end of what has not begun.
        data = data.replace(b"\n.\\}\n", b"\n")
    content = _run(program, "man", data)
    if _n_lost_tables(content):
        content = _run(program, "man", _TABLE.sub(_plain_table, data))
    return replace(content, notes=not_read({"tables": _n_lost_tables(content)}))


def _n_lost_tables(content: Content) -> int:
    return sum(piece.text == _LOST_TABLE for piece in content.pieces)


def _plain_table(table: re.Match[bytes]) -> bytes:
    """A table whose columns are all alike, behind the rows above its columns."""
    option = _SEPARATOR.search(table["form"])
    separator = option[1] if option else b"\t"
    rows = _BLOCK.sub(lambda block: _REQUEST.sub(b"", block[1]).replace(b"\n", b" "), table["rows"])
    lines = [line for line in rows.splitlines() if line.strip(b"_= ") and line[:1] != b"."]
    n_separators = max((line.count(separator) for line in lines), default=0)
    above = list(itertools.takewhile(lambda line: line.count(separator) < n_separators, lines))
    head, *body = lines[len(above) :] or [b""]
    filled = [line + separator * (n_separators - line.count(separator)) for line in body]
    form = [b".TS", b"tab(%b);" % separator, b"l " * n_separators + b"l."]
    return b"\n".join([*above, *form, head, b"_", *filled, b".TE"])


def _run(program: str, source: str, data: bytes) -> Content:
    command = [program, "--sandbox", "--standalone", f"--from={source}", "--to=html", "--wrap=none"]
    command += ["--ipynb-output=none", "--reference-location=block"]
    is_asciidoc = source == "asciidoc"
    if is_asciidoc:
        # The title is the first heading, "=", above those of "==".
        command.append("--shift-heading-level-by=1")
    try:
        done = subprocess.run(
            command,
            input=data,
            capture_output=True,
            timeout=_TIMEOUT_S,
            preexec_fn=_die_with_parent,
        )
    except subprocess.TimeoutExpired as error:
        raise Unreadable("takes too long", "split it", f"more than {_TIMEOUT_S} s") from error
    if done.returncode:
        reason = " ".join(done.stderr.decode("utf-8", "replace").split())
        detail = f"pandoc: {reason[:120].rstrip('.')}"
        raise Unreadable("broken file", "save it as DOCX, PDF or HTML", detail)
    content = html.pandoc_page(done.stdout.decode("utf-8", "replace"), has_title=is_asciidoc)
    if source in ("man", "mdoc") and content.title.isupper():
        return replace(content, title=content.title.lower())
    return content


def _on_one_line(heading: re.Match[bytes]) -> bytes:
    text, sign = heading.group(1, 2)
    is_underline = abs(len(heading[0]) - 1 - 2 * len(text)) <= 2
    return b"=" * (1 + _UNDERLINES.index(sign)) + b" " + text if is_underline else heading[0]


def find_pandoc(use: str = "") -> str:
    """The program on the PATH, or else the program in the package pypandoc_binary.

    Args:
        use: what it is needed for, as the detail of the error.

    Raises:
        Unreadable: there is no pandoc, or none that is recent enough; the reason states its version.
    """
    reason = "pandoc is not installed"
    for program in (shutil.which("pandoc"), _packaged_pandoc()):
        if program is None:
            continue
        version = _version_of(program)
        if version >= _LEAST_VERSION:
            return program
        found = ".".join(map(str, version)) or "of an unknown version"
        reason = f"pandoc is too old: found {found}, expected 3.1 or later"
    raise Unreadable(reason, REMEDY, use)


def _packaged_pandoc() -> str | None:
    with suppress(ImportError):
        import pypandoc

        return shutil.which("pandoc", path=Path(str(pypandoc.__file__)).parent / "files")
    return None


@functools.cache
def _version_of(program: str) -> tuple[int, ...]:
    """The version that a program states; () if it states none in time."""
    with suppress(OSError, subprocess.SubprocessError):
        printed = subprocess.run(
            [program, "--version"], capture_output=True, timeout=_VERSION_TIMEOUT_S, check=True
        ).stdout
        version = re.match(rb"pandoc(?:\.exe)? (\d+(?:\.\d+)*)", printed)
        if version:
            return tuple(map(int, version[1].split(b".")))
    return ()


def _die_with_parent() -> None:
    """In the new process, which alone outlives a converter that is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
