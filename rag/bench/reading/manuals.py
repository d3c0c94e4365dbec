"""Questions made from manual pages: options, settings, files, default values, commands and abbreviations."""

import gzip
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rag.adaptation.terms import TermQuestion, term_questions, worded

_ESCAPES = (
    (r"\\f(?:\(..|\[[^]]*\]|.)", ""), (r"\\s[-+]?\d", ""), (r"\\\((?:aq|cq|oq)", "'"), (r"\\\(bu", "*"),
    (r'\\\*(?:\(?[lr]q|\([LR]"|\(C`|\(C\')', '"'), (r"\\\((?:lq|rq|dq)", '"'),
    (r"\\\(em|\\\(en|\\-|\\\(hy", "-"),
    (r"\\[&,/|^%:cd~)]", ""), (r"\\ |\\0", " "), (r"\\e|\\\(rs|\\\\", r"\\"),
    (r"\\\(..|\\\[[^]]*\]|\\[mZhv]'[^']*'|\\[um]", ""), (r"\s+", " "),
)  # fmt: skip
_INSIDE = frozenset({"RS", "RE", "sp", "nf", "fi", "UNINDENT", "INDENT"})  # end no item that has no text yet
_BREAKS = _INSIDE | {"SH", "SS", "TP", "IP", "PP", "LP", "P", "HP", "TQ"}
_TEXT = re.compile(r"^[.'](?:B|I|BR|RB|BI|IB|IR|RI|SM|SB|Nm|Fl|Ar)\s+(.*)")
_SPACED = ("B", "I", "SM", "SB", "Nm", "Fl", "Ar")  # macros that keep the blanks between their arguments
_LEFT_OUT = frozenset({"SEE ALSO", "AUTHOR", "AUTHORS", "COPYRIGHT", "REPORTING BUGS"})
_CONTEXT_WORDS = 450

_ABOUT = ("What is {0}?", "What does {0} do?", "what is {0} for", "What is the purpose of {0}?")
_WHICH = ("Which command should I use to {0}?", "What is the name of the tool: {0}?",
          "Which program or file format is described as {0}?")  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Block:
    """A paragraph; `term` is what a list explains, "" outside lists."""

    heading: str
    term: str
    text: str

    @property
    def shown(self) -> str:
        return f"{self.term}\n{self.text}" if self.term and self.text else self.term or self.text


def manual_questions(path: Path, draw: random.Random, most: int) -> Iterator[dict[str, Any]]:
    """At most `most` questions from a page, each with the part of the page around its answer as context.

    Args:
        path: a gzipped manual page in roff, such as /usr/share/man/man1/ls.1.gz.
        draw: random generator that chooses the answers and the wording of the questions.
    """
    command = re.sub(r"\.\d\w*(\.gz)?$", "", path.name)
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as page:
        blocks = [block for block in _blocks(page.read()) if block.heading not in _LEFT_OUT]
    shown = draw.choice([command, command, f"the {command} command"])
    made = [(at, one) for at, block in enumerate(blocks) for one in _questions(block, shown, draw)]
    lines = [block.shown for block in blocks]
    for number, (at, one) in enumerate(draw.sample(made, min(most, len(made)))):
        first = last = at
        while sum(len(line.split()) for line in lines[first : last + 1]) < _CONTEXT_WORDS:
            if (first, last) == (0, len(lines) - 1):
                break
            first, last = max(0, first - draw.randint(0, 2)), min(len(lines) - 1, last + draw.randint(0, 2))
        context = "\n".join(lines[first : last + 1])
        start = sum(len(line) + 1 for line in lines[first:at]) + one.place
        if context.startswith(one.answer, start) and one.answer.lower() not in one.question.lower():
            others = dict.fromkeys(other for other in one.others if other not in ("", one.answer))
            answers = [{"text": text, "start": context.find(text)} for text in others if text in context]
            yield {
                "id": f"{path.name}-{number}", "title": f"{command} manual page", "context": context,
                "question": one.question, "answers": [{"text": one.answer, "start": start}, *answers],
            }  # fmt: skip


def _questions(block: _Block, command: str, draw: random.Random) -> Iterator[TermQuestion]:
    text = block.text
    if block.heading == "NAME" and (found := re.match(r"(?:[\w.+-]+, )*([\w.+-]+) +-+ +(.{8,120})$", text)):
        name, about = found[1], found[2].rstrip(". ")
        if draw.random() < 0.6:
            yield TermQuestion(draw.choice(_ABOUT).format(name), about, text.index(about))
        else:
            yield TermQuestion(draw.choice(_WHICH).format(worded(about, draw)), name, text.index(name))
    yield from term_questions(block.term, text, block.shown, command, draw)


def _blocks(page: str) -> Iterator[_Block]:
    heading, term, state = "", "", ""
    lines: list[str] = []

    def block() -> Iterator[_Block]:
        text = re.sub(r"\s+([,.;:)])", r"\1", " ".join(lines)).strip()
        if text or term:
            yield _Block(heading, term, text)

    for line in page.splitlines():
        if line.startswith(('.\\"', "'\\\"", "...")):
            continue
        macro = re.match(r"^[.'](\w+)\s*(.*)", line)
        name = macro[1] if macro else ""
        if macro and name in _BREAKS:
            if name in _INSIDE and term and not lines:
                continue
            if name == "TQ":
                state = "more"
                continue
            yield from block()
            term, lines, state = "", [], ""
            if name in ("SH", "SS"):
                heading = _plain(macro[2].strip('" '))
                state = "" if heading else "heading"
            elif name == "TP":
                state = "term"
            elif name == "IP" and (words := re.match(r'"([^"]*)"|(\S+)', macro[2])):
                term = _plain(words[1] or words[2] or "")
                term = "" if term in ("*", "-", "o") else term
        elif macro and not _TEXT.match(line):
            continue
        elif state == "heading":
            heading, state = _words(line), ""
        elif state == "term":
            term, state = _words(line), ""
        elif state == "more":
            term, state = f"{term}, {_words(line)}", ""
        elif text := _words(line):
            lines.append(text)
    yield from block()


def _words(line: str) -> str:
    """The text of a line; macros that alternate fonts put their arguments together."""
    found = _TEXT.match(line)
    if not found:
        return _plain(line)
    parts = [quoted or word for quoted, word in re.findall(r'"([^"]*)"|(\S+(?:\\ \S+)*)', found[1])]
    return _plain((" " if line.split()[0][1:] in _SPACED else "").join(parts))


def _plain(text: str) -> str:
    for pattern, by in _ESCAPES:
        text = re.sub(pattern, by, text)
    return text.strip()
