"""Groups of questions by which figures are broken down: wording, answer, hops, rank of the gold passage,
words it shares with the question, overlap with training.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rag.core.arrays import Float64
from rag.core.errors import DataError
from rag.core.types import Passage, Question
from rag.data.text import normalize_answer, simple_tokenize
from rag.eval.gold import gold_keys
from rag.metrics.significance import bootstrap

_WH = ("who", "whom", "whose", "what", "which", "when", "where", "why", "how")
_YES_NO = frozenset((
    "is", "are", "was", "were", "am", "do", "does", "did", "has", "have", "had", "can", "could", "will",
    "would", "shall", "should", "may", "might", "must"
))  # fmt: skip
_FUNCTION_WORDS = _YES_NO.union(
    *(_WH, ("that", "these", "those", "this", "there", "it", "its", "he", "him", "his")),
    ("she", "her", "they", "them", "their", "i", "you", "we", "a", "an", "the", "and", "or", "but", "not"),
    ("of", "in", "on", "at", "by", "for", "from", "to", "with", "without", "as", "into", "about", "after"),
    ("before", "during", "between", "if", "than", "then", "be", "been", "being", "many", "much", "s"),
)
_MONTHS = (
    r"jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|"
    r"sept?(ember)?|oct(ober)?|nov(ember)?|dec(ember)?"
)
_YEAR = re.compile(r"(1[0-9]|20)\d\d(s|–\d+|-\d+)?")
_DATE = re.compile(
    rf"\b({_MONTHS})\b.*\d|\d.*\b({_MONTHS})\b|\d{{1,4}}[-/]\d{{1,2}}[-/]\d{{1,4}}", re.IGNORECASE
)
_NUMBER_WORDS = frozenset((
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "hundred", "thousand", "million", "billion"
))  # fmt: skip


def question_word(text: str) -> str:
    """The question word: "who", "how many", …, "yes/no", or "other".

    Example:
        >>> [question_word(q) for q in ("In which year was he born?", "how many legs", "Is it?")]
        ['which', 'how many', 'yes/no']
    """
    words = re.findall(r"[a-z]+", text.lower().replace("'s", ""))
    if words and words[0] in _YES_NO:
        return "yes/no"
    for word, following in pairwise([*words, ""]):
        if word in _WH:
            if word == "how" and following in ("many", "much", "long", "old", "far", "tall", "big"):
                return "how many"
            return "who" if word in ("whom", "whose") else word
    return "other"


def answer_type(answer: str) -> str:
    """Rough type of a short answer, judged by its form: yes/no, year, date, number, name, lower-case phrase.

    Example:
        >>> [answer_type(a) for a in ("yes", "1997", "4 July 1776", "1,200 feet", "Niels Bohr", "light")]
        ['yes/no', 'year', 'date', 'number', 'name', 'phrase']
    """
    text = answer.strip()
    if text.lower() in ("yes", "no"):
        return "yes/no"
    if _YEAR.fullmatch(text):
        return "year"
    if _DATE.search(text):
        return "date"
    words = text.split()
    if not words:
        return "none"
    if re.match(r"[$£€]?\d", text) or words[0].lower() in _NUMBER_WORDS:
        return "number"
    return "name" if any(word[:1].isupper() for word in words) else "phrase"


def answer_length(answer: str) -> str:
    """Length of an answer in words, in four classes."""
    words = len(answer.split())
    return "1 word" if words <= 1 else "2 words" if words == 2 else "3–5 words" if words <= 5 else "6+ words"


def hop_count(question: Question) -> int | None:
    """Number of passages that the answer needs: from gold passages, gold titles or supporting facts; None if
    unknown."""
    if question.hops is not None:
        return question.hops
    if question.gold_are_alternatives:  # alternatives: one is enough
        return 1 if question.gold_passage_ids else None
    return len(gold_keys(question)[1]) or None


def rank_bucket(rank: int | None) -> str:
    """Class of the rank at which an answer was first retrieved (1 is best); None: not retrieved."""
    if rank is None:
        return "not retrieved"
    classes = ((1, "1"), (5, "2–5"), (20, "6–20"), (100, "21–100"))
    return next((label for last, label in classes if rank <= last), "> 100")


def shared_words(question: str, gold: Sequence[Passage]) -> str | None:
    """Class of the share of a question's words, without function words, that its gold passages repeat.

    Returns:
        None if the gold passages are unknown, or the question consists of function words.

    Example:
        >>> shared_words("Who built the old mill?", [Passage("1", "Mill", "It was built in 1804.")])
        '50–74 %'
    """
    words = {word for word in map(str.lower, simple_tokenize(question)) if word[0].isalnum()}
    words -= _FUNCTION_WORDS
    if not gold or not words:
        return None
    held: set[str] = set()
    for passage in gold:
        held.update(map(str.lower, simple_tokenize(f"{passage.title} {passage.text}")))
    share = len(words & held) / len(words)
    classes = ((1.0, "all"), (0.75, "75–99 %"), (0.5, "50–74 %"), (0.25, "25–49 %"))
    return next((label for least, label in classes if share >= least), "under 25 %")


@dataclass(slots=True)
class TrainingOverlap:
    """Tells which test questions and answers occur in a training set.

    A question overlaps if it uses the same words as a training question (as a set, normalised); an answer
    overlaps if one accepted answer equals a training answer after normalisation.

    Source: Lewis, Stenetorp and Riedel, EACL 2021, section 2.
    Note: they label question paraphrases by hand; here only equal word sets count, which finds fewer.
    """

    questions: set[int] = field(default_factory=set)
    answers: set[int] = field(default_factory=set)

    @classmethod
    def from_training(cls, questions: Iterable[Question]) -> TrainingOverlap:
        """Collect a training set; keeps two hashes per question, not the text."""
        overlap = cls()
        for question in questions:
            overlap.questions.add(_words_hash(question.text))
            overlap.answers.update(hash(normalize_answer(answer)) for answer in question.answers)
        overlap.answers.discard(hash(""))
        return overlap

    def group(self, question: Question) -> str:
        """One of "question seen", "answer seen", "nothing seen"."""
        if _words_hash(question.text) in self.questions:
            return "question seen"
        if any(hash(normalize_answer(answer)) in self.answers for answer in question.answers):
            return "answer seen"
        return "nothing seen"


def _words_hash(text: str) -> int:
    return hash(frozenset(normalize_answer(text).split()))


def question_groups(
    question: Question,
    *,
    first_rank: int | None = None,
    regex: bool = False,
    gold: Sequence[Passage] = (),
    overlap: TrainingOverlap | None = None,
) -> dict[str, str]:
    """Every group a question belongs to, by name of the breakdown.

    Args:
        first_rank: rank at which an answer was first retrieved, 1 is best, None if not retrieved.
        regex: the answers are patterns, whose form is no type of answer.
    """
    groups = {"question word": question_word(question.text), "gold rank": rank_bucket(first_rank)}
    if question.answers and not regex:
        shortest = min(question.answers, key=lambda answer: (len(answer.split()), len(answer)))
        groups["answer type"] = answer_type(shortest)
        groups["answer length"] = answer_length(shortest)
    elif question.is_impossible:
        groups["answer type"] = "no answer"
    hops = hop_count(question)
    known = {
        "hops": None if hops is None else str(hops),
        "question type": question.kind,
        "question level": question.level,
        "shared words": shared_words(question.text, gold),
        "training overlap": None if overlap is None else overlap.group(question),
    }
    return groups | {name: group for name, group in known.items() if group}


def field_groups(question: Question, names: Sequence[str]) -> dict[str, str]:
    """The question's values of these fields of its source.

    Raises:
        DataError: it has no such field.

    Example:
        >>> field_groups(Question("1", "When?", meta={"format": "pdf", "page": None}), ["format", "page"])
        {'format': 'pdf', 'page': 'none'}
    """
    stated = {"kind": question.kind, "level": question.level}
    held = {name: value for name, value in stated.items() if value} | dict(question.meta)
    for name in names:
        if name not in held:
            known = ", ".join(held)
            raise DataError(
                f"question {question.id} has no field {name!r}, by which figures were to be broken down",
                hint=f"its fields are {known}",
            )
    return {name: "none" if held[name] is None else str(held[name]) for name in names}


def breakdown_table(
    groups: Mapping[str, Sequence[int]],
    values: Float64,
    names: Sequence[str],
    *,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Figures of every group, largest group first.

    Args:
        groups: rows of each group's questions in `values`.
        values: (n, m) figures per question, NaN where undefined.

    Returns:
        Rows `{"group", "n", "figures": {name: interval}}`.
    """
    table = []
    for group, rows in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        intervals = bootstrap(values[rows], seed=seed)
        figures = {name: interval.to_json() for name, interval in zip(names, intervals, strict=True)}
        table.append({"group": group, "n": len(rows), "figures": figures})
    return table
