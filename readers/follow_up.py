"""Rewrite follow-up questions such as "and its population?" as questions that can be understood alone.

The rule is for English, and uses the last question and its answer. It looks for a pronoun ("When was she
born?"), an ellipsis ("And Germany?", "The population?") or a bare question word ("When?"); any other question
is left as it is.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from rag.core.errors import ReaderError
from rag.core.log import get_logger

log = get_logger(__name__)


class Turn(NamedTuple):
    """A question of a conversation, and its answer: "" where there was none."""

    question: str
    answer: str


_WH = r"(?:who|whom|whose|what|which|when|where|why|how)"
_PREPOSITION = r"(?:in|on|at|of|for|from|to|into|by|with|during|after|before|since|under|near|about|between)"
AUXILIARY = r"(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should|may|might|must)"
_AUXILIARY = rf"{AUXILIARY}(?:n't)?"
_OPENS_QUESTION = re.compile(rf"(?:{_PREPOSITION} )?{_WH}(?:'s)?\b|{_AUXILIARY} ", re.IGNORECASE)
_LEAD = re.compile(r"(?:(?:and|but|or|so|then|ok(?:ay)?|well)\b,? *)*(?:(?:what|how) about )?", re.IGNORECASE)
_BARE = re.compile(
    rf"(?:{_PREPOSITION} )?{_WH}(?: (?:many|much|long|far|old|often|year|else|exactly))?", re.IGNORECASE
)
_POINTING = re.compile(
    r"\b(?P<owner>its|his|their|her(?= (?!(?:at|in|on|to|for|from|with|by|and|or)\b)\w))\b"
    r"|\b(?P<named>(?:that|this|these|those) (?!is\b|was\b|are\b|were\b)[a-z]+)\b"
    r"|\b(?P<place>there)\b|\b(?P<alone>it|he|him|she|her|they|them)\b",
    re.IGNORECASE,
)
_DEFINITE = re.compile(r"\b(?:the|that|this) (?P<noun>[a-z]+)\b", re.IGNORECASE)
_EMPTY_SUBJECT = re.compile(
    r"\bit (?:true|possible|likely|raining|known)\b|\bthere (?:a|an|any|some|more|no) ", re.IGNORECASE
)
_WORD = r"[\w.'’-]*\w"
_NAME = re.compile(
    rf"(?:\b[Tt]he )?(?:[\"“][^\"”]+[\"”]|\b[A-Z0-9]{_WORD}"
    rf"(?:(?: (?:of|the|de|la|du|von|van|del|and the))* (?:[A-Z]{_WORD}|\d+\b))*)"
)
_FUNCTION = re.compile(
    rf"(?:{_WH}|{_AUXILIARY}|{_PREPOSITION}|the|a|an|and|name|list|tell|give)$", re.IGNORECASE
)
_PERSON = re.compile(
    r"\bwho\b|\b(?:which|what) (?:\w+ ){0,2}?(?:author|writer|poet|painter|artist|composer|architect"
    r"|physicist|chemist|scientist|mathematician|inventor|explorer|king|queen|emperor|president|minister|player|actor"
    r"|actress|singer|director|philosopher|astronaut|general|person|man|woman)\b",
    re.IGNORECASE,
)
# A noun phrase without a name, as in "How long is the longest river?".
_COMMON = re.compile(rf"\b(?:the|an?) (?:(?!{_AUXILIARY}\b|{_PREPOSITION}\b)[a-z-]+ ?){{1,4}}", re.IGNORECASE)


def standalone_question(question: str, previous: Turn) -> str:
    """The question as one that needs no conversation; unchanged if it is one already.

    Example:
        >>> france = Turn("What is the capital of France?", "Paris")
        >>> standalone_question("And its population?", france)
        'What is the population of Paris?'
        >>> standalone_question("What about Germany?", france)
        'What is the capital of Germany?'
        >>> standalone_question("Who wrote Faust?", france)
        'Who wrote Faust?'
    """
    question = " ".join(question.split())
    lead = _LEAD.match(question)
    body = question[lead.end() if lead else 0 :].rstrip(" ?.!")
    if not body:
        return question
    if _BARE.fullmatch(body):
        return f"{_stem(previous)}, and {_lower(body)}?"
    topic = re.match(rf"(?P<name>[^,]+), (?={_OPENS_QUESTION.pattern})", body, re.IGNORECASE)
    if topic:  # "And Guernica, when was it painted?"
        body, previous = body[topic.end() :], Turn(topic["name"], "")
    is_question = _OPENS_QUESTION.match(body) is not None
    pointing = None if _EMPTY_SUBJECT.search(body) else _POINTING.search(body) or _repeated(body, previous)
    if pointing and not _name_of(body[: pointing.start()]):
        resolved = _resolve(body, pointing, previous)
        if resolved == body:  # nothing to put there, so the last question comes along
            return f"{_stem(previous)}? {_capital(body)}?"
        return f"{_capital(resolved)}?" if is_question else f"What is {resolved}?"
    is_whole = body == question.rstrip(" ?.!")
    if is_question or (is_whole and not _is_elliptical(body)):
        return question if is_whole else f"{_capital(body)}?"
    return _substitute(body, previous)


def _repeated(body: str, previous: Turn) -> re.Match[str] | None:
    """A noun of a name in the last question or answer: "the stone" after "the Rosetta Stone"."""
    if _name_of(body):
        return None
    return next((found for found in _DEFINITE.finditer(body) if _with_noun(found["noun"], previous)), None)


def _with_noun(noun: str, previous: Turn) -> str:
    """The name of the last question or answer that ends with this noun, or ""."""
    names = [_name_of(previous.question), _name_of(previous.answer)]
    return next((name for name in names if name.lower().endswith(f" {noun.lower()}")), "")


def _is_elliptical(body: str) -> bool:
    """Whether this is a phrase such as "the population" or "in winter", not a keyword query of its own."""
    return re.match(rf"(?:the|{_PREPOSITION}) ", body, re.IGNORECASE) is not None and len(body.split()) <= 4


def _resolve(body: str, pointing: re.Match[str], previous: Turn) -> str:
    word = pointing.group().lower()
    noun = word.split()[-1]
    entity = _with_noun(noun, previous) if noun != word else ""
    entity = entity or _antecedent(word, previous)
    before, after = body[: pointing.start()], body[pointing.end() :]
    if not entity:
        return body
    kind = pointing.groupdict()
    if kind.get("owner"):
        if _OPENS_QUESTION.match(body):
            return f"{before}{entity}{chr(39) if entity.endswith('s') else chr(39) + 's'}{after}"
        return f"{before}the{after} of {entity}"
    if kind.get("place"):
        exists = re.search(rf"\b{_AUXILIARY} $", before, re.IGNORECASE)
        return f"{before}{'there in' if exists else 'in'} {entity}{after}"
    return f"{before}{entity}{after}"


def _antecedent(word: str, previous: Turn) -> str:
    """The meaning of a pronoun: the last answer, or the subject of the last question.

    A question that asks for a thing or a place ("What is the capital of France?") hands its answer on; one
    that asks for a time, a place of or a number about something keeps its subject.
    """
    answer = previous.answer.strip().rstrip(".") if re.match(r"(?:[Tt]he )?[A-Z\"“]", previous.answer) else ""
    subject = _name_of(previous.question) or _common(previous.question)
    asks_person = _PERSON.search(previous.question) is not None
    if word in ("he", "him", "his", "she", "her"):
        prefers_answer = asks_person
    elif word == "there" or re.match(r"(?:that|this) (?:place|city|town|country|state|region|island)", word):
        prefers_answer = not asks_person and not re.match(r"when|how|why", previous.question, re.IGNORECASE)
    elif word in ("they", "them", "their"):
        prefers_answer = asks_person or re.match(r"what|which", previous.question, re.IGNORECASE) is not None
    else:
        asks_thing = r"(?:what|which)\b(?! year| century| month| day| date)"
        prefers_answer = re.match(asks_thing, previous.question, re.IGNORECASE) is not None
        if asks_person:
            return subject  # "it" cannot stand for a person
    return (answer or subject) if prefers_answer else (subject or answer)


def _substitute(body: str, previous: Turn) -> str:
    """The last question about `body`, or a question for `body` about what the last one was about."""
    stem = _stem(previous)
    preposition = re.match(rf"{_PREPOSITION} ", body, re.IGNORECASE)
    if preposition:
        place = _name_of(body[preposition.end() :])
        replaced = re.search(rf"\b(?i:{_PREPOSITION}) (?P<name>{_NAME.pattern})", stem) if place else None
        if replaced:
            return f"{stem[: replaced.start('name')]}{place}{stem[replaced.end('name') :]}?"
        return f"{stem} {_lower(body)}?"
    subject = _name_of(stem)
    if not _name_of(body):
        entity = _antecedent("it", previous)
        if body.lower().startswith("the ") and entity:
            return f"What is {_lower(body)} of {entity}?"
        subject = subject or _common(stem)
    if not subject:
        return f"{stem}, and {body}?"
    if subject.lower().startswith("the ") and not body.lower().startswith("the "):
        subject = subject[4:] if body[:1].islower() else subject
    return f"{stem.replace(subject, body, 1)}?"


def _name_of(question: str) -> str:
    """The first name in the text, with its article, or "". Function words in capitals are no names."""
    for name in _NAME.finditer(question):
        text = re.sub(r"['’]s$", "", name.group())
        while text and _FUNCTION.match(first := text.split()[0]) and first.lower() != "the":
            text = text[len(first) :].lstrip()
        if text and text.lower() != "the":
            return text
    return ""


def _common(question: str) -> str:
    phrase = _COMMON.search(question)
    return phrase.group().strip() if phrase else ""


def _stem(previous: Turn) -> str:
    return previous.question.strip().rstrip(" ?.!")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


@runtime_checkable
class Rephrases(Protocol):
    """A reader that can rewrite a follow-up question itself, such as a language model."""

    def rephrase(self, question: str, turns: Sequence[Turn]) -> str:
        """The question as one that stands alone.

        Raises:
            ReaderError: the model gives no usable question.
        """


def rephrase(reader: object, question: str, turns: Sequence[Turn]) -> str:
    """The question as one that needs no conversation: by the reader if it is able to, else by the rule.

    Args:
        turns: earlier questions and answers, the last one last; none leaves the question as it is.
    """
    if not turns:
        return question
    if isinstance(reader, Rephrases):
        try:
            return reader.rephrase(question, turns)
        except ReaderError as error:
            log.warning("a follow-up question was rewritten by rule: %s", error.message)
    return standalone_question(question, turns[-1])


def rephrase_messages(question: str, turns: Sequence[Turn]) -> list[dict[str, str]]:
    """The chat messages that ask a language model for the question as one that stands alone."""
    history = [f"Question: {turn.question}\nAnswer: {turn.answer or 'not known'}" for turn in turns]
    task = (
        "Rewrite the last question so that it can be understood without the conversation: put names in "
        "place of pronouns and fill in what was left out. Change nothing else, and do not answer it. Reply "
        "with the question alone."
    )
    return [
        {"role": "system", "content": task},
        {"role": "user", "content": "\n\n".join([*history, f"Last question: {question}"])},
    ]


_OPEN = re.compile(rf"\W*(?:{_LEAD.pattern})?(?:{_PREPOSITION} )?{_WH}(?:'s)?\b", re.IGNORECASE)
_SECOND_CLAUSE = re.compile(rf",\s*{_AUXILIARY}\b", re.IGNORECASE)


def can_be_polar(question: str) -> bool:
    """Whether "yes" or "no" can answer a question: not if it asks who, where, when, why, how, what or which.

    Example:
        >>> [can_be_polar(q) for q in ("Is Oslo in Norway?", "Who was first?", "When it rains, is it wet?")]
        [True, False, True]
    """
    return _OPEN.match(question) is None or _SECOND_CLAUSE.search(question) is not None
