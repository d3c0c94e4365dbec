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
    merged = [example for example in map(_merged, parts.values()) if example is not None]
    if not merged:
        names = ", ".join(map(str, paths))
        raise DataError(f"{names}: no question with answers and passages", hint=_SHAPE)
    if left_out := len(parts) - len(merged):
        get_logger(__name__).warning(
            "%d of %d questions left out: no answer, or no passage with a text", left_out, len(parts)
        )
    return merged


def best_ranked(example: Example, count: int) -> list[Candidate]:
    """The best `count` passages by rank; if they have no ranks, positives come first."""
    ranked = [candidate for candidate in example.candidates if candidate.rank is not None]
    return sorted(ranked, key=lambda c: c.rank or 0)[:count] or list(example.candidates[:count])


def _merged(same: Sequence[Example]) -> Example | None:
    """Examples of one question as one."""
    targets = [example.target_answer for example in same if example.target_answer]
    answers = dict.fromkeys(a.strip() for e in same for a in targets or e.answers if a.strip())
    candidates = [candidate for example in same for candidate in example.candidates]
    if not answers or not candidates:
        return None
    is_regex = any(example.answers_are_regex for example in same)
    matcher = AnswerMatcher(answers, "regex" if is_regex else "tokens")
    if is_regex:  # the target is a string that the pattern matches
        string = most_matched(matcher, (candidate.passage.text for candidate in candidates))
        if not string:
            return None
        answers = {string: None}
    positives = _by_text(c for c in candidates if c.role == "positive")
    ranks = {
        key: n for n, key in enumerate(_by_text(c for c in candidates if c.role == "retrieved"), start=1)
    }
    others = _by_text(
        c for e in same for c in (*e.of_role("retrieved"), *e.of_role("hard_negative", "negative"))
    )
    listed = []
    for key, candidate in {**positives, **{k: c for k, c in others.items() if k not in positives}}.items():
        holds = True if key in positives else candidate.has_answer
        holds = matcher.matches(candidate.passage.text) if holds is None else holds
        listed.append(replace(candidate, has_answer=holds, rank=ranks.get(key)))
    return replace(same[0], answers=tuple(answers), candidates=tuple(listed), answers_are_regex=False)


def _by_text(candidates: Iterable[Candidate]) -> Mapping[tuple[str, str], Candidate]:
    return {(c.passage.title, c.passage.text): c for c in candidates}
