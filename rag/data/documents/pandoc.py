"""RTF, LaTeX, manual pages, Org and AsciiDoc by the program pandoc, where it is installed."""

import ctypes
import importlib.util
import shutil
import signal
import subprocess
import sys

from rag.data.documents import html
from rag.data.documents.blocks import Piece, Unreadable
from rag.data.documents.limits import Limits

FORMATS = {"rtf": "rtf", "latex": "latex", "man": "man", "org": "org", "asciidoc": "asciidoc"}
REMEDY = "install pandoc (or `pip install pypandoc_binary`), or save it as DOCX, PDF or HTML"


def read(data: bytes, kind: str, limits: Limits) -> tuple[str, list[Piece]]:
    """Title and pieces of a document of one of `FORMATS`; nothing that it names is opened or executed.

    Raises:
        Unreadable: pandoc is not installed, refuses the file, or takes too long.
    """
    program = find_pandoc()
    if program is None:
        raise Unreadable("pandoc is not installed", REMEDY, f"it reads {kind.upper()} files")
    command = [program, "--sandbox", "--standalone", f"--from={FORMATS[kind]}", "--to=html", "--wrap=none"]
    if kind == "asciidoc":  # whose title is the first heading, "=", above those of "=="
        command.append("--shift-heading-level-by=1")
    try:
        done = subprocess.run(
            command, input=data, capture_output=True, timeout=limits.timeout_s, preexec_fn=_die_with_parent
        )
    except subprocess.TimeoutExpired as error:
        raise Unreadable("takes too long", "split it", f"more than {limits.timeout_s:g} s") from error
    if done.returncode:
        said = " ".join(done.stderr.decode("utf-8", "replace").split())
        raise Unreadable("broken file", "save it as DOCX, PDF or HTML", f"pandoc: {said[:120].rstrip('.')}")
    title, pieces = html.rendered_page(done.stdout.decode("utf-8", "replace"), has_title=kind == "asciidoc")
    return title.lower() if kind == "man" and title.isupper() else title, pieces


def find_pandoc() -> str | None:
    """The program on the PATH, or the one that the package pypandoc_binary carries; None without either."""
    if (program := shutil.which("pandoc")) or importlib.util.find_spec("pypandoc") is None:
        return program
    import pypandoc

    try:
        return str(pypandoc.get_pandoc_path())
    except OSError:
        return None


def _die_with_parent() -> None:
    """In the new process, which alone outlives a converter that is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
