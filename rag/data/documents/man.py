"""Manual pages, written with the macros of man(7) or mdoc(7) for roff; nothing in them is executed."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import chain, takewhile

from rag.data.documents import tables
from rag.data.documents.blocks import BULLET, Piece, clean

_REQUEST = re.compile(r"[.'][ \t]*(\S+?)(?:[ \t]+(.*)|(?=\\).*)?")
_ARGUMENT = re.compile(r'"((?:[^"]|"")*)"?|(\S+)')
_ESCAPE = re.compile(
    r"""\\(?:["#].*|[fFmMgkn](?:\[[^]]*\]|\(..|.)|s(?:[-+]?\d|\[[^]]*\]|'[^']*'|\(..)|[bhvwoNlLDxXZ]'[^']*'"""
    r"""|\*(?:\[([^]]*)\]|\((..)|(.))|\[([^]]*)\]|\((..)|(.)|$)"""
)


def _pairs(text: str) -> dict[str, str]:
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=True))


_ONE = {"e": "\\", "\\": "\\", "t": "\t", "~": " ", "0": " ", **{mark: mark for mark in "-'`. "}}
_CHARACTERS = _pairs(
    "bu • em — en – hy - aq ' dq \" lq “ rq ” oq ‘ cq ’ ga ` ha ^ ti ~ rs \\ bv | ba | sl / at @ sh # Do "
    "$ co © rg ® tm ™ de ° mu × di ÷ ua ↑ da ↓ mi − pl + eq = la ⟨ ra ⟩ lB [ rB ] lC { rC } ss ß Fo « Fc » "
    "sc § Eu € Po £ ae æ AE Æ fm ′ sd ″ OK ✓ ci ○ +- ± <= ≤ >= ≥ != ≠ -> → <- ← /o ø /O Ø"
)
_ACCENTS = dict(zip("'`^~:,o", "\u0301\u0300\u0302\u0303\u0308\u0327\u030a", strict=True))

_HEADINGS = ("SH", "SS", "Sh", "Ss")
_JOINED = ("BR", "RB", "IR", "RI", "BI", "IB")  # fonts that alternate between arguments
_FONTS = ("B", "I", "SM", "SB", "R", "CW", "UR", "MT")
_PARAGRAPHS = ("PP", "P", "LP", "HP", "Pp", "Lp", "RS", "RE", "YS", "UE", "ME", "Re", "Rs")
_CODE = {"nf": "fi", "EX": "EE", "Vb": "Ve"}

# The macros of mdoc that stand within a line.
_QUOTED = _pairs('Op [] Dq “” Qq "" Sq ‘’ Ql ‘’ Pq () Bq [] Brq {} Aq <> In <>')
_OPENED = _pairs('Oo [ Do “ Qo " So ‘ Po ( Bo [ Bro { Ao <')
_CLOSED = _pairs('Oc ] Dc ” Qc " Sc ’ Pc ) Bc ] Brc } Ac >')
_SYSTEMS = _pairs("Ux UNIX Bx BSD Fx FreeBSD Nx NetBSD Ox OpenBSD")
_PLAIN = (
    "Ar", "Cm", "Ic", "Li", "Pa", "Ev", "Va", "Vt", "Ft", "Fa", "Em", "Sy", "Tn", "No", "Ad", "An", "Dv",
    "Er", "Sx", "Cd", "Mt", "Ms", "Lk", "Fd", "Fo", "Fc", "Xo", "Xc", "Ta", "-nosplit",
)  # fmt: skip
_WITHIN = {*_QUOTED, *_OPENED, *_CLOSED, *_PLAIN, *_SYSTEMS, "Fl", "Nm", "Ns", "Pf", "Xr", "Fn", "Nd"}
_ENDS = (*".,:;)]?!",)
_JOIN = "\0"  # between words that no space divides


def man(source: str) -> tuple[str, list[Piece]]:
    """Title, such as "tar(1)", and pieces: options are entries of lists."""
    page = _Page(source)
    page.read()
    return page.title, page.pieces


