"""Prompts for language models, and their replies: answers that cite their passages."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rag.core.types import Passage
from rag.core.unicode import as_unicode
from readers.protocols import Citation, ReadAnswer, ReadResult
from readers.spans import find_span, share_of_words

_INSTRUCTIONS = (
    "Answer the question from the numbered passages alone, never from what you know otherwise. Reply with "
    'one JSON object and nothing else: {"answer": …, "passages": […]}. "answer" is as short as possible: a '
    'name, a date, a number, a few words copied from a passage, or yes or no. "passages" lists the '
    "numbers of the passages that say so. If the passages do not say it, reply "
    '{"answer": null, "passages": []}.'
)
_QUOTING = "Answer the question with a few words copied from the passages, and with nothing else."
_UNKNOWN = {"", "null", "none", "unknown", "n/a", "not in the passages", "no answer", "unanswerable"}
_REFUSAL = re.compile(
    r"(?:i'm )?(?:sorry,? |unfortunately,? |based on the passages,? )*(?:but )?(?:"
    r"i (?:do not|don't|cannot|can't|could not|couldn't) (?:know|answer|find|tell|determine|say|see)"
    r"|(?:the |these )?(?:given |provided )?(?:passages?|context|texts?|documents?) (?:do|did|does)"
    r"(?: not|n't) "
    r"|there is no (?:information|answer|mention)|no (?:information|mention)\b"
    r"|not (?:mentioned|stated|given|specified|provided|enough information)"
    r"|(?:it |this |the answer )?(?:is not (?:stated|mentioned|given|in)|cannot be (?:determined|answered))"
    r"|insufficient information)",
    re.IGNORECASE,
)
_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_BRACKETED = re.compile(r"\s*\[(\d{1,4}(?:\s*[,;]\s*\d{1,4})*)\]")
_NAMED_PASSAGES = re.compile(r"\bpassages? \[?(\d{1,4})\b", re.IGNORECASE)
_BARE = re.compile(r'"answer"\s*:\s*"((?:[^"\\]|\\["\\/bfnrt])*)"')
_QUOTED = re.compile(r'^["“]([^"“”]+)["”][\s.]*(?:\(?(?:passages?|from|see)\b.*)?$', re.IGNORECASE)
_PREFIX = re.compile(
    r"(?:based on the (?:numbered )?passages?, )?(?:the |short |final |correct )*answer"
    r"(?: to the question)?(?: is:?|:)\s*",
    re.IGNORECASE,
)
_LISTED = re.compile(r"^(?:(?:1[.)]|[-*•])\s+|(?=\[\d{1,4}\]\s))")  # a passage's number stays
_COPULA = re.compile(r"\b(?:is|was|are|were)\b:?\s+(?:(?:\w+\s+)?by\s+)?(?=\S)", re.IGNORECASE)
_SUPPORTED_SHARE = 0.5  # an answer is supported if passages have this share of its words
_DOUBT = 0.2  # factor on the confidence of an unsupported answer


class MalformedReply(ValueError):
    """A reply in which no answer can be found."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's completion of a prompt.

    Attributes:
        text: the reply.
        tokens: its tokens with the log-probability of each, if the model returns them.
    """

    text: str
    tokens: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """A parsed reply.

    Attributes:
        answer: the answer; "" for "not in the passages".
        passages: the passage numbers that it cites, from 1, unchecked.
    """

    answer: str
    passages: tuple[int, ...]


def grounded_messages(question: str, passages: Sequence[Passage]) -> list[dict[str, str]]:
    """The chat messages that ask `question` about numbered passages."""
    numbered = [
        f"[{number}] {passage.title + ': ' if passage.title else ''}{passage.text}"
        for number, passage in enumerate(passages, start=1)
    ]
    content = "\n".join([*numbered, "", f"Question: {question}"])
    return [{"role": "system", "content": _INSTRUCTIONS}, {"role": "user", "content": content}]


def quoting_messages(question: str, passages: Sequence[Passage]) -> list[dict[str, str]]:
    """The chat messages that ask for a few words of the passages, without citations.

    The passages have no numbers, because small models continue the numbering and invent a next passage.
    """
    texts = [f"{passage.title + ': ' if passage.title else ''}{passage.text}" for passage in passages]
    content = "\n\n".join([*texts, f"Question: {question}"])
    return [{"role": "system", "content": _QUOTING}, {"role": "user", "content": content}]


def visible_text(text: str) -> str:
    """A reply without the model's thoughts."""
    return _THOUGHT.sub("", text).strip()


