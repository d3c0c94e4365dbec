"""Text rules of open-domain question answering: tokens, answer normalisation, EM, F1, "has answer".

Every figure this system prints depends on these few functions, so each follows its official script
exactly and the rule set is named by a *profile*:

| profile | normalisation | exact match and F1 |
|---|---|---|
| `squad` | lower, no ASCII punctuation or articles, single spaces | SQuAD 1.1: F1 of "" and "" is 0 |
| `squad2` | as `squad` | SQuAD 2.0: F1 of "" and "" is 1 |
| `nq_open` | Unicode NFD first, then as `squad` | as `squad` |
| `kilt` | as `squad` | as `squad` |
| `hotpot` | as `squad` | F1 is 0 if a side is yes, no or noanswer and they differ |
| `trec_search` | answers are regular expressions | match anywhere; no F1 |
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

import regex

from rag.core.errors import ConfigError

Profile = Literal["squad", "squad2", "nq_open", "kilt", "hotpot", "trec_search"]

PROFILES: tuple[Profile, ...] = get_args(Profile)
REGEX_PROFILE: Literal["trec_search"] = "trec_search"
_HOTPOT_WORDS = frozenset({"yes", "no", "noanswer"})

_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
_ASCII_TOKEN = re.compile(r"[A-Za-z0-9]+|[!-/:-@\[-`{-~]")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_REGEX_FLAGS = regex.IGNORECASE | regex.UNICODE | regex.MULTILINE


def nfd(text: str) -> str:
    """Canonical decomposition: accents become separate characters."""
    return text if text.isascii() else unicodedata.normalize("NFD", text)


def simple_tokenize(text: str) -> list[str]:
    """Split as DrQA and DPR do: runs of letters, numbers and marks, or one other visible character.

    The text is taken as it is; apply `nfd` and `str.lower` around it where a rule asks for them.

    Source: Chen et al. 2017, "Reading Wikipedia to Answer Open-Domain Questions" (its
        SimpleTokenizer).

    Example:
        >>> simple_tokenize("The U.S. grew 3,5 %")
        ['The', 'U', '.', 'S', '.', 'grew', '3', ',', '5', '%']
    """
    return _ASCII_TOKEN.findall(text) if text.isascii() else _TOKEN.findall(text)


def normalize_answer(text: str, profile: Profile = "squad") -> str:
    """Normalise a short answer before comparison; a ConfigError for profiles that have no such
    rules.

    Only ASCII punctuation is deleted, and it is deleted before articles, as in the official
    scripts.

    Example:
        >>> normalize_answer("The U.S.A."), normalize_answer("a-b the-cat")
        ('usa', 'ab thecat')
    """
    if profile == REGEX_PROFILE or profile not in PROFILES:
        raise ConfigError(
            f"profile {profile!r} has no answer normalisation", hint=f"use one of {PROFILES}"
        )
    if profile == "nq_open":
        text = nfd(text)
    text = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(prediction: str, answers: Iterable[str], profile: Profile = "squad") -> bool:
    """Whether `prediction` equals one of `answers` after normalisation (or matches one of the
    expressions).

    Example:
        >>> exact_match("the Eiffel Tower!", ["Eiffel tower"])
        True
        >>> exact_match("in Alaska", ["Alaska|AK"], profile="trec_search")
        True
    """
    if profile == REGEX_PROFILE:
        return any(pattern.search(prediction) for pattern in _patterns(answers))
    normalized = normalize_answer(prediction, profile)
    return any(normalized == normalize_answer(answer, profile) for answer in answers)


class Overlap(NamedTuple):
    """F1, precision and recall of one prediction against one reference, each in [0, 1]."""

    f1: float = 0.0
    precision: float = 0.0
    recall: float = 0.0


def overlap(prediction: str, answer: str, profile: Profile = "squad") -> Overlap:
    """Token overlap (as multisets) of a prediction with one answer.

    Example:
        >>> overlap("New York City", "New York", "hotpot").f1
        0.8
    """
    predicted = normalize_answer(prediction, profile)
    expected = normalize_answer(answer, profile)
    if profile == "hotpot" and predicted != expected and {predicted, expected} & _HOTPOT_WORDS:
        return Overlap()
    predicted_tokens = predicted.split()
    expected_tokens = expected.split()
    if profile == "squad2" and not (predicted_tokens and expected_tokens):
        same = float(predicted_tokens == expected_tokens)
        return Overlap(same, same, same)
    n_shared = (Counter(predicted_tokens) & Counter(expected_tokens)).total()
    if not n_shared:
        return Overlap()
    precision = n_shared / len(predicted_tokens)
    recall = n_shared / len(expected_tokens)
    return Overlap(2 * precision * recall / (precision + recall), precision, recall)


def f1(prediction: str, answers: Iterable[str], profile: Profile = "squad") -> float:
    """Best token F1 over the accepted answers; 0 if there are none."""
    return max((overlap(prediction, answer, profile).f1 for answer in answers), default=0.0)


class AnswerMatcher:
    """Says whether a text contains one of a question's answers; made once, used on every passage.

    Args:
        answers: accepted answers, or regular expressions for "trec_search".
        profile: "trec_search" is CuratedTREC's rule (searched in the NFD text, ignoring case; an
            expression that does not compile never matches); "kilt" is a substring of the normalised
            text ("art" is in "party"), and has no places; all others are DPR's (the answer's tokens
            stand in the text, in order, ignoring case and Unicode form).

    Note: in DPR's script an answer without any token is "in" every text, because the empty sequence
        is part of all sequences; here it never matches.

    Example:
        >>> matcher = AnswerMatcher(["Café Paris"])
        >>> matcher.matches("The cafe\\u0301 Paris opened in 1890."), matcher.matches("A café in Paris")
        (True, False)
    """

    __slots__ = ("_needles", "_patterns", "profile")

    def __init__(self, answers: Iterable[str], profile: Profile = "squad") -> None:
        if profile not in PROFILES:
            raise ConfigError(
                f"profile {profile!r} compares no answers", hint=f"use one of {PROFILES}"
            )
        self.profile = profile
        self._patterns: list[regex.Pattern[str]] = []
        # What to find, by its fold of the longest word: a cheap necessary condition.
        self._needles: dict[str, str] = {}
        if profile == REGEX_PROFILE:
            self._patterns = _patterns(map(nfd, answers))
            return
        for answer in answers:
            if profile == "kilt":
                needle = normalize_answer(answer, "kilt")
                condition = needle
            else:
                words = " ".join(simple_tokenize(nfd(answer))).lower().split(" ")
                needle = f" {' '.join(words)} "
                condition = _fold(max(words, key=len))
            if condition:
                self._needles[needle] = condition

    def matches(self, text: str) -> bool:
        """Whether `text` (a passage without its title) contains an answer."""
        if self.profile == REGEX_PROFILE:
            text = nfd(text)
            return any(pattern.search(text) for pattern in self._patterns)
        if self.profile == "kilt":
            text = normalize_answer(text, "kilt")
            return any(needle in text for needle in self._needles)
        text = nfd(text)
        folded = _fold(text.lower()) if self._needles else ""
        candidates = [needle for needle, part in self._needles.items() if part in folded]
        if not candidates:
            return False
        # Tokens hold no spaces, so a run of tokens is a substring of the tokens joined by spaces.
        haystack = f" {' '.join(simple_tokenize(text)).lower()} "
        return any(needle in haystack for needle in candidates)

    def places(self, text: str) -> list[tuple[int, int]]:
        """First character and one past the last of every answer in `text`, by the rule of
        `matches`; each place once.

        Expressions are searched in `text` itself, not in its NFD form.

        Example:
            >>> AnswerMatcher(["new york", "York"]).places("New York is new.")
            [(0, 8), (4, 8)]
        """
        places: list[tuple[int, int]] = []
        if self.profile == REGEX_PROFILE:
            for pattern in self._patterns:
                places += [match.span() for match in pattern.finditer(text) if match[0]]
            return list(dict.fromkeys(places))
        matches = list(_TOKEN.finditer(text))
        words = [_fold(nfd(match[0]).lower()) for match in matches]
        for needle in self._needles:
            answer = list(map(_fold, needle.split()))
            for first in range(len(words) - len(answer) + 1):
                end = first + len(answer)
                if words[first] == answer[0] and words[first:end] == answer:
                    places.append((matches[first].start(), matches[end - 1].end()))
        return sorted(set(places))


def _fold(lowered: str) -> str:
    """Unify the two lower-case sigmas: which one `str.lower` gives depends on the characters around
    it.
    """
    return lowered if lowered.isascii() else lowered.replace("ς", "σ")


def _patterns(answers: Iterable[str]) -> list[regex.Pattern[str]]:
    """The expressions that compile."""
    return list(filter(None, map(_compiled, answers)))


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> regex.Pattern[str] | None:
    if not pattern:
        return None
    try:
        return regex.compile(pattern, _REGEX_FLAGS)
    except regex.error:
        return None


def most_matched(matcher: AnswerMatcher, texts: Iterable[str]) -> str:
    """The string of some texts that an answer's pattern matches most often; "" where it matches
    none.

    Source: Lewis et al. 2020, "Retrieval-Augmented Generation", appendix D (CuratedTREC's targets).
    """
    counts = Counter[str]()
    for text in texts:
        counts.update(text[start:end] for start, end in matcher.places(text))
    return max(counts, key=lambda string: counts[string], default="")
