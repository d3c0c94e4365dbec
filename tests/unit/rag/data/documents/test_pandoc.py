"""Formats that pandoc reads, and what is said where it is not installed."""

import gzip
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rag.data.corpus import read_documents
from rag.data.documents import pandoc
from rag.data.documents.blocks import Unreadable
from rag.data.documents.convert import convert
from rag.data.records import ReadReport
from tests import document_makers as make
from tests.document_makers import CONTENT, LONG, blocks, markdown
from tests.support.messages import refusal

MAN = r""".TH TOOL 1 "May 2024" "1.0" "User Commands"
.SH NAME
tool \- do a thing
.SH OPTIONS
.TP
\fB\-v\fR, \fB\-\-verbose\fR
Say more; see
.BR other (8).
"""


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("rtf", "a.rtf"),
        ("latex", "a.tex"),
        ("asciidoc", "a.adoc"),
        ("org", "a.org"),
        ("ipynb", "a.ipynb"),
    ],
)
def test_headings_words_and_tables_survive(kind: str, name: str) -> None:
    command = [pandoc.find_pandoc(), "--standalone", "--from=gfm", f"--to={kind}", "--wrap=none"]
    written = subprocess.run(
        command, input=markdown(CONTENT), capture_output=True, check=True
    ).stdout
    converted = convert(written, name)
    assert converted.title == "Guide"
    headings = make.texts(converted, "heading")
    assert headings == ["Guide", "Linux"]
    words = re.findall(r"\w+", converted.text)
    for text in (LONG, "first entry", "second entry", "apt install x", "cellar", "attic"):
        assert " ".join(re.findall(r"\w+", text)) in " ".join(words)
    assert "row: Week: two; Room: cellar" in blocks(converted)


@pytest.mark.parametrize(
    ("name", "source", "title", "expected"),
    [
        (
            "tool.1",
            MAN,
            "tool",
            [
                "heading: NAME",
                "paragraph: tool - do a thing",
                "heading: OPTIONS",
                "item: -v, --verbose: Say more; see other(8).",
            ],
        ),
        (
            "hunt.6",
            ".Dd May 1, 2000\n.Dt HUNT 6\n.Os\n.Sh NAME\n.Nm hunt\n.Nd game\n.Sh OPTIONS\n.Fl q\nQuiet.\n",
            "hunt",
            ["heading: OPTIONS", "paragraph: -q Quiet."],
        ),
        (
            "hunt.6",
            ".TH HUNT 6\n.de tq\n.br\n..\n.\\}\n.SH NAME\nhunt \\- a game\n.SH OPTIONS\n\\-q\nQuiet.\n",
            "hunt",
            ["heading: OPTIONS", "paragraph: -q Quiet."],
        ),
        (
            "hunt.6",
            ".Dd May 1\n.Dt HUNT 6\n.Sh NAME\nhunt\n.Sh OPTIONS\n\\-q Quiet.\n.Unknown macro\n",
            "hunt",
            ["heading: OPTIONS", "paragraph: -q Quiet. macro"],
        ),
        (
            "hunt.6",  # without .Os, and Xo outside of an entry: pandoc's reader refuses either
            ".Dd May 1\n.Dt HUNT 6\n.Sh NAME\n.Nm hunt\n.Nd game\n.Sh OPTIONS\n"
            ".Nm\nhides, see\n.Xr trek 6 .\n.Bl -tag -width x\n"
            ".It Xo Ic new-map\n.Op Fl dE\n.Op Fl s Ar size\n.Xc\n.D1 Pq alias : Ic new\n"
            "Draws one, twice with\n.Xo ( Fl Fl slow ) Xc .\n"
            ".It Fl q Ns Ar N , Fl Fl quiet Ns = Ns Ar N\nQuiet.\n.El\n"
            '.Bl -column a b\n.It Li * Ta "Here."\n.El\n',
            "hunt",
            [
                "heading: OPTIONS",
                "paragraph: hunt hides, see trek(6).",
                "item: new-map [-dE] [-s size]: (alias: new) Draws one, twice with (--slow).",
                "item: -qN, --quiet=N: Quiet.",
                "paragraph: * Here.",
            ],
        ),
        (
            "a.rtf",
            r"{\rtf1\ansi{\*\listtable{\list\listtemplateid1{\listlevel\levelnfc0\levelstartat1"
            r"{\leveltext\'02\'00.;}{\levelnumbers\'01;}}\listid1}}"
            r"{\*\listoverridetable{\listoverride\listid1\listoverridecount0\ls1}}"
            r"{\listtext\plain  1.\tab}\ls1 First.\par\pard Between.\par{\listtext 2.\tab}\ls1 Last.\par}",
            "",
            ["paragraph: 1. First.", "paragraph: Between.", "paragraph: 2. Last."],
        ),
        (
            "signal.7",
            ".TH SIGNAL 7\n.SH NAME\nsignal \\- it\\*(Aqs sent\n.SH LIST\nSome.\n.TS\ntab(:);\nc s s\n"
            "lb lp-1 l.\nStandard signals\nName:Value:Use\n_\nSIGHUP:1:T{\n.B Hangs\nup\nT}\nSIGINT:2\n.TE\n",
            "signal",
            [
                "paragraph: signal - it's sent",
                "heading: LIST",
                "paragraph: Some. Standard signals",
                "row: Name: SIGHUP; Value: 1; Use: Hangs up",
                "row: Name: SIGINT; Value: 2",
            ],
        ),
        (
            "a.org",
            "#+TITLE: My notes\n* TODO Linux\n  Use =pip= of a_b.\n* DONE Windows\n  No.\n",
            "My notes",
            [
                "heading: TODO Linux",
                "paragraph: Use pip of a_b.",
                "heading: DONE Windows",
                "paragraph: No.",
            ],
        ),
        (
            "a.adoc",
            "= The Guide\n:toc: left\n\n== Use\n\nIt *is* fine.\n\n include::/etc/passwd[]\n",
            "The Guide",
            ["heading: The Guide", "heading: Use", "paragraph: It is fine."],
        ),
        (
            "a.adoc",
            "git-clean(1)\n============\n\nNAME\n----\nRemove files.\n\n"
            "include::other.txt[]\n\nCode\n\n----\nls\n----\n",
            "git-clean(1)",
            ["heading: NAME", "paragraph: Remove files.", "paragraph: Code", "code: ls"],
        ),
    ],
)
def test_what_is_read(name: str, source: str, title: str, expected: list[str]) -> None:
    converted = convert(source.encode(), name)
    assert converted.title == title
    assert [block for block in blocks(converted) if block in expected] == expected
    assert "root:" not in converted.text


