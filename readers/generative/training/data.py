"""Training questions with answers and passages, merged from all files."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rag.core.errors import DataError
from rag.core.log import get_logger
from rag.data.examples import Candidate, Example, read_examples
from rag.data.text import AnswerMatcher, most_matched

_SHAPE = (
    "expected {question, answers, ctxs: [{title, text}]} of `rag retrieve` or FiD, or {question, answers, "
    "positive_ctxs, hard_negative_ctxs} of `rag mine` or DPR"
)


def merged_examples(paths: Sequence[Path]) -> list[Example]:
    """Questions of all files; those that several files hold get the passages of all.

    Positives come first, then the other passages by rank. Each states whether it contains an answer, and
    retrieved ones have a rank. Answers are those that a generator should give: for a regular expression the
    string that it matches most often. Questions without an answer or a passage are left out and counted.

    Raises:
        DataError: no such file, another shape, an answer that is not text (with its place), or no question
            with answers and passages.
    """
    parts: dict[str, list[Example]] = {}
    for path in paths:
        for example in read_examples(path, needs="passages"):
            parts.setdefault(example.question, []).append(example)
    made = [one for same in parts.values() if (one := _merged(same)) is not None]
    if not made:
        names = ", ".join(map(str, paths))
        raise DataError(f"{names}: no question with answers and passages", hint=_SHAPE)
    if len(made) < len(parts):
        get_logger(__name__).warning(
            "%d of %d questions left out: no answer, or no passage with a text",
            len(parts) - len(made),
            len(parts),
        )
    return made


def best_ranked(example: Example, count: int) -> list[Candidate]:
    """The best `count` passages by rank; if they have no ranks, positives come first."""
    ranked = [candidate for candidate in example.candidates if candidate.rank is not None]
    return sorted(ranked, key=lambda c: c.rank or 0)[:count] or list(example.candidates[:count])


def _merged(same: Sequence[Example]) -> Example | None:
    """Examples of one question as one."""
    targets = [example.target_answer for example in same if example.target_answer]
    answers = dict.fromkeys(a.strip() for e in same for a in targets or e.answers if a.strip())
    given = [candidate for example in same for candidate in example.candidates]
    positives = _by_text(c for c in given if c.role == "positive")
    retrieved = _by_text(c for c in given if c.role == "retrieved")
    others = _by_text(
        c for e in same for c in (*e.of_role("retrieved"), *e.of_role("hard_negative", "negative"))
    )
    if not answers or not given:
        return None
    is_regex = any(example.answers_are_regex for example in same)
    matcher = AnswerMatcher(answers, "regex" if is_regex else "tokens")
    if is_regex:  # the target is a string that the pattern matches
        found = most_matched(matcher, (candidate.passage.text for candidate in given))
        if not found:
            return None
        answers = {found: None}
    ranks = {key: rank for rank, key in enumerate(retrieved, start=1)}
    candidates = []
    for key, candidate in {**positives, **{k: c for k, c in others.items() if k not in positives}}.items():
        holds = True if key in positives else candidate.has_answer
        if holds is None:
            holds = matcher.matches(candidate.passage.text)
        candidates.append(replace(candidate, has_answer=holds, rank=ranks.get(key)))
    return replace(same[0], answers=tuple(answers), candidates=tuple(candidates), answers_are_regex=False)


def _by_text(candidates: Iterable[Candidate]) -> Mapping[tuple[str, str], Candidate]:
    return {(c.passage.title, c.passage.text): c for c in candidates}
