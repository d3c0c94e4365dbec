"""Replies of language models as answers with evidence: every statement is checked against the
passages that it cites.
"""

from collections.abc import Sequence
from itertools import chain

from rag.core.types import Answer, AnswerSet, Passage
from rag.data.sentences import split_sentences
from readers.borders import find_span
from readers.llm.reply import Statement, Style
from readers.llm.wording import overlap, says
from readers.protocols import ReadRequest

_WORDS_ELSEWHERE = "its words stand in a passage that it does not cite"
_QUOTE_ELSEWHERE = "it stands in a passage that it does not cite"
_NOWHERE = "the passages do not say so"
_MOST_SHORT_WORDS = 15


def to_result(
    request: ReadRequest, statements: Sequence[Statement], read: Sequence[int], style: Style
) -> AnswerSet:
    """The reply as an answer with evidence and all its citations, without its confidence.

    Evidence is the first cited passage that contains the answer literally, else the first cited one,
    if it supports the answer, else any that contains it, else the one with most of its words. An
    answer of which a statement is not supported has `is_supported` False and a `note`. A long reply
    in place of a short one is cut to the sentences that the passages support, if there are any; the
    note has the others.

    Args:
        read: the passages that the model was shown, by their numbers in the request; at least one.
    """
    if not statements:
        return AnswerSet(request.question, (), 1.0)
    readable = request.passages
    passages = [readable[number] for number in read]
    notes = []
    if style == "short":
        statements, left_out = _shortened(statements, passages)
        if left_out:
            notes.append(f"{_NOWHERE}, so it is left out: {' '.join(left_out)}")
    answer = " ".join(text for text, _ in statements)
    is_quotable = _is_quotable(answer)
    spans: list[tuple[int, int] | None] = [None] * len(passages)
    if is_quotable:
        spans = [find_span(answer, passage.text) for passage in passages]
    named = list(dict.fromkeys(chain.from_iterable(numbers for _, numbers in statements)))
    cited = [number - 1 for number in named if 1 <= number <= len(passages)]
    quoting = [place for place, span in enumerate(spans) if span is not None]
    unsupported = [text for text, of in statements if not _is_supported(text, of, passages)]
    evidence = _first_evidence(cited, quoting, prefers_quoting=bool(unsupported))
    if evidence is None and not named and is_quotable:
        evidence = _passage_that_says(answer, passages)
    notes += _citation_notes(named, len(passages))
    if evidence is None:
        evidence = _nearest(answer, passages)
        notes.append(_NOWHERE if is_quotable else "it cites no passage")
    elif evidence not in cited:
        notes.append(_WORDS_ELSEWHERE if spans[evidence] is None else _QUOTE_ELSEWHERE)
        unsupported = []
    elif unsupported:
        what = ": " + " ".join(unsupported) if len(statements) > 1 else " it"
        notes.append(f"the passages that it cites do not say{what}")
    span = spans[evidence]
    if span is not None:
        answer = passages[evidence].text[slice(*span)]
    places = [request.evidence(number, place) for number, place in zip(read, spans, strict=True)]
    cites_more = any(number != evidence for number in cited)
    best = Answer(
        answer,
        0.0,
        0.0,
        places[evidence],
        citations=tuple(places[number] for number in cited) if cites_more else (),
        is_supported=not unsupported,
        note="; ".join(notes),
    )
    return AnswerSet(request.question, (best,), 0.0)


def _shortened(
    statements: Sequence[Statement], passages: Sequence[Passage]
) -> tuple[Sequence[Statement], list[str]]:
    """Of a long reply the sentences that the passages support, and the others; or all of it."""
    if sum(len(text.split()) for text, _ in statements) <= _MOST_SHORT_WORDS:
        return statements, []
    everything = range(1, len(passages) + 1)
    kept = list[Statement]()
    left_out = list[str]()
    for text, numbers in statements:
        for sentence in split_sentences(text):
            if _is_supported(sentence, numbers or everything, passages):
                kept.append((sentence, numbers))
            else:
                left_out.append(sentence)
    return (kept, left_out) if kept else (statements, [])


def _is_quotable(answer: str) -> bool:
    """Whether an answer can stand in a passage, as "yes" and "no" cannot."""
    return answer.lower().rstrip(".") not in ("yes", "no")


def _first_evidence(
    cited: Sequence[int], quoting: Sequence[int], *, prefers_quoting: bool
) -> int | None:
    """The first cited passage that holds the answer literally, else the best of the others."""
    both = [number for number in cited if number in quoting]
    others = [*quoting, *cited] if prefers_quoting else [*cited, *quoting]
    return next(iter([*both, *others]), None)


def _citation_notes(named: Sequence[int], n_shown: int) -> list[str]:
    """A note about cited numbers of passages that were not shown."""
    wrong = [str(number) for number in named if not 1 <= number <= n_shown]
    return [f"it cites passage {', '.join(wrong)}, but was shown {n_shown}"] if wrong else []


def _passage_that_says(answer: str, passages: Sequence[Passage]) -> int | None:
    """Place of the passage that says the answer with most of its words; None if none does."""
    if says([], answer):
        return None
    nearest = _nearest(answer, passages)
    return nearest if says([_text(passages[nearest])], answer) else None


def _nearest(answer: str, passages: Sequence[Passage]) -> int:
    """Place of the passage with most of the answer's words."""
    shares = [overlap([_text(passage)], answer) for passage in passages]
    return shares.index(max(shares))


def _is_supported(statement: str, numbers: Sequence[int], passages: Sequence[Passage]) -> bool:
    """Whether the passages that a statement cites contain it literally or in other words; "yes" and
    "no" are supported by any passage.
    """
    cited = [passages[number - 1] for number in numbers if 1 <= number <= len(passages)]
    if not cited or not _is_quotable(statement):
        return bool(cited)
    is_quoted = any(find_span(statement, passage.text) for passage in cited)
    return is_quoted or says(map(_text, cited), statement)


def _text(passage: Passage) -> str:
    return f"{passage.title} {passage.text}"