def test_letters_of_rtf_in_another_code_page_are_refused() -> None:
    czech = rb"{\rtf1\ansi\ansicpg1250 V\'ec je k\'f9\'f2.}"
    with refusal(Unreadable):
        convert(czech, "a.rtf")
    both = rb"{\rtf1\ansi\ansicpg1250 K\u367\'f9\u328 \'f2 je zde.}"
    assert convert(both, "a.rtf").text == "Kůň je zde."
    german = rb"{\rtf1\ansi\ansicpg1252 Gr\'fc\'dfe.}"
    assert convert(german, "a.rtf").text == "Grüße."


def test_abstract_title_and_footnotes_of_latex_are_read() -> None:
    head = r"\title{On $10^6$ roses}\begin{document}\maketitle"
    body = r"\begin{abstract}We count.\end{abstract}Text.\footnote{A note.}\end{document}"
    converted = convert(rf"\documentclass{{article}}{head}{body}".encode(), "a.tex")
    assert converted.title == "On 10^6 roses"
    assert converted.text.startswith("Abstract\n\nWe count.\n\nText.")
    assert converted.text.endswith("A note.")


def test_outputs_and_raw_cells_of_a_notebook_are_counted() -> None:
    output = {"output_type": "stream", "name": "stdout", "text": ["42\n"]}
    source = {"cell_type": "code", "execution_count": 1, "metadata": {}}
    cells = [
        {**source, "source": 'print("output_type")', "outputs": [output, output]},
        {**source, "source": "pass", "outputs": []},
        {"cell_type": "raw", "source": "Text.", "metadata": {}},
    ]
    book = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    converted = convert(json.dumps(book).encode(), "a.ipynb")
    assert "42" not in converted.text
    assert converted.notes == ("not read: outputs: 2, raw cells: 1",)


