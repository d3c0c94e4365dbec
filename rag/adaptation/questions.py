"""Questions made from a passage by rules: deterministic, and without any model.

A question is only made where its answer stands once in the passage and not in the question.
"""

import random
import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from rag.core.types import Passage
from rag.data.salient import MONTHS, find_dates, find_names
from rag.data.sentences import sentence_spans, word_set
from rag.data.table_text import NO_NAME, table_rows

_NUMBER = re.compile(
    r"(?<![\w.,-])[$€£]?\d+(?:[.,]\d+)*(?:\s?%| (?:per ?cent|(?:thousand|million|billion)))?(?![\w-])"
)
# Words that refer back ("this", "then") or are no names: a sentence or a term that begins with such a
# word makes no sense alone.
_LEANS = word_set(
    """
    it this that these those he she they his her its their we our i you your such here there then thus however
    and but or so also both because if when where while one set confirm note notes example result default
    """
)
_BEFORE_DATE = re.compile(
    r"\W*\b(?:in|on|by|since|during|at|from|until|of|the|around|about)$", re.IGNORECASE
)
_ARTICLE = re.compile(r"(?:^|\s)(?:the|an?)$", re.IGNORECASE)
_NOUN = re.compile(r"\s+([a-z][a-z-]+(?: [a-z-]+s\b)?)")
_DEFINITION = re.compile(
    r"(?:(?:An?|The) )?(?P<term>[\w'’./+-]+(?: [\w'’./+-]+){0,4}?) (?:is|are|means|refers to|stands for) "
    r"(?P<text>(?:an?|the|one|any|used|software|when|how)\b .{10,})"
)
_ITEM = re.compile(
    r"\s*(?:[-*•▪–]\s+|\d{1,2}[.)]\s+)?[`*_\"]*(?P<term>[^\s:;|][^:;|\n]{0,50}?)[`*_\"]*\s*"
    r"(?::|–|—| - )\s+(?P<text>[^\n]{2,})"
)
_WHAT = ("What is {0}?", "What does {0} mean?", "what is {0}")
_VALUE = ("What is the {0}?", "{0}", "What {0} is given?")
_ACTS = word_set(
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
_LINE = re.compile(r"[^\n]+")
_WORD = re.compile(r"(?<![^\s(\"'`])[\w/~.-](?:[^\s()\"'`,;:]|[:=,](?=\w))*[\w/]")
_IDENTIFIER = re.compile(r"-{1,2}\w|[/~]\S|\w*[a-z][A-Z]|\w+[._=-]\w|[A-Z_]{3,}\b")
_CODE_IN_PROSE = re.compile(
    r"-{1,2}[a-zA-Z]|[/~]/?\.?\w|[\w./]*(?:[a-z][A-Z]|_)\w|\w{2,}[.=]\w{2,}"
)
# Words of a sentence that becomes a question.
_SHORT = 6
_LONG = 40

_TIME = re.compile(rf"(?:19|20)\d\d|(?:{MONTHS}|Q[1-4])\b")
_AT_TIME = (
    "What was the {0} in {1}?",
    "What is the {0} for {1}?",
    "How much was the {0} in {1}?",
    "What was the amount of {0} in {1}?",
    "{0} {1}",
)
_OF = ("What is the {1} of {0}?", "What {1} does {0} have?", "What is the {1} for {0}?", "{0} {1}")
# Words of a table's cells.
_LONGEST_LABEL = 14
_LONGEST_VALUE = 8

_SETTING = re.compile(r"(?=.*[A-Za-z]{2})[\w.-]*[._A-Z=-][\w.=-]*")
_DEFAULT = re.compile(r"[Dd]efault(?: value)?(?:s to| is|:) (?:the )?[\"'(]?([^\s;\"')]*[\w/%])")
_NO_DEFAULT = word_set("to not a an on the that determined used set taken usually")
_ABBREVIATION = re.compile(r"((?:[A-Z][\w-]+ ){2,5})\(([A-Z]{2,6})\)")
# {0} is what is asked about, {1} the command or document.
_MEANING = {
    "option": (
        "What does {0} do in {1}?",
        "What is the {0} option of {1} for?",
        "meaning of {0} in {1}",
        "What happens if I give {0} to {1}?",
    ),
    "file": ("What is {0} used for by {1}?", "What does the file {0} hold ({1})?"),
    "setting": (
        "What does {0} mean in {1}?",
        "What does the setting {0} of {1} do?",
        "What is {0} in {1}?",
    ),
}
_NAME = {
    "option": (
        "Which option of {1} makes it {0}?",
        "How do I tell {1} to {0}?",
        "How can I {0} with {1}?",
        "Which flag do I need in {1} to {0}?",
        "What option {0} ({1})?",
    ),
    "file": ("Which file of {1}: {0}?", "In which file of {1}: {0}?"),
    "setting": (
        "Which setting of {1}: {0}?",
        "Which parameter in {1} {0}?",
        "What do I set in {1} to {0}?",
    ),
}
_DEFAULT_OF = (
    "What is the default of {0} in {1}?",
    "Which value does {0} of {1} have by default?",
    "default value of {0} ({1})",
    "If I don't set {0}, what does {1} use?",
)
_STANDS_FOR = (
    "What does {0} stand for?",
    "What is {0}?",
    "What is {0} short for?",
    "meaning of {0}",
)


class MadeQuestion(NamedTuple):
    """A question with its answer, which begins at character `start` of the passage."""

    kind: Literal["table", "sentence", "definition", "list", "heading"]
    text: str
    answer: str
    start: int


def make_questions(passage: Passage, draw: random.Random, most: int = 6) -> list[MadeQuestion]:
    """At most `most` questions from a passage, drawn at random.

    They ask for cells of tables; for a number, date, name or identifier taken out of a sentence;
    for definitions ("X is a …") and abbreviations; for options, settings and lines "key: value" of
    lists; and for what stands first below a heading.

    Source:
        Lewis et al. 2019, "Unsupervised Question Answering by Cloze Translation", section 2.2
        (sentences: the wh-word of the answer's kind before the words around it).

    Example:
        >>> passage = Passage("1", "Danube", "The Danube rises in the Black Forest. It is long.")
        >>> [(question.text, question.answer) for question in make_questions(passage, random.Random(0))]
        [('What The Danube rises in?', 'Black Forest')]
    """
    made: dict[str, MadeQuestion] = {}  # by its text
    for maker in (_ask_tables, _ask_sentences, _ask_definitions, _ask_lists, _ask_headings):
        for question in maker(passage, draw):
            if _is_clear(question, passage.text):
                made[question.text] = question
    questions = list(made.values())
    return draw.sample(questions, most) if len(questions) > most else questions


def _is_clear(made: MadeQuestion, text: str) -> bool:
    """Whether the answer stands in the passage once, at its place, and neither is in the other."""
    answers = re.findall(rf"(?<!\w){re.escape(made.answer)}(?!\w)", text)
    return (
        len(answers) == 1
        and text.startswith(made.answer, made.start)
        and "](" not in made.text
        and 2 <= len(made.text.split()) <= _LONG
        and made.answer.lower() not in made.text.lower()
    )


def _ask_tables(passage: Passage, draw: random.Random) -> Iterator[MadeQuestion]:
    """Cells whose row has a label (its first cell, or what stands before its first "column: value")
    and whose column has a name; the later parts of a long table, without its header, give none."""
    for line in table_rows(passage.text):
        cells = line.cells
        label = line.label
        if line.named:
            is_whole = all(cell.column and cell.value for cell in cells)
            if len(cells) == 1 or not is_whole:
                continue
        if not label:
            label = cells[0].value
            cells = cells[1:]
        row = _last_level(label)
        if len(row) < 2 or len(row.split()) > _LONGEST_LABEL or not re.search(r"[^\W\d_]", row):
            continue
        for cell in cells:
            column = _last_level(cell.column)
            is_value = (
                re.search(r"[^\W_]", cell.value) and len(cell.value.split()) <= _LONGEST_VALUE
            )
            if not is_value or not column or NO_NAME.fullmatch(column):
                continue
            if _TIME.search(column):
                text = draw.choice(_AT_TIME).format(_uncapitalised(row), column)
            else:
                text = draw.choice(_OF).format(_uncapitalised(row), _uncapitalised(column))
            yield MadeQuestion("table", text, cell.value, cell.start)


def _last_level(name: str) -> str:
    """The last level of a header, without marks of notes such as (1)."""
    return re.sub(r"(?:\s*\(\w{1,2}\))+$", "", name.split(" > ")[-1]).strip(" :,.*")


def _uncapitalised(label: str) -> str:
    """A label as it stands inside a sentence."""
    return label[0].lower() + label[1:] if label[1:2].islower() or label[1:2] == " " else label


def _sentences(text: str) -> Iterator[tuple[str, int]]:
    """Whole sentences, without rows of tables and without those that lean on the sentence
    before.
    """
    for start, end in sentence_spans(text):
        sentence = text[start:end]
        words = sentence.split()
        if not _SHORT <= len(words) <= _LONG:
            continue
        is_whole = sentence[-1] in ".!" and sentence[0].isupper()
        is_row = re.search(r"\||; ", sentence)
        leans = words[0].lower().strip(",") in _LEANS
        if is_whole and not is_row and not leans:
            yield sentence, start


def _ask_sentences(passage: Passage, draw: random.Random) -> Iterator[MadeQuestion]:
    for sentence, at in _sentences(passage.text):
        answers = answers_in(sentence)
        if answers:
            kind, (start, end) = answers[draw.randrange(len(answers))]
            text = _with_wh_word(sentence[:start], sentence[start:end], sentence[end:], kind)
            yield MadeQuestion("sentence", text, sentence[start:end], at + start)


def answers_in(sentence: str) -> list[tuple[str, tuple[int, int]]]:
    """What a sentence can be asked for, by kind; what is of an earlier kind is not of a later
    one.
    """
    codes = [word.span() for word in _WORD.finditer(sentence) if _CODE_IN_PROSE.match(word[0])]
    numbers = [number.span() for number in _NUMBER.finditer(sentence)]
    names = [
        (start, end)
        for start, end in find_names(sentence)
        if sentence[start:end].split()[0].lower() not in _ACTS | _LEANS
    ]
    kinds = {"identifier": codes, "date": find_dates(sentence), "number": numbers, "name": names}
    answers: list[tuple[str, tuple[int, int]]] = []
    for kind, spans in kinds.items():
        earlier = [span for _, span in answers]
        for start, end in spans:
            if all(start >= stop or begin >= end for begin, stop in earlier):
                answers.append((kind, (start, end)))
    return answers


def _with_wh_word(before: str, answer: str, after: str, kind: str) -> str:
    """The sentence as a question: the wh-word, then what stands around the answer."""
    before = before.strip()
    after = after.rstrip(" .!")
    noun = _NOUN.match(after)
    if kind == "date":
        word = "When"
        before = _BEFORE_DATE.sub("", before)
    elif kind != "number":
        before = _ARTICLE.sub("", before)
        word = "What" if before else "Who or what"
    elif "%" in answer or "cent" in answer:
        word = "What percentage"
    elif noun:
        word = f"How many {noun[1]}"
        after = after[noun.end() :]
    else:
        word = "How much"
    return re.sub(r"\s+", " ", f"{word} {before} {after}").replace(" ,", ",").strip(" ,") + "?"


def _ask_definitions(passage: Passage, draw: random.Random) -> Iterator[MadeQuestion]:
    for sentence, at in _sentences(passage.text):
        match = _DEFINITION.fullmatch(sentence.rstrip(".!"))
        if match is None or match["term"].split()[0].lower() in _LEANS:
            continue
        answer = _first_sentence(match["text"])
        if answer:
            text = draw.choice(_WHAT).format(match["term"])
            yield MadeQuestion("definition", text, answer, at + match.start("text"))
    for text, answer, start in _ask_term("", passage.text, passage.text, "", draw):
        yield MadeQuestion("definition", text, answer, start)


def _ask_lists(passage: Passage, draw: random.Random) -> Iterator[MadeQuestion]:
    subject = passage.title.split(" › ")[0] or "this"
    for line in _LINE.finditer(passage.text):
        match = _ITEM.fullmatch(line[0])
        if not match or "|" in line[0] or re.search(r"; [^;]{1,80}: ", line[0]):
            continue
        term = match["term"]
        text = match["text"]
        at = line.start()
        made = []
        if _IDENTIFIER.match(term):
            made = list(_ask_term(term, text, line[0], subject, draw))
        for question, answer, start in made:
            yield MadeQuestion("list", question, answer, at + start)
        words = term.split()
        is_name = len(words) <= 5 and term[0].isupper() and words[0].lower() not in _LEANS
        if made or not is_name:
            continue
        if len(text.split()) <= 6:
            value = text.strip(" .;,")
            question = draw.choice(_VALUE).format(term)
            yield MadeQuestion("list", question, value, at + line[0].rindex(value))
            continue
        answer = _first_sentence(text)
        if answer:
            question = draw.choice(_WHAT).format(term)
            yield MadeQuestion("list", question, answer, at + match.start("text"))


def _ask_headings(passage: Passage, draw: random.Random) -> Iterator[MadeQuestion]:
    """The first sentence below the passage's heading: its title's last part, or short lines before
    prose.
    """
    spans = list(sentence_spans(passage.text))
    heading = passage.title.split(" › ")[-1]
    for line in _LINE.finditer(passage.text):
        if not line[0].strip():
            continue
        start, end = next((span for span in spans if span[0] >= line.start()), (0, 0))
        sentence = passage.text[start:end]
        text = _of_heading(heading, sentence)
        if text:
            yield MadeQuestion("heading", text, sentence.rstrip("."), start)
        heading = line[0].strip(" #*")


def _of_heading(heading: str, sentence: str) -> str:
    """The question that a heading asks of the sentence below it; "" if they are none."""
    words = heading.split()
    is_heading = 2 <= len(words) <= 8 and heading[0].isupper() and heading[-1].isalnum()
    is_whole = sentence[:1].isupper() and sentence.endswith(".") and "|" not in heading + sentence
    if not is_heading or not is_whole or not _SHORT <= len(sentence.split()) <= _LONG:
        return ""
    act = words[0].lower()
    return f"How do I {act} {' '.join(words[1:])}?" if act in _ACTS else heading


def _ask_term(
    term: str, text: str, entry: str, subject: str, draw: random.Random
) -> Iterator[tuple[str, str, int]]:
    """Questions about a term of a list and the text that explains it, with answers and their places.

    Args:
        term: an option with its forms, a file, a setting; "" for a paragraph.
        entry: what the places are in; it ends with the text.
    """
    offset = len(entry) - len(text)
    for match in _ABBREVIATION.finditer(text):
        initials = "".join(word[0] for word in match[1].split())
        if initials.upper() == match[2]:
            question = draw.choice(_STANDS_FOR).format(match[2])
            yield question, match[1].strip(), offset + match.start()
    forms = re.findall(r"(?:^|[\s,|])(--?[\w][\w-]*)", term)
    if forms:
        kind = "option"
        name = max(forms, key=len)
    else:
        kind = "file" if term.startswith(("/", "~")) else "setting"
        name = re.sub(r"=.*$", "", term)
    is_term = kind != "setting" or _SETTING.fullmatch(term)
    if not is_term or len(name) < 2:
        return
    default = _DEFAULT.search(text)
    if default and default[1].lower() not in _NO_DEFAULT:
        yield draw.choice(_DEFAULT_OF).format(name, subject), default[1], offset + default.start(1)
    sentence = _first_sentence(text)
    if sentence and draw.random() < 0.45:
        yield draw.choice(_MEANING[kind]).format(name, subject), sentence, offset
    elif sentence:
        question = draw.choice(_NAME[kind]).format(_as_people_say(sentence, draw), subject)
        yield question, name, entry.index(name)


def _first_sentence(text: str) -> str:
    """Without its full stop; "" where it is too long or too short."""
    sentence = re.split(r"(?<=[a-z0-9)\"'])[.;:](?:\s|$)", text)[0].strip(" .:,")
    return sentence if 3 <= len(sentence.split()) <= 30 else ""


def _as_people_say(sentence: str, draw: random.Random) -> str:
    """A description as somebody would ask for it: without its capital, often without a few
    words.
    """
    words = sentence.split()
    if words[0][1:].islower():
        words[0] = words[0].lower()
    if len(words) > 6 and draw.random() < 0.5:
        words = [word for word in words if draw.random() > 0.15]
    return " ".join(words)
