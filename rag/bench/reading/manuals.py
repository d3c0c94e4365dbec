"""Questions made from manual pages: options, settings, files, default values, commands and abbreviations."""

import gzip
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
_DEFAULT = re.compile(r"[Dd]efault(?: value)?(?:s to| is|:) (?:the )?[\"'(]?([^\s;\"')]*[\w/%])")
_NO_DEFAULT = frozenset(
    {"to", "not", "a", "an", "on", "the", "that", "determined", "used", "set", "taken", "usually"}
)
_ABBREVIATION = re.compile(r"((?:[A-Z][\w-]+ ){2,5})\(([A-Z]{2,6})\)")
_CONTEXT_WORDS = 450

# {0} is what is known, {1} the command
_MEANING = {
    "option": ("What does {0} do in {1}?", "What is the {0} option of {1} for?", "meaning of {0} in {1}",
               "What happens if I give {0} to {1}?"),
    "file": ("What is {0} used for by {1}?", "What does the file {0} hold ({1})?"),
    "setting": ("What does {0} mean in {1}?", "What does the setting {0} of {1} do?", "What is {0} in {1}?"),
}  # fmt: skip
_NAME = {
    "option": ("Which option of {1} makes it {0}?", "How do I tell {1} to {0}?", "How can I {0} with {1}?",
               "Which flag do I need in {1} to {0}?", "What option {0} ({1})?"),
    "file": ("Which file of {1}: {0}?", "In which file of {1}: {0}?"),
    "setting": ("Which setting of {1}: {0}?", "Which parameter in {1} {0}?", "What do I set in {1} to {0}?"),
}  # fmt: skip
_VALUE = ("What is the default of {0} in {1}?", "Which value does {0} of {1} have by default?",
          "default value of {0} ({1})", "If I don't set {0}, what does {1} use?")  # fmt: skip
_ABOUT = ("What is {0}?", "What does {0} do?", "what is {0} for", "What is the purpose of {0}?")
_WHICH = ("Which command should I use to {0}?", "What is the name of the tool: {0}?",
          "Which program or file format is described as {0}?")  # fmt: skip
_LONG = ("What does {0} stand for?", "What is {0}?", "What is {0} short for?", "meaning of {0}")


@dataclass(frozen=True, slots=True)
class _Block:
    """A paragraph; `term` is what a list explains, "" outside lists."""

    heading: str
    term: str
    text: str

    @property
    def shown(self) -> str:
        return f"{self.term}\n{self.text}" if self.term and self.text else self.term or self.text


@dataclass(frozen=True, slots=True)
class _Made:
    """A question on a block, its answer and that answer's place in the block, and further forms of it."""

    block: int
    question: str
    answer: str
    place: int
    others: tuple[str, ...] = ()


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
    made = [one for at, block in enumerate(blocks) for one in _questions(at, block, shown, draw)]
    lines = [block.shown for block in blocks]
    for number, one in enumerate(draw.sample(made, min(most, len(made)))):
        first = last = one.block
        while sum(len(line.split()) for line in lines[first : last + 1]) < _CONTEXT_WORDS:
            if (first, last) == (0, len(lines) - 1):
                break
            first, last = max(0, first - draw.randint(0, 2)), min(len(lines) - 1, last + draw.randint(0, 2))
        context = "\n".join(lines[first : last + 1])
        start = sum(len(line) + 1 for line in lines[first : one.block]) + one.place
        if context.startswith(one.answer, start) and one.answer.lower() not in one.question.lower():
            others = dict.fromkeys(other for other in one.others if other not in ("", one.answer))
            answers = [{"text": text, "start": context.find(text)} for text in others if text in context]
            yield {
                "id": f"{path.name}-{number}", "title": f"{command} manual page", "context": context,
                "question": one.question, "answers": [{"text": one.answer, "start": start}, *answers],
            }  # fmt: skip


def _questions(at: int, block: _Block, command: str, draw: random.Random) -> Iterator[_Made]:
    text, term, shown = block.text, block.term, block.shown
    if block.heading == "NAME" and (found := re.match(r"(?:[\w.+-]+, )*([\w.+-]+) +-+ +(.{8,120})$", text)):
        name, about = found[1], found[2].rstrip(". ")
        if draw.random() < 0.6:
            yield _Made(at, draw.choice(_ABOUT).format(name), about, text.index(about))
        else:
            yield _Made(at, draw.choice(_WHICH).format(_worded(about, draw)), name, text.index(name))
    offset = len(shown) - len(text)
    for found in _ABBREVIATION.finditer(text):
        if "".join(word[0] for word in found[1].split()).upper() == found[2]:
            question = draw.choice(_LONG).format(found[2])
            yield _Made(at, question, found[1].strip(), offset + found.start())
    forms = re.findall(r"(?:^|[\s,|])(--?[\w][\w-]*)", term)
    kind = _kind(term, forms) if text and len(term) <= 60 else ""
    name = max(forms, key=len) if forms else re.sub(r"=.*$", "", term)
    if not kind or len(name) < 2 or name not in shown:
        return
    if (found := _DEFAULT.search(text)) and found[1].lower() not in _NO_DEFAULT:
        yield _Made(at, draw.choice(_VALUE).format(name, command), found[1], offset + found.start(1))
    sentence = _first_sentence(text)
    if sentence and draw.random() < 0.45:
        yield _Made(at, draw.choice(_MEANING[kind]).format(name, command), sentence, offset)
    elif sentence:
        question = draw.choice(_NAME[kind]).format(_worded(sentence, draw), command)
        yield _Made(at, question, name, shown.index(name), (*forms, ", ".join(forms), term))


def _kind(term: str, forms: list[str]) -> str:
    if forms:
        return "option"
    if term.startswith(("/", "~")):
        return "file"
    return "setting" if re.fullmatch(r"(?=.*[A-Za-z]{2})[\w.-]*[._A-Z=-][\w.=-]*", term) else ""


def _first_sentence(text: str) -> str:
    """Without its full stop; "" where it is too long or too short."""
    sentence = re.split(r"(?<=[a-z0-9)\"'])[.;:](?:\s|$)", text)[0].strip(" .:,")
    return sentence if 3 <= len(sentence.split()) <= 30 else ""


def _worded(sentence: str, draw: random.Random) -> str:
    """A description as somebody would ask for it: without its capital, often without a few words."""
    words = sentence.split()
    if words[0][1:].islower():
        words[0] = words[0].lower()
    if len(words) > 6 and draw.random() < 0.5:
        words = [word for word in words if draw.random() > 0.15]
    return " ".join(words)


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
