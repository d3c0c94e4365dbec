"""Questions of two parts, such as "When and where was Ada born?", as two questions.

The rule is for English and leaves alone what it is not sure of: a question that is not split gets one answer,
as before; one that is split wrongly gets none.
"""

import re

from readers.answer_forms import AUXILIARY

_PREPOSITION = r"(?:in|on|at|of|for|from|to|by|with|since|until)"
_MEASURE = r"how (?:many|much|long|old|far|tall|high|big|large|heavy|often|fast|deep|wide)"
_ASKS = (
    rf"(?:(?:{_PREPOSITION} )?(?:what|which) (?:year|month|day|date|city|town|country|state|place|county)"
    rf"|when|where|why|by whom|{_MEASURE}|how(?! {AUXILIARY}\b.*\bcompare))"
)
_SAME_CLAUSE = re.compile(
    rf"(?P<one>{_ASKS}|what) and (?P<two>{_ASKS}) (?P<rest>{AUXILIARY}(?:n't)? .+)", re.IGNORECASE
)
_TRAILING = re.compile(
    rf"(?P<one>{_ASKS}|what) (?P<rest>{AUXILIARY} .+?),? and (?P<two>{_ASKS})", re.IGNORECASE
)
_DONE = re.compile(
    r"who (?P<did>[a-z]+) (?P<what>.+?),? and (?P<two>when|where|why|how|in what year)", re.IGNORECASE
)
_TWO_CLAUSES = re.compile(
    rf"(?P<one>(?:{_PREPOSITION} )?(?:who(?:se|m)?|what|which|when|where|why|how)\b.+?),? and "
    rf"(?P<two>(?:{_ASKS} {AUXILIARY}|(?:what|which) (?:[a-z]+ ){{0,2}}{AUXILIARY}"
    rf"|who (?:[a-z]+ed|{AUXILIARY}))\b .+)",
    re.IGNORECASE,
)
_EMBEDDED = re.compile(
    r"\b(?:between|know|knows|tell|say|says|said|explain|explains|determine|determines|about|of|on|that) "
    r"(?:who|what|which|when|where|why|how)\b",
    re.IGNORECASE,
)
_VAGUE = re.compile(r"\b(?:this|that|these|those|so)\b", re.IGNORECASE)
_PRONOUN = re.compile(r"\b(?:he|him|his|she|her|it|its|they|them|their|there)\b", re.IGNORECASE)
_PLURAL_END = re.compile(r"[^uis]s$")
_NAME = r"(?:[Tt]he )?[A-Z0-9\"“][\w.'’”\"-]*(?: (?:(?:of|de|la|the|for|in) )*[A-Z0-9\"“][\w.'’”\"-]*)*"
_BOTH = re.compile(
    rf"(?P<asks>(?i:(?:in )?(?:what|which) year|when|where|how (?:old|tall|high|long|big|large|far))) "
    rf"(?P<aux>(?i:were|are|did)) (?:both )?(?P<a>{_NAME}) and (?P<b>{_NAME})(?: both| each)?"
    r"(?P<does> (?:founded|born|built|established|created|released|published|written|opened|invented"
    r"|introduced|discovered|located|completed|launched|die)\b(?:(?! and ).)*)?"
)
_ONE_OF = {"were": "was", "are": "is", "did": "did"}
_PARTICIPLES = {
    "wrote": "written", "sang": "sung", "drew": "drawn", "made": "made", "built": "built", "won": "won",
    "took": "taken", "led": "led", "sold": "sold", "broke": "broken", "began": "begun", "shot": "shot",
    "taught": "taught", "bought": "bought", "found": "found", "set": "set", "sent": "sent", "spoke": "spoken",
}  # fmt: skip
_PLURAL = re.compile(r"(?:the )?(?:[a-z-]+ )*[a-z]+(?<!s)s(?: of\b.*)?", re.IGNORECASE)


def two_parts(question: str) -> tuple[str, str] | None:
    """The two questions that a question consists of; None if it is one question, or not surely two.

    Recognised are two question words before one clause or around it, two clauses, and one clause about two
    names that holds for each of them.

    Example:
        >>> two_parts("When and where was Ada Lovelace born?")
        ('When was Ada Lovelace born?', 'Where was Ada Lovelace born?')
        >>> two_parts("Who wrote Faust and when?")
        ('Who wrote Faust?', 'When was Faust written?')
        >>> two_parts("When were Intel and IBM founded?")
        ('When was Intel founded?', 'When was IBM founded?')
        >>> two_parts("Who invented the telephone, and when was it patented?")
        ('Who invented the telephone?', 'Who invented the telephone? When was it patented?')
        >>> two_parts("What is the difference between when and where?")
    """
    text = " ".join(question.split()).rstrip(" ?.!")
    if not text or " and " not in text or "? " in text or _EMBEDDED.search(text):
        return None
    if both := _BOTH.fullmatch(text):
        aux = _ONE_OF[both["aux"].lower()]
        does = both["does"] or ""
        if (aux == "did") != (does.startswith(" die")) or (not does and "'" in both["b"]):
            return None  # "did A and B meet" is one event; only "did A and B die" is two
        if _PLURAL_END.search(both["b"]) and _length(both["a"]) < _length(both["b"]):
            return None  # one name with "and", such as "the Southern and Northern Dynasties"
        return _as_question(f"{both['asks']} {aux} {both['a']}{does}"), _as_question(
            f"{both['asks']} {aux} {both['b']}{does}"
        )
    if same := _SAME_CLAUSE.fullmatch(text) or _TRAILING.fullmatch(text):
        if same["one"].lower() == "what" and not re.match(
            r"(?:is|are|was|were)\b", same["rest"], re.IGNORECASE
        ):
            return None  # "What did Ann paint and when?": "When did Ann paint?" asks less
        return _as_question(f"{same['one']} {same['rest']}"), _as_question(f"{same['two']} {same['rest']}")
    if done := _DONE.fullmatch(text):
        did = done["did"].lower()
        participle = _PARTICIPLES.get(did) or (did if did.endswith("ed") else "")
        if not participle:
            return None
        aux = "were" if _PLURAL.fullmatch(done["what"]) else "was"
        first = text[: done.start("two")].rstrip(" ,").removesuffix(" and").rstrip(" ,")
        return _as_question(first), _as_question(f"{done['two']} {aux} {done['what']} {participle}")
    if clauses := _TWO_CLAUSES.fullmatch(text):
        first, second = _as_question(clauses["one"]), _as_question(clauses["two"])
        if len(clauses["one"].split()) < 3 or not _is_clause(clauses["one"]) or _VAGUE.search(clauses["two"]):
            return None
        return first, f"{first} {second}" if _PRONOUN.search(second) else second
    return None


def _length(name: str) -> int:
    return len(name.lower().removeprefix("the ").split())


def _is_clause(words: str) -> bool:
    """Whether a verb can stand in these words, which open with a question word."""
    return re.search(rf"\b(?:{AUXILIARY}|[a-z]+ed|{'|'.join(_PARTICIPLES)}|[a-z]+s)\b", words) is not None


def _as_question(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}?"
