"""Replies of language models, read as leniently as they are written.

A model that was asked for JSON, or for a short line, may reply in prose, and stop in the middle.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

from rag.core.errors import ReaderError
from rag.core.types import as_unicode

Style = Literal["short", "cited"]

Statement = tuple[str, tuple[int, ...]]
"""A statement of a reply, and the numbers of the passages that are cited for it, from 1,
unchecked.
"""

_REFUSAL = re.compile(
    r"(?:null|none|unknown|n/a|not in the passages|no answer|unanswerable)?[.! ]*\Z"
    r"|(?:i'm )?(?:sorry,? |unfortunately,? |based on the passages,? )*(?:but )?(?:"
    r"i (?:do not|don't|cannot|can't|could not|couldn't) (?:know|answer|find|tell|determine|say|see)"
    r"|(?:the |these )?(?:given |provided )?(?:passages?|context|texts?|documents?) (?:do|did|does)"
    r"(?: not|n't) "
    r"|there is no (?:information|answer|mention)|not (?:mentioned|stated|given|specified|provided)"
    r"|(?:it |this |the answer )?(?:is not (?:stated|mentioned|given|in)|cannot be (?:determined|answered)))",
    re.IGNORECASE,
)
# Where the prompt begins the thought, the reply has its end alone.
THOUGHT = re.compile(r"\A(?:(?!<think>).)*?</think>|<think>.*?(?:</think>|\Z)", re.DOTALL)
CITATION = r"\[(\d{1,4}(?:\s*[,;]\s*\d{1,4})*)\]"
_CITED = re.compile(rf"\s*{CITATION}")
_PREFIX = re.compile(
    r"\b(?:the |short |final |correct )*answer(?: to (?:the|this|your) question)?(?: is:?|:)\s*",
    re.IGNORECASE,
)
FENCE = re.compile(r"</?passage \w* ?\d*>")
# JSON that is cut off, or no JSON.
_BROKEN = re.compile(r'.*?"answer"\s*:\s*"?(.*?)(?:"\s*[,}].*)?', re.DOTALL)
_CONTRAST = re.compile(r"\b(?:but|however),? (.*\[\d.*)", re.IGNORECASE)


def parse_reply(text: str, style: Style = "short") -> tuple[Statement, ...]:
    """What a reply says: the JSON object that was asked for, perhaps with text around it or cut off,
    or sentences, perhaps with citations.

    Nothing for "not in the passages". Of reasoning that comes to an answer, a short reply has the
    answer alone.

    Raises:
        ReaderError: the reply is empty.

    Example:
        >>> parse_reply('Sure: {"answer": "the Black Forest", "passages": [2]}')
        (('the Black Forest', (2,)),)
        >>> parse_reply("It rises in the Black Forest [2]. It ends in a sea [1, 3].")
        (('It rises in the Black Forest.', (2,)), ('It ends in a sea.', (1, 3)))
        >>> parse_reply("Passage 2 speaks of hills. So the answer is: Black Forest [2]")
        (('Black Forest', (2,)),)
        >>> parse_reply("I don't know."), parse_reply('{"answer": null}')
        ((), ())
    """
    # A reply that was cut inside an emoji ends in half a character.
    text = FENCE.sub(" ", THOUGHT.sub("", as_unicode(text))).strip()
    for value in _json_values(text):
        if isinstance(value, dict) and "answer" in value:
            return _short_reply(value["answer"], value.get("passages"))
    broken = _BROKEN.fullmatch(text)
    if broken is not None:
        text = broken[1]
    elif text.startswith(("{", '["')):
        text = ", ".join(_texts_of(next(_json_values(text), text)))
    words = " ".join(text.replace("```", " ").replace("**", "").split())
    if not re.search(r"\w", words):
        hint = "raise answer_tokens if the model reasons before it answers, or choose another model"
        raise ReaderError("the reply is empty", hint=hint)
    conclusion = _PREFIX.split(words)[-1]
    if style == "short" and re.search(r"\w", conclusion):
        words = conclusion
    if _is_refusal(_CITED.sub("", words)):
        contrast = _CONTRAST.search(words)
        if contrast is None:
            return ()
        words = contrast[1]
    statements = _cited_statements(words)
    if len(statements) != 1:
        return tuple(statements)
    # A few words are no sentence.
    [(statement, numbers)] = statements
    return ((_without_stop(statement), numbers),)


def _json_values(text: str) -> Iterator[Any]:
    """The JSON objects and lists in a text."""
    for bracket in re.finditer(r'\{|\["', text):
        try:
            yield json.JSONDecoder().raw_decode(text, bracket.start())[0]
        except (ValueError, RecursionError):
            # No JSON, or numbers or nesting beyond Python's limits.
            continue


def _texts_of(value: Any) -> list[str]:
    """All words and numbers in a JSON value, in their order."""
    if isinstance(value, bool):
        return ["yes" if value else "no"]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [text for item in value for text in _texts_of(item)]
    return [] if value is None else [as_unicode(str(value)).strip()]


def _cited_statements(words: str) -> list[Statement]:
    """The statements of a reply, each ended by its citations, or by the reply's end."""
    statements: list[Statement] = []
    prefix = _PREFIX.match(words)
    begin = prefix.end() if prefix else 0
    for cited in re.finditer(rf"(?:{_CITED.pattern})+([.!?])?|\Z", words):
        statement = words[begin : cited.start()].strip('"“” ')
        numbers = _numbers(cited[0])
        if re.search(r"\w", statement):
            ended = statement if statement[-1] in ".!?" else statement + (cited.group(2) or "")
            statements.append((ended, numbers))
        elif statements:
            text, earlier = statements[-1]
            statements[-1] = text, tuple(dict.fromkeys((*earlier, *numbers)))
        begin = cited.end()
    return statements


def _numbers(text: str) -> tuple[int, ...]:
    """The different numbers in a text, as far as they may be those of passages."""
    return tuple(dict.fromkeys(map(int, re.findall(r"\b\d{1,4}\b", text))))


def _is_refusal(words: str) -> bool:
    return _REFUSAL.match(words.replace("’", "'")) is not None


def _without_stop(words: str) -> str:
    return words.rstrip(".") if words.count(".") == 1 else words


def _short_reply(answer: Any, passages: Any) -> tuple[Statement, ...]:
    words = ", ".join(_texts_of(answer))
    return () if _is_refusal(words) else ((_without_stop(words), _numbers(str(passages))),)
