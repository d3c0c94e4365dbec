"""Questions made from a passage by rules, for training a reader: deterministic, and without any model.

A question is only made where its answer stands once in the passage and not in the question. Whether it makes
sense is decided afterwards, see `rag.adaptation.agreement`.
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rag.adaptation.choices import KINDS, Kind
from rag.adaptation.tables import cell_question, table_cells
from rag.adaptation.terms import first_sentence, term_questions
from rag.core.types import Passage
from rag.data.salient import CapitalTagger, find_dates
from rag.data.sentences import sentence_spans


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NUMBER = re.compile(
    r"(?<![\w.,-])[$€£]?\d+(?:[.,]\d+)*(?:\s?%| (?:per ?cent|(?:thousand|million|billion)))?(?![\w-])"
)
_LEANS = _words(  # on what stands before, or are no names: alone such a sentence or term asks for nothing
    """
    it this that these those he she they his her its their we our i you your such here there then thus however
    and but or so also both because if when where while one set confirm note notes example result default
    """
)
_BEFORE_DATE = re.compile(r"\W*\b(?:in|on|by|since|during|at|from|until|of|the|around|about)$", re.IGNORECASE)
_ARTICLE = re.compile(r"(?:^|\s)(?:the|an?)$", re.IGNORECASE)
_NOUN = re.compile(r"\s+([a-z][a-z-]+(?: [a-z-]+s\b)?)")
_DEFINITION = re.compile(
    r"(?:(?:An?|The) )?(?P<term>[\w'’./+-]+(?: [\w'’./+-]+){0,4}?) (?:is|are|means|refers to|stands for) "
    r"(?P<text>(?:an?|the|one|any|used|software|when|how)\b .{10,})"
)
_ITEM = re.compile(r"\s*(?:[-*•▪–]\s+|\d{1,2}[.)]\s+)?[`*_\"]*(?P<term>[^\s:;|][^:;|\n]{0,50}?)[`*_\"]*\s*"
                   r"(?::|–|—| - )\s+(?P<text>[^\n]{2,})")  # fmt: skip
_WHAT = ("What is {0}?", "What does {0} mean?", "what is {0}")
_VALUE = ("What is the {0}?", "{0}", "What {0} is given?")
_ACTS = _words(
    """
    access activate add adjust allow answer apply assign back call cancel change charge check choose clean
    clear close configure connect control convert copy create customize cut delete disable disconnect
    download drag edit enable end enter exit export extend find format get import insert install join launch
    listen load lock log make manage merge modify monitor mount move mute open organize pair paste pause pin
    play power press preview print protect read rearrange receive record register remove rename repair replace
    reset resize restart restore resume run save scan schedule search select send set share show sign sort
    start stop store stream switch sync take tag tap test transfer turn type uninstall unlock unmount unpair
    update upgrade upload use verify view watch write zoom
    """
)
_NO_NAMES = _ACTS | _LEANS
_TAGGER = CapitalTagger()
_LINE = re.compile(r"[^\n]+")
_WORD = re.compile(r"(?<![^\s(\"'`])[\w/~.-](?:[^\s()\"'`,;:]|[:=,](?=\w))*[\w/]")
_IDENTIFIER = re.compile(r"-{1,2}\w|[/~]\S|\w*[a-z][A-Z]|\w+[._=-]\w|[A-Z_]{3,}\b")
_CODE = re.compile(
    r"-{1,2}[a-zA-Z]|[/~]/?\.?\w|[\w./]*(?:[a-z][A-Z]|_)\w|\w{2,}[.=]\w{2,}"
)  # in prose, where "e.g." is none
_SHORT, _LONG = 6, 40  # words of a sentence that becomes a question


@dataclass(frozen=True, slots=True)
class MadeQuestion:
    """A question with its answer, which begins at character `start` of the passage."""

    kind: Kind
    text: str
    answer: str
    start: int


def make_questions(
    passage: Passage, draw: random.Random, kinds: Sequence[Kind] = KINDS, most: int = 6
) -> list[MadeQuestion]:
    """At most `most` questions from a passage, drawn at random.

    Args:
        draw: random generator that chooses questions and their wording.
        kinds: "table": cells of tables; "sentence": a number, date, name or identifier taken out of a
            sentence; "definition": "X is a …" and abbreviations; "list": options, settings, and lines
            "key: value"; "heading": what stands first below a heading.

    Source:
        Lewis et al. 2019, "Unsupervised Question Answering by Cloze Translation", section 2.2 (sentences: the
        wh-word of the answer's kind before the words around it).

    Example:
        >>> passage = Passage("1", "Danube", "The Danube rises in the Black Forest. It is long.")
        >>> [(one.text, one.answer) for one in make_questions(passage, random.Random(0))]
        [('What The Danube rises in?', 'Black Forest')]
    """
    makers = {
        "table": _of_tables, "sentence": _of_sentences, "definition": _of_definitions, "list": _of_lists,
        "heading": _of_headings,
    }  # fmt: skip
    made = [one for kind in kinds for one in makers[kind](passage, draw) if _is_clear(one, passage.text)]
    made = list({one.text: one for one in made}.values())
    return draw.sample(made, most) if len(made) > most else made


def is_question(made: MadeQuestion) -> bool:
    """Whether a question has two to forty words, no link, and does not hold its answer."""
    return (
        "](" not in made.text
        and 2 <= len(made.text.split()) <= _LONG
        and made.answer.lower() not in made.text.lower()
    )


def _is_clear(made: MadeQuestion, text: str) -> bool:
    """Whether the answer stands in the passage once, at its place, and neither is in the other."""
    places = re.findall(rf"(?<!\w){re.escape(made.answer)}(?!\w)", text)
    return text.startswith(made.answer, made.start) and len(places) == 1 and is_question(made)


def _of_tables(passage: Passage, draw: random.Random) -> Iterator[MadeQuestion]:
    for cell in table_cells(passage.text):
        yield MadeQuestion("table", cell_question(cell, draw), cell.value, cell.start)


def _sentences(text: str) -> Iterator[tuple[str, int]]:
    """Whole sentences, without rows of tables and without those that lean on the sentence before."""
    for start, end in sentence_spans(text):
        sentence = text[start:end]
        words = sentence.split()
        if (
            _SHORT <= len(words) <= _LONG
            and sentence[-1] in ".!"
            and sentence[0].isupper()
            and "|" not in sentence
            and "; " not in sentence
            and words[0].lower().strip(",") not in _LEANS
        ):
            yield sentence, start


def _of_sentences(passage: Passage, draw: random.Random) -> Iterator[MadeQuestion]:
    for sentence, at in _sentences(passage.text):
        dates = find_dates(sentence)
        numbers = [found.span() for found in _NUMBER.finditer(sentence)]
        names = [
            (a, b) for a, b in _TAGGER([sentence])[0] if sentence[a:b].split()[0].lower() not in _NO_NAMES
        ]
        identifiers = [word.span() for word in _WORD.finditer(sentence) if _CODE.match(word[0])]
        kinds = {"identifier": identifiers, "date": dates, "number": numbers, "name": names}
        spans: list[tuple[tuple[int, int], str]] = []
        for kind, places in kinds.items():  # what belongs to an earlier kind is not of a later one
            taken = [span for span, _ in spans]
            spans += [
                ((a, b), kind) for a, b in places if not any(a < end and start < b for start, end in taken)
            ]
        if spans:
            (start, end), kind = spans[draw.randrange(len(spans))]
            question = _asked(sentence[:start], sentence[start:end], sentence[end:], kind)
            yield MadeQuestion("sentence", question, sentence[start:end], at + start)


def _asked(before: str, answer: str, after: str, kind: str) -> str:
    """The sentence as a question: the wh-word, then what stands around the answer."""
    before, after = before.strip(), after.rstrip(" .!")
    word = "What"
    if kind == "date":
        word = "When"
        before = _BEFORE_DATE.sub("", before)
    elif kind == "number":
        word = "How much"
        if "%" in answer or "cent" in answer:
            word = "What percentage"
        elif noun := _NOUN.match(after):
            word, after = f"How many {noun[1]}", after[noun.end() :]
    else:
        before = _ARTICLE.sub("", before)
        word = "What" if before else "Who or what"
    return re.sub(r"\s+", " ", f"{word} {before} {after}").replace(" ,", ",").strip(" ,") + "?"


def _of_definitions(passage: Passage, draw: random.Random) -> Iterator[MadeQuestion]:
    for sentence, at in _sentences(passage.text):
        found = _DEFINITION.fullmatch(sentence.rstrip(".!"))
        if (
            found
            and found["term"].split()[0].lower() not in _LEANS
            and (answer := first_sentence(found["text"]))
        ):
            question = draw.choice(_WHAT).format(found["term"])
            yield MadeQuestion("definition", question, answer, at + found.start("text"))
    for one in term_questions("", passage.text, passage.text, "", draw):
        yield MadeQuestion("definition", one.question, one.answer, one.place)


def _of_lists(passage: Passage, draw: random.Random) -> Iterator[MadeQuestion]:
    subject = passage.title.split(" › ")[0] or "this"
    for line in _LINE.finditer(passage.text):
        found = _ITEM.fullmatch(line[0])
        if not found or "|" in line[0] or re.search(r"; [^;]{1,80}: ", line[0]):
            continue
        term, text, at = found["term"], found["text"], line.start()
        made = list(term_questions(term, text, line[0], subject, draw)) if _IDENTIFIER.match(term) else []
        for one in made:
            yield MadeQuestion("list", one.question, one.answer, at + one.place)
        words = term.split()
        is_name = len(words) <= 5 and term[0].isupper() and words[0].lower() not in _LEANS
        if made or not is_name:
            continue
        if len(text.split()) <= 6:
            value = text.strip(" .;,")
            yield MadeQuestion("list", draw.choice(_VALUE).format(term), value, at + line[0].rindex(value))
        elif answer := first_sentence(text):
            yield MadeQuestion("list", draw.choice(_WHAT).format(term), answer, at + found.start("text"))


def _of_headings(passage: Passage, draw: random.Random) -> Iterator[MadeQuestion]:
    """The first sentence below the passage's heading: its title's last part, or short lines before prose."""
    lines = [(line[0].strip(" #*"), line.start()) for line in _LINE.finditer(passage.text) if line[0].strip()]
    sentences = [(passage.text[start:end], start) for start, end in sentence_spans(passage.text)]
    headings = [passage.title.split(" › ")[-1], *(line for line, _ in lines)]
    for heading, (_, at) in zip(headings, lines, strict=False):
        words = heading.split()
        sentence, start = next((one for one in sentences if one[1] >= at), ("", 0))
        is_heading = 2 <= len(words) <= 8 and heading[0].isupper() and heading[-1].isalnum()
        is_prose = _SHORT <= len(sentence.split()) <= _LONG and sentence[0].isupper() and sentence[-1] == "."
        if is_heading and is_prose and "|" not in heading + sentence:
            act = words[0].lower()
            question = f"How do I {act} {' '.join(words[1:])}?" if act in _ACTS else heading
            yield MadeQuestion("heading", question, sentence.rstrip("."), start)
