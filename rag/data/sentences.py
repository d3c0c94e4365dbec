"""A light sentence splitter for English and for scripts with a full-width full stop."""

import re
from collections.abc import Sequence

Spans = tuple[tuple[int, int], ...]


def word_set(text: str) -> frozenset[str]:
    """The words of a list that is written as text."""
    return frozenset(text.split())


_ABBREVIATIONS = word_set(
    """
    mr mrs ms dr prof rev fr sr jr st mt ft gen col maj capt cmdr lt sgt cpl pvt adm gov sen rep pres hon
    messrs mme mlle supt det insp dept univ assn bros inc ltd co corp plc vs v cf viz approx ca c est fl
    vol vols fig figs eq ed eds trans jan feb apr jun jul aug sept sep oct nov dec tue tues wed thu thurs
    fri ave blvd rd sq bldg etc eg ie al b d r m km lat e.g i.e a.m p.m ph.d m.d b.a m.a b.sc m.sc d.c
    u.s u.k u.n
    """
)
# Ordinary words too: abbreviations only before a number.
_BEFORE_NUMBERS = ("no", "nos", "art", "sec", "ch", "p", "pp", "mar", "sat", "sun", "mon", "op")
# Words that hardly continue a name: after one of `_MAY_END` they begin a sentence.
STARTERS = word_set(
    """
    The A An In On At It He She They We This That These Those His Her Its Their There When While Although
    However After Before As For From By If But And Since During Some Many Most Several Under With Today
    Later
    """
)
_MAY_END = word_set("u.s u.k u.n d.c etc a.m p.m inc ltd co corp plc jr sr ph.d m.d al")
_BOUNDARY = re.compile(r"""(?:[.!?…]+["'”’)\]]*(?=\s)|[。！？]+[」』”’）]*)\s*""")
_NEXT = re.compile(r"""["'“‘(\[]*(\w)""")
_LAST_WORD = re.compile(r"[^\s(\[\"'“‘]*$")
_NEXT_WORD = re.compile(r"\w+")


def split_sentences(text: str) -> list[str]:
    """Cut text into sentences; a line end always ends one. No word is lost.

    A full stop ends a sentence if a capital, a digit or an opening quote follows it, unless it
    belongs to an abbreviation or an initial.

    Example:
        >>> split_sentences("Dr. J. R. Smith left the U.S. in 1999. He paid 3.5 million! Why?")
        ['Dr. J. R. Smith left the U.S. in 1999.', 'He paid 3.5 million!', 'Why?']
    """
    sentences: list[str] = []
    for line in text.splitlines():
        start = 0
        for match in _BOUNDARY.finditer(line):
            if match.end() < len(line) and _ends_sentence(line, start, match):
                sentences.append(line[start : match.end()].strip())
                start = match.end()
        sentences.append(line[start:].strip())
    return list(filter(None, sentences))


def _ends_sentence(line: str, start: int, match: re.Match[str]) -> bool:
    mark = match.group().rstrip()
    if mark[0] in "。！？":
        return True
    following = _NEXT.match(line, match.end())
    if following is None or following[1].islower():
        return False
    if mark[0] != "." or mark.startswith(".."):
        return True
    last_word = _LAST_WORD.search(line, max(start, match.start() - 30), match.start())
    word = last_word[0] if last_word else ""
    lowered = word.lower()
    # J. or J.R.
    is_initial = all(len(part) == 1 and part.isupper() for part in word.split("."))
    if lowered in _BEFORE_NUMBERS and not is_initial:
        return not following[1].isdigit()
    if lowered not in _ABBREVIATIONS and not is_initial:
        return True
    next_word = _NEXT_WORD.match(line, match.end())
    return lowered in _MAY_END and next_word is not None and next_word[0] in STARTERS


def align_sentences(text: str, sentences: Sequence[str]) -> Spans | None:
    """Character spans of sentences in the text they were joined to; None if they are not its
    sentences.

    Only white space between sentences may differ. A blank sentence keeps its number and has an
    empty span.

    Example:
        >>> align_sentences("One. Two.", ["One.", " ", " Two."]), align_sentences("One. Two.", ["One."])
        (((0, 4), (4, 4), (5, 9)), None)
    """
    spans: list[tuple[int, int]] = []
    end = 0
    for sentence in map(str.strip, sentences):
        start = text.find(sentence, end) if sentence else end
        if start < 0 or text[end:start].strip():
            return None
        end = start + len(sentence)
        spans.append((start, end))
    return None if text[end:].strip() else tuple(spans)


def sentence_spans(text: str) -> Spans:
    """Start and end of the sentences of `text`, cut by `split_sentences`."""
    return align_sentences(text, split_sentences(text)) or ((0, len(text)),)
