"""Questions made from manual pages: options, settings, files, default values, commands and abbreviations."""

import gzip
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rag.adaptation.terms import TermQuestion, term_questions, worded
from rag.data.documents.blocks import clean
from rag.data.documents.man import man

_MARK = re.compile(r"(?:•|\(?\w{1,3}[.)]) ")  # of an entry that explains no term
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
    heading = ""
    for piece in man(page)[1]:
        text = clean(piece.text)
        if piece.kind == "heading":
            heading = text
        elif piece.kind == "item" and not _MARK.match(text):
            term, _, explanation = text.partition(": ")
            yield _Block(heading, term, explanation)
        elif text:
            yield _Block(heading, "", text)