def test_a_folder_of_compressed_pages_is_read(tmp_path: Path) -> None:
    (tmp_path / "tool.1.gz").write_bytes(gzip.compress(MAN.encode()))
    (tmp_path / "other.gz").write_bytes(gzip.compress(bytes(range(256))))
    report = ReadReport()
    assert [document.id for document in read_documents(tmp_path, report=report)] == ["tool.1.gz"]
    assert [Path(line.partition(" (")[0]).name for line in report.ignored] == ["other.gz"]


def test_nothing_that_a_file_names_is_opened(tmp_path: Path) -> None:
    (tmp_path / "secret.tex").write_text("The secret.")
    source = rf"\begin{{document}}Text. \input{{{tmp_path}/secret.tex}} End.\end{{document}}"
    text = convert(source.encode(), "a.tex").text
    assert text.startswith("Text.")
    assert "secret." not in text


def test_latex_that_pandoc_refuses_is_read_as_plain_text() -> None:
    converted = convert(
        rb"""\documentclass{ltxguide}
\section{Short verbatim}
Write |\chapter| between bars, {as here.
""",
        "guide.tex",
    )
    assert "heading: Short verbatim" in blocks(converted)
    assert "between bars" in converted.text
    (note,) = converted.notes
    assert note.startswith("read as plain text (pandoc: ")


def fake_pandoc(folder: Path, prints: str | None) -> None:
    """A program that answers every call with the same text, and fails where that is None."""
    folder.mkdir()
    program = folder / "pandoc"
    program.write_text(f"#!/bin/sh\n{'exit 1' if prints is None else f'echo {prints}'}\n")
    program.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose `path` is the only one on the PATH, and whose `files` are the package's."""
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    package = SimpleNamespace(__file__=str(tmp_path / "__init__.py"))
    monkeypatch.setitem(sys.modules, "pypandoc", package)
    return tmp_path


@pytest.mark.parametrize(
    ("on_path", "packaged", "expected"),
    [
        ("pandoc 3.1", None, "path"),
        ("pandoc 3.1.11.1", "pandoc 3.6", "path"),
        ("pandoc 10.0", "pandoc 3.6", "path"),
        ("pandoc 2.17.1.1", "pandoc 3.6", "files"),
        ("pandoc 2.9.2.1", "pandoc 3.6", "files"),
        ("not a version", "pandoc 3.6", "files"),
        (None, "pandoc 3.6", "files"),
    ],
)
def test_the_first_recent_program_is_used(
    programs: Path, on_path: str | None, packaged: str | None, expected: str
) -> None:
    fake_pandoc(programs / "path", on_path)
    if packaged is not None:
        fake_pandoc(programs / "files", packaged)
    assert pandoc.find_pandoc() == str(programs / expected / "pandoc")


@pytest.mark.parametrize("on_path", ["pandoc 2.17.1.1", "pandoc 2.9", None, ""])
def test_an_old_or_missing_program_is_named_with_the_remedy(
    programs: Path, on_path: str | None
) -> None:
    if on_path != "":
        fake_pandoc(programs / "path", on_path)
    with refusal(Unreadable):
        convert(b"{\\rtf1 text}", "letter.doc")  # its content decides


def test_the_package_that_the_remedy_names_reads_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pypandoc")
    fake_pandoc(tmp_path / "old", "pandoc 2.17.1.1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'old'}")
    assert blocks(convert(b"* Linux\n\nUse it.\n", "a.org"))[0] == "heading: Linux"


def test_the_version_is_asked_for_once_and_has_a_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "asked"
    slow = tmp_path / "pandoc"
    slow.write_text(f"#!/bin/sh\necho >> {asked}\nexec {shutil.which('sleep')} 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pypandoc", None)
    monkeypatch.setattr(pandoc, "_VERSION_TIMEOUT_S", 0.2)
    for _ in range(2):
        with refusal(Unreadable):
            pandoc.find_pandoc()
    assert asked.read_text() == "\n"


def test_pandoc_has_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "pandoc"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(pandoc, "find_pandoc", lambda use: str(slow))
    monkeypatch.setattr(pandoc, "_TIMEOUT_S", 0.5)
    with refusal(Unreadable):
        convert(b"* Text", "a.org")