class _Page:
    """Reads the lines of a page one after the other."""

    def __init__(self, source: str) -> None:
        self.title = ""
        self.pieces: list[Piece] = []
        self._lines: Iterator[str] = iter(source.replace("\\\n", "").splitlines())
        self._strings: dict[str, str] = {}
        self._name = ""
        self._words: list[str] = []
        self._tag = ""  # of the entry that is open
        self._wants = ""  # what the next line is: "tag", "heading 1", "heading 2" or ""
        self._lists: list[str] = []  # kinds of the lists of mdoc that are open
        self._taken = True  # whether the last condition held

    def read(self) -> None:
        while (line := next(self._lines, None)) is not None:  # some lines are read again
            self._line(line)
        self._end()

    def _line(self, line: str) -> None:
        line = line.replace("\\}", "")
        request = _REQUEST.fullmatch(line)
        if request is None:
            self._text("" if line in (".", "'") else self._plain(line))
        else:
            self._request(request[1].partition("\\")[0], (request[2] or "").strip())

    def _request(self, name: str, rest: str) -> None:
        arguments = _arguments(rest)
        if name in ("if", "ie", "el"):
            self._condition(name, rest)
        elif name in ("de", "de1", "am", "ig"):
            end = f".{arguments[1] if len(arguments) > 1 and name != 'ig' else '.'}"
            list(takewhile(lambda line: line.rstrip() != end, self._lines))
        elif name == "ds" and arguments:
            self._strings[arguments[0]] = rest[len(arguments[0]) :].lstrip().removeprefix('"')
        elif name in ("TH", "Dt") and arguments:
            page = self._plain(arguments[0])
            section = f"({arguments[1]})" if len(arguments) > 1 else ""
            self.title = (page.lower() if page.isupper() else page) + section
        elif name in _HEADINGS:
            self._end()
            self._wants = f"heading {1 if name[1] in 'Hh' else 2}"
            if arguments:
                self._text(self._plain(" ".join(arguments)))
        elif name in ("TP", "TQ"):
            self._end()
            self._wants = "tag"
        elif name in ("IP", "It"):
            self._end()
            self._tag = self._mark(arguments) if name == "It" else self._plain(" ".join(arguments[:1]))
        elif name == "Bl":
            self._end()
            self._lists.append(arguments[0] if arguments else "")
        elif name == "El":
            self._end()
            self._lists = self._lists[:-1]
        elif name in _CODE:
            self._code(_CODE[name])
        elif name == "Bd" and {"-literal", "-unfilled"} & set(arguments):
            self._code("Ed")
        elif name == "TS":
            self._table()
        elif name in ("D1", "Dl"):
            self._end()
            self.pieces.append(Piece("code", self._within(arguments)))
        elif name == "RS" and self._words and not self._tag and self._words[-1][-1] not in ".:":
            self._tag, self._words = " ".join(self._words), []  # DocBook's and asciidoctor's way to set one
        elif name in ("sp", "br"):  # between a tag and its words they end nothing
            self._text("")
        elif name in _PARAGRAPHS:
            self._end()
            self._text(self._plain(" ".join(arguments)) if name == "HP" and not rest.isdigit() else "")
        elif name in (*_JOINED, *_FONTS):
            self._text(self._styled(name, arguments))
        elif name in ("URL", "MTO"):  # of asciidoctor: an address, and what is shown for it
            self._text(self._plain(" ".join(filter(None, arguments[1::-1]))))
        elif name in ("OP", "SY"):
            self._text(f"[{self._plain(' '.join(arguments))}]" if name == "OP" else self._plain(rest))
        elif name in _WITHIN:
            self._text(self._within([name, *arguments]))
        elif name[:1] == "%":  # of a reference in mdoc
            self._text(self._within(arguments) + ",")

    def _condition(self, name: str, rest: str) -> None:
        """Of `.if`, `.ie` and `.el` what is for terminals: that is what "n" asks."""
        if name != "el":
            condition, _, rest = rest.partition(" ")
            self._taken = condition in ("n", "!t")
        taken = self._taken if name != "el" else not self._taken
        rest = rest.lstrip()
        if taken:
            self._line(rest.removeprefix("\\{").removeprefix("\\").lstrip())
        elif rest.startswith("\\{"):
            depth = 1
            for line in self._lines:
                depth += line.count("\\{") - line.count("\\}")
                if depth <= 0:
                    break

    def _text(self, text: str) -> None:
        if self._wants and text.strip():
            wanted, self._wants = self._wants, ""
            if wanted == "tag":
                self._tag = text
            else:
                self.pieces.append(Piece("heading", text, int(wanted[-1])))
        elif text.strip():
            self._words.append(text)
        elif self._words and not self._wants:
            self._end()

    def _end(self) -> None:
        """End the paragraph or entry that is open; the tag of an entry stays until there are words."""
        words, tag = clean(" ".join(self._words)), clean(self._tag)
        self._words = []
        if not words and not tag:
            return
        self._tag = ""
        if not tag:
            self.pieces.append(Piece("paragraph", words))
        elif tag in ("•", "-", "*", "o"):
            self.pieces.append(Piece("item", BULLET + words))
        else:
            mark = "" if re.fullmatch(r"\(?\w{1,3}[.)]", tag) else ":"
            self.pieces.append(Piece("item", f"{tag}{mark} {words}" if words else tag))

    def _code(self, end: str) -> None:
        """Lines up to the request `end`, in which requests of fonts count."""
        self._end()
        for line in self._lines:
            request = _REQUEST.fullmatch(line)
            name = request[1] if request else ""
            if name == end:
                break
            if name in _HEADINGS:  # nothing ended the code before it
                self._lines = chain([line], self._lines)
                break
            if request is None:
                self._words.append(self._plain(line))
            elif name in (*_JOINED, *_FONTS, *_WITHIN):
                self._request(name, request[2] or "")
        self.pieces.append(Piece("code", "\n".join(self._words)))
        self._words = []

    def _table(self) -> None:
        """A table of tbl: options, formats up to one that ends with a dot, then rows."""
        self._end()
        lines = list(takewhile(lambda line: not line.startswith(".TE"), self._lines))
        options = lines[0] if lines and lines[0].rstrip().endswith(";") else ""
        mark = re.search(r"tab\((.)\)", options)
        formats = next((n for n, line in enumerate(lines) if line.rstrip().endswith(".")), -1)
        body = "\n".join(self._cell(line) for line in lines[formats + 1 :] if line not in ("_", "=", ".T&"))
        blocks = re.sub(r"T\{\n(.*?)\nT\}", lambda match: match[1].replace("\n", " "), body, flags=re.DOTALL)
        self.pieces += tables.grid([line.split(mark[1] if mark else "\t") for line in blocks.split("\n")])

    def _cell(self, line: str) -> str:
        """A line of a table, which may be a request of a font within a cell."""
        request = _REQUEST.fullmatch(line) if line[:1] == "." else None
        if request is None:
            return self._plain(line)
        is_font = request[1] in (*_JOINED, *_FONTS)
        return self._styled(request[1], _arguments(request[2] or "")) if is_font else ""

    def _styled(self, name: str, arguments: Sequence[str]) -> str:
        """The arguments of a request of one font, or of two that alternate."""
        return self._plain(("" if name in _JOINED else " ").join(arguments))

    def _mark(self, arguments: Sequence[str]) -> str:
        """The tag of an entry of mdoc."""
        if arguments:
            return self._within(arguments)
        return "•" if self._lists[-1:] in (["-bullet"], ["-dash"], ["-hyphen"]) else ""

    def _within(self, tokens: Sequence[str]) -> str:
        """Words and macros of a line of mdoc."""
        size = len(tokens) - sum(1 for _ in takewhile(_ENDS.__contains__, reversed(tokens)))
        words = [*self._expanded(iter(tokens[:size])), *(_JOIN + mark for mark in tokens[size:])]
        return re.sub(rf" *{_JOIN} *", "", " ".join(words))

    def _expanded(self, tokens: Iterator[str]) -> Iterator[str]:
        ends: list[str] = []
        flags = False
        for token in tokens:
            if token in _WITHIN:
                flags = token == "Fl"
            if token in _QUOTED:
                yield _QUOTED[token][0] + _JOIN
                ends.insert(0, _JOIN + _QUOTED[token][1])
            elif token in _OPENED:
                yield _OPENED[token] + _JOIN
            elif token in _CLOSED:
                yield _JOIN + _CLOSED[token]
            elif token == "Ns":
                yield _JOIN
            elif token == "Pf":
                yield self._plain(next(tokens, "")) + _JOIN
            elif token == "Xr":
                page, section = next(tokens, ""), next(tokens, "")
                yield f"{page}({section})" if section else page
            elif token == "Fn":
                yield f"{self._plain(next(tokens, ''))}()"
            elif token == "Nm":
                following = next(tokens, "")
                if following in (*_ENDS, *_WITHIN, ""):
                    yield self._name
                    yield from self._expanded(chain([following], tokens) if following else tokens)
                else:
                    yield self._plain(following)
                    self._name = self._name or self._plain(following)
            elif token == "Nd" or token in _SYSTEMS:
                yield _SYSTEMS.get(token, "–")
            elif token in _ENDS:
                yield _JOIN + token
            elif token in ("(", "["):
                yield token + _JOIN
            elif token not in _PLAIN and token != "Fl":
                yield ("-" if flags and token != "|" else "") + self._plain(token)
        yield from ends

    def _plain(self, text: str) -> str:
        """A text with its escapes as characters."""
        return _ESCAPE.sub(self._character, text)

    def _character(self, match: re.Match[str]) -> str:
        string = match[1] or match[2] or match[3]
        if string is not None:
            return self._plain(self._strings.get(string, ""))
        name = match[4] or match[5]
        if name is None:
            return _ONE.get(match[6] or "", "")
        if re.fullmatch(r"u[0-9A-F]{4,6}", name):
            return chr(min(int(name[1:], 16), 0x10FFFF))
        if len(name) == 2 and name[0] in _ACCENTS and name[1].isalpha():
            return unicodedata.normalize("NFC", name[1] + _ACCENTS[name[0]])
        return _CHARACTERS.get(name, "")


def _arguments(rest: str) -> list[str]:
    """The arguments of a request; quotation marks hold words together, two of them are one."""
    return [one.replace('""', '"') if one else other for one, other in _ARGUMENT.findall(rest)]
