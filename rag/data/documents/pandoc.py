"""RTF, LaTeX, manual pages, Org, AsciiDoc and Jupyter notebooks by pandoc, where it is
installed.
"""

import ctypes
import functools
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from rag.data.documents import html
from rag.data.documents.blocks import Piece, Unreadable

_TIMEOUT_S = 60
_VERSION_TIMEOUT_S = 5
_LEAST_VERSION = (3, 1)  # older ones lose text of manual pages and AsciiDoc; some have no sandbox
FORMATS = ("rtf", "latex", "man", "org", "asciidoc", "ipynb")
REMEDY = (
    "install pandoc 3.1 or later (`pip install pypandoc_binary`), or save it as DOCX, PDF or HTML"
)
_MACRO = re.compile(
    rb"^\.de1? .*?^\.\.$", re.MULTILINE | re.DOTALL
)  # a definition, in manual pages
_BSD = re.compile(rb"^\.Dd ", re.MULTILINE)  # a manual page in the macros of BSD
_BSD_HEADING = re.compile(rb"^\.S[hs](?= )", re.MULTILINE)
_INCLUDE = re.compile(rb"^include::.*$", re.MULTILINE)
_UNDERLINED = re.compile(rb"(?:\A|(?<=\n\n)|(?<=\]\n))(\w.*)\n([-=~^+])\2{2,}$", re.MULTILINE)
_LEVELS = b"=-~^+"  # of AsciiDoc's underlined headings, which pandoc does not know


def read(data: bytes, kind: str) -> tuple[str, list[Piece]]:
    """Title and pieces of a document of one of `FORMATS`; nothing that it names is opened or
    executed.
    """
    program = find_pandoc(f"it reads {kind.upper()} files")
    if kind == "man":
        if _BSD.search(data):
            with suppress(
                Unreadable
            ):  # a strict reader; that of the others drops what BSD's macros hold
                return _run(program, "mdoc", data)
        data = _BSD_HEADING.sub(lambda macro: macro[0].upper(), _MACRO.sub(b"", data))
        if b"\\{" not in data:  # pandoc stops at the end of what has not begun
            data = data.replace(b"\n.\\}\n", b"\n")
    if kind == "asciidoc":
        data = _UNDERLINED.sub(_on_one_line, _INCLUDE.sub(b"", data))
    return _run(program, kind, data)


def _run(program: str, source: str, data: bytes) -> tuple[str, list[Piece]]:
    command = [program, "--sandbox", "--standalone", f"--from={source}", "--to=html", "--wrap=none"]
    command.append("--ipynb-output=none")
    if source == "asciidoc":  # whose title is the first heading, "=", above those of "=="
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
        raise Unreadable(
            "broken file", "save it as DOCX, PDF or HTML", f"pandoc: {reason[:120].rstrip('.')}"
        )
    title, pieces = html.pandoc_page(
        done.stdout.decode("utf-8", "replace"), has_title=source == "asciidoc"
    )
    return title.lower() if source in ("man", "mdoc") and title.isupper() else title, pieces


def _on_one_line(heading: re.Match[bytes]) -> bytes:
    text, sign = heading.group(1, 2)
    is_underline = abs(len(heading[0]) - 1 - 2 * len(text)) <= 2
    return b"=" * (1 + _LEVELS.index(sign)) + b" " + text if is_underline else heading[0]


def find_pandoc(use: str = "") -> str:
    """The program on the PATH, or else the one that the package pypandoc_binary carries.

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
        stated = subprocess.run(
            [program, "--version"], capture_output=True, timeout=_VERSION_TIMEOUT_S, check=True
        ).stdout
        if version := re.match(rb"pandoc(?:\.exe)? (\d+(?:\.\d+)*)", stated):
            return tuple(map(int, version[1].split(b".")))
    return ()


def _die_with_parent() -> None:
    """In the new process, which alone outlives a converter that is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
