"""Manual pages: what roff shows of them."""

import gzip
from pathlib import Path

from rag.data.corpus import read_documents
from rag.data.documents.convert import convert
from rag.data.records import ReadReport

MAN = r""".\" a comment
.ds pi 3.14
.TH TOOL 1 "May 2024" "1.0" "User Commands"
.SH NAME
tool \- do a thing
.SH SYNOPSIS
.B tool
[\fB\-v\fR] \fIfile\fR...
.br
.BR tool " \-\-help"
.SH "MORE OPTIONS"
.TP
\fB\-v\fR, \fB\-\-verbose\fR
Say more; see
.BR other (8).
.IP
Still about it.
.IP \(bu 2
A bullet \(em and caf\('e, \*(pi or \[u2192].
.nf
first   line
  second
.fi
.if t ignored
.ie n \{\
shown
.\}
.el hidden
.de MACRO
not text
..
.TS
allbox;
lb l.
Name	Size
T{
.BR a (1)
T}	\fB5\fR
.TE
.SS "Sub section"
Text.
"""
MDOC = r""".Dd May 1, 2024
.Dt TOOL 1
.Os
.Sh NAME
.Nm tool
.Nd do a thing
.Sh SYNOPSIS
.Nm
.Op Fl ab
.Op Fl o Ar out , Ns Ar more
.Sh DESCRIPTION
Uses
.Xr other 8 ,
as in
.Dq two words .
.Bl -tag -width Ds
.It Fl v | Fl -verbose
Say more.
.It Ev HOME
A place.
.El
.Bd -literal
$ tool  -v
.Ed
"""


def of(source: str, name: str = "tool.1") -> list[tuple[str, str]]:
    converted = convert(source.encode(), name)
    return [(block.kind, converted.text_of(block)) for block in converted.blocks]


def test_macros_of_man() -> None:
    assert of(MAN) == [
        ("heading", "NAME"), ("paragraph", "tool - do a thing"), ("heading", "SYNOPSIS"),
        ("paragraph", "tool [-v] file..."), ("paragraph", "tool --help"), ("heading", "MORE OPTIONS"),
        ("item", "-v, --verbose: Say more; see other(8)."), ("paragraph", "Still about it."),
        ("item", "• A bullet — and café, 3.14 or →."), ("code", "first   line\n  second"),
        ("paragraph", "shown"), ("row", "Name: a(1); Size: 5"), ("heading", "Sub section"),
        ("paragraph", "Text."),
    ]  # fmt: skip
    assert convert(MAN.encode(), "tool.1").title == "tool(1)"


def test_macros_of_mdoc() -> None:
    assert of(MDOC) == [
        ("heading", "NAME"), ("paragraph", "tool – do a thing"), ("heading", "SYNOPSIS"),
        ("paragraph", "tool [-ab] [-o out,more]"), ("heading", "DESCRIPTION"),
        ("paragraph", "Uses other(8), as in “two words”."), ("item", "-v | --verbose: Say more."),
        ("item", "HOME: A place."), ("code", "$ tool  -v"),
    ]  # fmt: skip


def test_code_that_nothing_ends_stops_at_a_heading() -> None:
    assert of(".TH X 1\n.SH A\n.nf\ncode\n.SH B\ntext\n") == [
        ("heading", "A"), ("code", "code"), ("heading", "B"), ("paragraph", "text"),
    ]  # fmt: skip


def test_an_indented_text_below_a_line_explains_it() -> None:
    entry = ".sp\n\\fB\\-\\-all\\fP\n.RS 4\nShow all.\n.RE\n"
    source = f".TH X 1\n.SH OPTIONS\n{entry}.sp\nA sentence.\n.RS 4\nMore.\n.RE\n"
    assert of(source)[1:] == [
        ("item", "--all: Show all."), ("paragraph", "A sentence."), ("paragraph", "More."),
    ]  # fmt: skip


def test_empty_lines_between_a_tag_and_its_words_end_nothing() -> None:
    entry = ".RS 2m\n.TP 2m\n\\fB\\-\\-all\\fR\n\nShow all.\n\nAlways.\n.TP\n.B \\-v\n.sp\nSay more.\n.RE\n"
    assert of(f".TH X 1\n.SH OPTIONS\n{entry}Text.\n")[1:] == [
        ("item", "--all: Show all."), ("paragraph", "Always."), ("item", "-v: Say more."),
        ("paragraph", "Text."),
    ]  # fmt: skip


def test_a_folder_of_compressed_pages_is_read(tmp_path: Path) -> None:
    (tmp_path / "tool.1.gz").write_bytes(gzip.compress(MAN.encode()))
    (tmp_path / "other.3pm").write_text(MDOC)
    (tmp_path / "alias.1.gz").write_bytes(gzip.compress(b".so man1/tool.1\n"))
    (tmp_path / "log.2.gz").write_bytes(gzip.compress(b"lines of a log\n"))
    report = ReadReport()
    documents = list(read_documents(tmp_path, report=report))
    assert [(document.path, document.title) for document in documents] == [
        ("other.3pm", "tool(1)"), ("tool.1.gz", "tool(1)"),
    ]  # fmt: skip
    assert report.unread == 0
