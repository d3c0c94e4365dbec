"""Questions about what a list explains: options, files, settings, their defaults, and abbreviations."""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

_DEFAULT = re.compile(r"[Dd]efault(?: value)?(?:s to| is|:) (?:the )?[\"'(]?([^\s;\"')]*[\w/%])")
_NO_DEFAULT = frozenset(
    {"to", "not", "a", "an", "on", "the", "that", "determined", "used", "set", "taken", "usually"}
)
_ABBREVIATION = re.compile(r"((?:[A-Z][\w-]+ ){2,5})\(([A-Z]{2,6})\)")

# {0} is what is known, {1} the command or document
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
_LONG = ("What does {0} stand for?", "What is {0}?", "What is {0} short for?", "meaning of {0}")


@dataclass(frozen=True, slots=True)
class TermQuestion:
    """A question, its answer and that answer's place in the text shown, and further forms of the answer."""

    question: str
    answer: str
    place: int
    others: tuple[str, ...] = ()


def term_questions(
    term: str, text: str, shown: str, subject: str, draw: random.Random
) -> Iterator[TermQuestion]:
    """Questions about a term of a list and about the text that explains it.

    Args:
        term: an option with its forms, a file, a setting; "" for a paragraph outside lists.
        text: the explanation.
        shown: the stretch of the document that ends with `text` and has `term` in it.
        subject: the command or document that the list belongs to.
        draw: chooses the wording, and which of the two is asked for.

    Example:
        >>> shown = "--all: Show hidden files. Default: off"
        >>> made = term_questions("--all", shown[7:], shown, "ls", random.Random(0))
        >>> [(one.question, one.answer) for one in made][:1]
        [("If I don't set --all, what does ls use?", 'off')]
    """
    offset = len(shown) - len(text)
    for found in _ABBREVIATION.finditer(text):
        if "".join(word[0] for word in found[1].split()).upper() == found[2]:
            question = draw.choice(_LONG).format(found[2])
            yield TermQuestion(question, found[1].strip(), offset + found.start())
    forms = re.findall(r"(?:^|[\s,|])(--?[\w][\w-]*)", term)
    kind = _kind(term, forms) if text and len(term) <= 60 else ""
    name = max(forms, key=len) if forms else re.sub(r"=.*$", "", term)
    if not kind or len(name) < 2 or name not in shown:
        return
    default = _DEFAULT.search(text)
    if default and default[1].lower() not in _NO_DEFAULT:
        yield TermQuestion(draw.choice(_VALUE).format(name, subject), default[1], offset + default.start(1))
    sentence = first_sentence(text)
    if sentence and draw.random() < 0.45:
        yield TermQuestion(draw.choice(_MEANING[kind]).format(name, subject), sentence, offset)
    elif sentence:
        question = draw.choice(_NAME[kind]).format(worded(sentence, draw), subject)
        yield TermQuestion(question, name, shown.index(name), (*forms, ", ".join(forms), term))


def _kind(term: str, forms: list[str]) -> str:
    if forms:
        return "option"
    if term.startswith(("/", "~")):
        return "file"
    return "setting" if re.fullmatch(r"(?=.*[A-Za-z]{2})[\w.-]*[._A-Z=-][\w.=-]*", term) else ""


def first_sentence(text: str) -> str:
    """Without its full stop; "" where it is too long or too short."""
    sentence = re.split(r"(?<=[a-z0-9)\"'])[.;:](?:\s|$)", text)[0].strip(" .:,")
    return sentence if 3 <= len(sentence.split()) <= 30 else ""


def worded(sentence: str, draw: random.Random) -> str:
    """A description as somebody would ask for it: without its capital, often without a few words."""
    words = sentence.split()
    if words[0][1:].islower():
        words[0] = words[0].lower()
    if len(words) > 6 and draw.random() < 0.5:
        words = [word for word in words if draw.random() > 0.15]
    return " ".join(words)
