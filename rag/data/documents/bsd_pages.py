"""Manual pages in BSD's macros (mdoc), rewritten in the macros of other manual pages (man).

Source: groff_mdoc(7).
"""

import re
from collections.abc import Iterator

_MACRO = re.compile(r"\.\s*([A-Z]\w*)(?:\s+(.*))?$")
_WORD = re.compile(r'"((?:[^"]|"")*)"|(\S+)')
_HEADINGS = {"Sh": ".SH", "Ss": ".SS"}
_PARAGRAPHS = frozenset(("Pp", "Lp", "Bd"))
_WITHOUT_WORDS = frozenset(("Ed", "Os", "Dd", "Sm", "Bk", "Ek", "Rs", "Re", "Tg"))
# What begins an entry, by the type of its list; of other types: a term on the next line.
_ENTRIES = {"-column": ".PP", "-item": ".PP"}
_ENTRIES |= dict.fromkeys(("-bullet", "-dash", "-hyphen", "-enum"), ".IP \\(bu 2")
_TERM = ".TP"
# Macros that may stand among the words of others.
_CALLABLE = re.compile(
    "A[cdnopqrt]|B[coqx]|Br[coq]|Bsx|C[dm]|D[coqvx]|E[cmorv]|F[aclnotx]|I[cn]|L[ik]|M[st]|N[mosx]"
    "|O[coptx]|P[acfoq]|Q[cloq]|S[coqxy]|T[an]|Ux|V[at]|X[cor]"
)
_OPENING = {"Op": "[", "Oo": "[", "Aq": "<", "Ao": "<", "Pq": "(", "Po": "("}
_CLOSING = {"Oc": "]", "Ac": ">", "Pc": ")"}
_CLOSED_BY_LINE = {"Op": "]", "Aq": ">", "Pq": ")"}
_PUNCTUATION = frozenset(".,;:)]?!")


def as_man(page: str) -> str:
    """The page in man's macros. Every word stays, whatever its macros are."""
    lines: list[str] = []
    lists: list[str] = []  # types of the lists around a line
    name = ""
    is_extended = False  # within Xo and Xc, whose lines belong to one
    for line in page.splitlines():
        macro = _MACRO.match(line)
        if macro is None:
            if not line.startswith((".", "'")):
                lines.append(line)
            continue
        kind, words = macro[1], macro[2] or ""
        if kind == "Nm":
            name = name or words.partition(" ")[0]
            words = words or name
        if kind == "Dt":
            lines.append(f".TH {words}")
        elif kind in _HEADINGS:
            lines.append(f"{_HEADINGS[kind]} {_joined(words)}")
        elif kind in _PARAGRAPHS:
            lines.append(".PP")
        elif kind == "Bl":
            lists.append(words.partition(" ")[0])
        elif kind == "El":
            lists[-1:] = []
        elif kind == "It":
            lines += [_ENTRIES.get(lists[-1] if lists else "", _TERM), _joined(words)]
        elif kind == "Nd":
            lines.append(f"\\- {words}")
        elif kind not in _WITHOUT_WORDS:
            text = _joined(f"{kind} {words}" if _CALLABLE.fullmatch(kind) else words)
            if is_extended:
                lines[-1] = f"{lines[-1]} {text}".strip()
            elif text:
                lines.append(text)
        is_extended = (is_extended or "Xo" in words.split() or kind == "Xo") and kind != "Xc"
    return "\n".join(lines) + "\n"


def _joined(arguments: str) -> str:
    """The words of a macro's line with their brackets and dashes."""
    return " ".join(_words(arguments))


def _words(arguments: str) -> Iterator[str]:
    before = ""  # what the next word begins with
    at_end = ""
    word = ""
    is_section = False
    for quoted, plain in _WORD.findall(arguments):
        if plain == "Fl":
            before += "-"
        elif plain in ("(", "["):
            before += plain
        elif plain in _OPENING:
            before += _OPENING[plain]
            at_end += _CLOSED_BY_LINE.get(plain, "")
        elif plain in _CLOSING:
            word += before + _CLOSING[plain]
            before = ""
        elif plain == "Ns":
            before = word + before
            word = ""
        elif plain == "Xr":
            is_section = True
        elif _CALLABLE.fullmatch(plain):
            is_section = False
        elif plain in _PUNCTUATION and not before:
            word += plain
        elif is_section and word and plain.isalnum():
            # Xr names a page and its section.
            word += f"({plain})"
            is_section = False
        else:
            if word:
                yield word
            word = before + (quoted or plain)
            before = ""
    yield word + before + at_end