_MOST_DIGITS = 4  # of a cited passage number


def parse_reply(text: str) -> Reply:
    """Parse a reply: the requested JSON object, perhaps with text around it, or an answer in plain words.

    Raises:
        MalformedReply: it is empty, or JSON without an answer or cut off.

    Example:
        >>> parse_reply('Sure: {"answer": "the Black Forest", "passages": [2]}')
        Reply(answer='the Black Forest', passages=(2,))
        >>> parse_reply('Answer: the Black Forest [2].')
        Reply(answer='the Black Forest', passages=(2,))
        >>> parse_reply("I don't know.").answer, parse_reply('{"answer": null, "passages": []}').answer
        ('', '')
    """
    text = visible_text(as_unicode(text))  # a reply cut inside an emoji ends in half a character
    decoder, start = json.JSONDecoder(), text.find("{")
    while start >= 0:
        try:
            value, _ = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):  # no JSON, or numbers or nesting beyond Python's limits
            value = None
        if isinstance(value, dict) and "answer" in value:
            return _reply(value["answer"], value.get("passages"))
        start = text.find("{", start + 1)
    words = " ".join(text.replace("```", " ").replace("**", "").split())
    if _LISTED.match(text):  # the first entry of a list is the answer
        words = _LISTED.sub("", " ".join(text.splitlines()[0].replace("**", "").split()))
    if (bare := _BARE.search(words)) is not None:  # the object without braces, or cut off behind its answer
        numbers = re.findall(r"\d+", words[bare.end() :])
        try:
            answer = json.loads(f'"{bare[1]}"', strict=False)
        except ValueError as error:
            raise MalformedReply(f"expected a JSON object with an answer, found {text[:120]!r}") from error
        return _reply(answer, numbers)
    if not words or '"answer"' in words or re.match(r"\{|\[(?!\d{1,4}[],;])", words):
        raise MalformedReply(f"expected an answer, or a JSON object with one, found {text[:120]!r}")
    numbers = [number for found in _BRACKETED.findall(words) for number in re.findall(r"\d+", found)]
    numbers += _NAMED_PASSAGES.findall(words)
    words = _BRACKETED.sub("", words)
    if not _REFUSAL.match(words.replace("’", "'")):
        words = _PREFIX.sub("", words, count=1)
    if (quoted := _QUOTED.match(words)) is not None:
        words = quoted[1]
    return _reply(words.strip('"“” '), numbers)


def without_question(answer: str, question: str) -> str:
    """An answer without a beginning that only repeats the question; as it is where there is none.

    Example:
        >>> without_question("The capital of Norway is Oslo", "what is norway's capital")
        'Oslo'
        >>> without_question('"Love Is All" was written by Glover', "who wrote love is all")
        'Glover'
        >>> without_question("The king is dead", "who lives")
        'The king is dead'
    """
    for verb in reversed(list(_COPULA.finditer(answer))):
        before = answer[: verb.start()]
        if re.search(r"\w", before) and share_of_words(before, [question]) == 1:
            return answer[verb.end() :].strip('"“” ')
    return answer


