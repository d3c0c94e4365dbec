"""LaTeX: sections, paragraphs, lists, tables and listings, by pylatexenc; nothing in a file is executed."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rag.core.optional import require
from rag.data.documents import tables
from rag.data.documents.blocks import BULLET, Piece, clean, first_heading

_LEVELS = ("part", "chapter", "section", "subsection", "subsubsection", "paragraph", "subparagraph")
_LISTS = ("itemize", "enumerate", "description")
_CODE = ("verbatim", "verbatim*", "Verbatim", "lstlisting", "minted", "alltt")
_MATH = ("equation", "align", "gather", "multline", "eqnarray", "displaymath", "flalign", "math")
_TABLES = {"tabular": "[{", "tabular*": "{[{", "tabularx": "{[{", "longtable": "[{", "supertabular": "{"}
_ARGUMENTS = {
    "title": "[{", "href": "{{", "hyperref": "[{", "def": "{{", "multicolumn": "{{{", "multirow": "{{{",
    "caption": "*[{", "parbox": "[[[{{", "foreignlanguage": "[{{", "cline": "{", "setlength": "{{",
    "bibitem": "[{",
}  # fmt: skip
_LAYOUT = {"minipage": "[[[{", "multicols": "{", "wrapfigure": "[{[{", "thebibliography": "{"}
_DROPPED = ("tikzpicture", "picture", "comment", "filecontents", "filecontents*")
_WITHOUT_TEXT = (
    "cite", "citep", "citet", "citealp", "ref", "eqref", "autoref", "cref", "Cref", "pageref", "label",
    "index", "includegraphics", "input", "include", "bibliography", "bibliographystyle", "vspace", "hspace",
    "def", "cline", "setlength", "bibitem", "maketitle",
)  # fmt: skip
_LAST = (  # beyond what pylatexenc shows: the last argument, …
    "texttt", "textsc", "url", "href", "hyperref", "multicolumn", "multirow", "parbox", "foreignlanguage",
)  # fmt: skip
_SHOWN = {  # … or a character
    "textgreater": ">", "textless": "<", "textbar": "|", "textasciicircum": "^", "LaTeX": "LaTeX",
    "TeX": "TeX",
}  # fmt: skip
# What TeX does not read as macros: code as it stands, code in a line, addresses.
_UNREAD = re.compile(
    rf"(?<!\\verb.)(\\begin\{{({'|'.join(map(re.escape, (*_CODE, *_DROPPED)))})\}})(.*?)(?=\\end\{{\2\}})",
    re.DOTALL,
)
_CODE_INLINE = re.compile(
    r"\\(?:verb\*?|lstinline(?:\[[^\]]*\])?|mintinline(?:\[[^\]]*\])?\{[^{}]*\})"
    r"(?:\{((?:[^{}\n]|\{[^{}\n]*\})*)\}|([^\s\w{])(.*?)\2)"
)
_ADDRESS = re.compile(r"\\(?:href|url)\{[^{}\n]*\}")
_QUOTE = "\ue000"  # around code in a line
_WORDS = re.compile(r"[^\W_][\w.,;:()]*(?:[ \n][^\W_]+)*")
_EMPTY_LINE = re.compile(r"\n[ \t]*\n\s*")
_BEGIN = re.compile(r"\A\\begin\{[^}]*\}(?:\[[^\]]*\])?(?:\{[^}\n]*\})?")
_END = re.compile(r"\\end\{[^}]*\}\Z")


def latex(source: str) -> tuple[str, list[Piece]]:
    r"""Title and pieces; the title is that of `\title`, else the first heading.

    What only TeX can tell (macros of the document's own, drawings, references) is left out.
    """
    reader = _Reader(source)
    document = [node for node in _all(reader.nodes) if _environment(node) == "document"]
    pieces = list(reader.pieces(document[0].nodelist if document else reader.nodes))
    above = min((piece.level for piece in pieces if piece.kind == "heading"), default=1) - 1
    pieces = [
        Piece(piece.kind, piece.text, piece.level - above) if piece.kind == "heading" else piece
        for piece in pieces
    ]
    title = next((reader.argument(node) for node in _all(reader.nodes) if _macro(node) == "title"), "")
    return title or first_heading(pieces), pieces


def _macro(node: Any) -> str:
    return str(getattr(node, "macroname", ""))


def _environment(node: Any) -> str:
    return str(getattr(node, "environmentname", ""))


def _children(node: Any) -> list[Any]:
    return list(getattr(node, "nodelist", None) or ())


def _all(nodes: Iterable[Any]) -> Iterator[Any]:
    for node in nodes:
        yield node
        yield from _all(_children(node))


class _Reader:
    """Turns the nodes of a parsed document into pieces."""

    def __init__(self, source: str) -> None:
        parser = require("pylatexenc.latexwalker", "docs")
        macros = require("pylatexenc.macrospec", "docs")
        to_text = require("pylatexenc.latex2text", "docs")
        known = parser.get_default_latex_context_db()
        known.add_context_category(
            "documents",
            macros=[macros.std_macro(name, args) for name, args in _ARGUMENTS.items()],
            environments=[macros.std_environment(name, args) for name, args in (_TABLES | _LAYOUT).items()],
            prepend=True,
        )
        shown = to_text.get_default_latex_context_db()
        repls = {**dict.fromkeys(_WITHOUT_TEXT, ""), **dict.fromkeys(_LAST, self._last), **_SHOWN}
        repls["verb"] = _verbatim
        shown.add_context_category(
            "documents", macros=[to_text.MacroTextSpec(*one) for one in repls.items()], prepend=True
        )
        self._source = source = _with_plain_code(source)
        self._convert = to_text.LatexNodes2Text(latex_context=shown, math_mode="text").nodelist_to_text
        masked = _UNREAD.sub(lambda match: match[1] + "x" * len(match[3]), source)
        self.nodes: list[Any] = _walker(masked, known).get_latex_nodes()[0]

    def argument(self, node: Any) -> str:
        """The text of a macro's last argument, on one line."""
        return clean(self._last(node))

    def _last(self, node: Any) -> str:
        given = [one for one in (node.nodeargd.argnlist if node.nodeargd else ()) if one is not None]
        return str(self._convert(given[-1:]))

    def pieces(self, nodes: Iterable[Any]) -> Iterator[Piece]:
        """The blocks of nodes; words up to an empty line or the next block are a paragraph."""
        words: list[str] = []
        for node in nodes:
            blocks = self._blocks(node)
            paragraphs = _EMPTY_LINE.split(node.chars) if hasattr(node, "chars") else []
            if blocks is None and not paragraphs:
                words.append(self._convert([node]))
                continue
            words += paragraphs[:1]
            for paragraph in paragraphs[1:]:
                yield Piece("paragraph", "".join(words))
                words = [paragraph]
            if blocks is not None:
                yield Piece("paragraph", "".join(words))
                words = []
                yield from blocks
        yield Piece("paragraph", "".join(words))

    def _blocks(self, node: Any) -> Iterable[Piece] | None:
        """The blocks of a heading, an environment, …; None for what is part of a paragraph."""
        macro, environment = _macro(node), _environment(node)
        if macro in _LEVELS:
            return [Piece("heading", self.argument(node), _LEVELS.index(macro) + 1)]
        if macro == "caption":
            return [Piece("paragraph", self.argument(node))]
        if environment in _CODE:
            source = self._source[node.pos : node.pos + node.len]
            return [Piece("code", _END.sub("", _BEGIN.sub("", source)))]
        if environment in _LISTS:
            return self._entries(node, is_numbered=environment == "enumerate")
        if environment in _TABLES:
            return tables.grid(self._cells(node))
        if environment in _DROPPED or type(node).__name__ == "LatexCommentNode":
            return [] if environment else None
        if environment.rstrip("*") in _MATH:
            return [Piece("paragraph", self._convert([node]))]
        if environment or any(map(_environment, _all(_children(node)))):
            return self.pieces(_children(node))
        return None

    def _entries(self, node: Any, is_numbered: bool) -> Iterator[Piece]:
        entries = _split(_children(node), lambda child: _macro(child) == "item")[1:]
        labels = [child for child in _children(node) if _macro(child) == "item"]
        for number, (label, entry) in enumerate(zip(labels, entries, strict=True), start=1):
            mark = f"{number}. " if is_numbered else BULLET
            if name := self.argument(label):
                mark = f"{name}: "
            for piece in self.pieces(entry):
                if piece.kind == "paragraph" and piece.text.strip():
                    piece = Piece("item", mark + piece.text)
                    mark = ""
                yield piece

    def _cells(self, node: Any) -> list[list[str]]:
        rows = _split(_children(node), lambda child: _macro(child) in ("\\", "tabularnewline"))
        return [[cell for nodes in _split(row, _is_column_end) for cell in self._cell(nodes)] for row in rows]

    def _cell(self, nodes: Sequence[Any]) -> list[str]:
        """The text of a cell, once for each column that it covers."""
        for node in nodes:
            if _macro(node) == "multicolumn" and node.nodeargd:
                columns = clean(self._convert(node.nodeargd.argnlist[:1]))
                return [self.argument(node)] * (int(columns) if columns.isdecimal() else 1)
        return [clean(self._convert(list(nodes)))]


def _with_plain_code(source: str) -> str:
    """The source with code in lines as the argument of "verb", and addresses without comments."""
    parts, at = [], 0
    for match in [*_UNREAD.finditer(source), None]:
        between = source[at : match.start() if match else len(source)]
        between = _CODE_INLINE.sub(
            lambda code: rf"\verb{_QUOTE}{code[3] if code[1] is None else code[1]}{_QUOTE}", between
        )
        parts.append(_ADDRESS.sub(lambda address: re.sub(r"(?<!\\)%", r"\\%", address[0]), between))
        if match:
            parts.append(match[0])
            at = match.end()
    return "".join(parts)


def _walker(source: str, known: Any) -> Any:
    """The parser, which takes words together instead of letter by letter: that is much faster."""
    parser = require("pylatexenc.latexwalker", "docs")
    base = parser.LatexWalker

    def get_token(self: Any, pos: int, *args: Any, environments: bool = True, **options: Any) -> Any:
        # without environments, a single letter may be the argument of a macro
        if environments and (words := _WORDS.match(source, pos)):
            return parser.LatexToken(tok="char", arg=words[0], pos=pos, len=len(words[0]), pre_space="")
        return base.get_token(self, pos, *args, environments=environments, **options)

    return type("Walker", (base,), {"get_token": get_token})(source, latex_context=known)


def _verbatim(node: Any) -> str:
    return str(getattr(node.nodeargd, "verbatim_text", ""))  # none where its end is missing


def _is_column_end(node: Any) -> bool:
    return getattr(node, "specials_chars", "") == "&"


def _split(nodes: Sequence[Any], ends: Callable[[Any], bool]) -> list[list[Any]]:
    """The nodes before, between and after those that end a part."""
    parts: list[list[Any]] = [[]]
    for node in nodes:
        if ends(node):
            parts.append([])
        else:
            parts[-1].append(node)
    return parts