def _reply(answer: object, passages: object) -> Reply:
    if isinstance(answer, list) and answer and all(isinstance(item, str | int | float) for item in answer):
        answer = ", ".join(map(str, answer))
    if answer is not None and not isinstance(answer, str | int | float):
        raise MalformedReply(f'"answer" is {str(answer)[:80]!r}, expected a string or null')
    words = "" if answer is None else as_unicode(str(answer)).strip()
    if isinstance(answer, bool):
        words = "yes" if answer else "no"
    named = passages if isinstance(passages, list) else [passages]
    bare = [str(number).strip("[] ") for number in named]
    numbers = [int(number) for number in bare if number.isdecimal() and len(number) <= _MOST_DIGITS]
    plain = words.replace("’", "'")
    is_unknown = plain.lower().rstrip(".") in _UNKNOWN or _REFUSAL.match(plain)
    if not re.search(r"\w\.\w", words):  # no abbreviation, which keeps its full stop
        words = words.rstrip(".")
    return Reply("" if is_unknown else words, tuple(dict.fromkeys(numbers)))


def to_result(reply: Reply, completion: Completion, passages: Sequence[Passage]) -> ReadResult:
    """The reply as an answer with evidence and all its citations.

    Evidence is the first cited passage that contains the answer literally; otherwise, if the cited passages
    contain the answer's words, the first of them, without a span. Otherwise it is any passage that contains
    the answer or, if the reply cites no passage, the one that has most of its words, at least half of them;
    the answer's `note` states this. An answer that no passage supports keeps the first cited passage as
    evidence, with `is_supported` False and "no answer" as the likelier outcome. Without any evidence there is
    no answer.

    The confidence is the model's probability of the reply (`exp` of the summed log-probabilities) if the
    model returns it, otherwise 0.5. Neither is calibrated.
    """
    probability = math.exp(min(0.0, sum(p for _, p in completion.tokens))) if completion.tokens else 0.5
    if not reply.answer:
        return ReadResult((), probability if completion.tokens else 1.0)
    is_quotable = reply.answer.lower() not in ("yes", "no")
    spans = [find_span(reply.answer, passage.text) if is_quotable else None for passage in passages]
    cited = [number - 1 for number in reply.passages if 1 <= number <= len(passages)]
    quoting = [place for place, span in enumerate(spans) if span is not None]
    texts = [f"{passages[place].title} {passages[place].text}" for place in cited]
    is_worded = not is_quotable or share_of_words(reply.answer, texts) >= _SUPPORTED_SHARE
    evidence = next((place for place in cited if spans[place] is not None), None)
    if evidence is None:
        evidence = cited[0] if cited and is_worded else next(iter([*quoting, *cited]), None)
    if evidence is None and not reply.passages and share_of_words(reply.answer, []) == 0:  # it has words
        shares = [share_of_words(reply.answer, [f"{p.title} {p.text}"]) for p in passages]
        if is_quotable and (is_worded := max(shares) >= _SUPPORTED_SHARE):
            evidence = shares.index(max(shares))
    if evidence is None:
        return ReadResult((), 1.0)
    is_supported = spans[evidence] is not None or is_worded
    notes = []
    if wrong := [str(number) for number in reply.passages if not 1 <= number <= len(passages)]:
        notes.append(f"it cites passage {', '.join(wrong)}, but was shown {len(passages)}")
    if not is_supported:
        notes.append("the passages that it cites do not say it")
        probability *= _DOUBT
    elif evidence not in cited:
        stands = "it stands" if spans[evidence] else "its words stand"
        notes.append(f"{stands} in a passage that it does not cite")
    start, end = spans[evidence] or (None, None)
    answer = ReadAnswer(
        reply.answer if start is None else passages[evidence].text[start:end],
        probability,
        probability,
        evidence,
        start,
        end,
        citations=tuple(Citation(place, *(spans[place] or (None, None))) for place in cited),
        is_supported=is_supported,
        note="; ".join(notes),
    )
    return ReadResult((answer,), 0.0 if is_supported else 1.0 - probability)
