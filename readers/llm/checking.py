"""Replies of language models as answers with evidence: every statement is checked against the
passages that it cites.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, compress
from typing import Literal

from rag.core.types import Answer, AnswerSet, JudgedSentence, Passage
from readers.borders import find_span
from readers.llm.judging import cited_passages, is_quotable, is_said, judge_sentences, sentences_of
from readers.llm.reply import Statement, Style
from readers.llm.wording import overlap, says
from readers.protocols import ReadRequest, Verifier
from readers.verdicts import titled

Unsupported = Literal["mark", "drop"]

_WORDS_ELSEWHERE = "its words stand in a passage that it does not cite"
_QUOTE_ELSEWHERE = "it stands in a passage that it does not cite"
_NOWHERE = "the passages do not say so"
_MOST_SHORT_WORDS = 15


def to_result(
    request: ReadRequest,
    statements: Sequence[Statement],
    read: Sequence[int],
    style: Style,
    *,
    verifier: Verifier | None = None,
    unsupported: Unsupported = "mark",
) -> AnswerSet:
    """The reply as an answer with evidence and all its citations, without its confidence.

    Evidence is the first cited passage that contains the answer literally, else the first cited one,
    if it supports the answer, else any that contains it, else the one with most of its words. An
    answer of which a statement is not supported has `is_supported` False and a `note`. A long reply
    in place of a short one is cut to the sentences that the passages support, if there are any; the
    note has the others.

    Args:
        read: the passages that the model was shown, by their numbers in the request; at least one.
        verifier: judges sentences that cite; None compares words.
        unsupported: whether such sentences are marked or dropped; the only ones are marked.
    """
    if not statements:
        return AnswerSet(request.question, (), 1.0)
    readable = request.passages
    passages = [readable[number] for number in read]
    judged = list[JudgedSentence]()
    left_out = list[str]()
    if style == "short":
        statements, left_out = _shortened(statements, passages)
        doubted = [text for text, of in statements if not _is_supported(text, of, passages)]
    else:
        statements = sentences_of(statements)
        judged = judge_sentences(statements, passages, verifier)
        doubted = [sentence.text for sentence in judged if not sentence.is_supported]
        if unsupported == "drop" and len(doubted) < len(judged):
            left_out = doubted
            doubted = []
            statements = list(compress(statements, [sentence.is_supported for sentence in judged]))
            judged = [sentence for sentence in judged if sentence.is_supported]
    answer, notes = _with_evidence(request, statements, read, passages, doubted)
    if left_out:
        notes.insert(0, f"{_NOWHERE}, so it is left out: {' '.join(left_out)}")
    answer = replace(answer, note="; ".join(notes), sentences=tuple(judged))
    return AnswerSet(request.question, (answer,), 0.0)


def _with_evidence(
    request: ReadRequest,
    statements: Sequence[Statement],
    read: Sequence[int],
    passages: Sequence[Passage],
    doubted: Sequence[str],
) -> tuple[Answer, list[str]]:
    """The statements as an answer, and what there is to note about its citations.

    Args:
        doubted: statements that the passages do not support.
    """
    answer = " ".join(text for text, _ in statements)
    can_stand_there = is_quotable(answer)
    spans: list[tuple[int, int] | None] = [None] * len(passages)
    if can_stand_there:
        spans = [find_span(answer, passage.text) for passage in passages]
    cited_numbers = list(dict.fromkeys(chain.from_iterable(numbers for _, numbers in statements)))
    cited = [number - 1 for number in cited_numbers if 1 <= number <= len(passages)]
    quoting = [number for number, span in enumerate(spans) if span is not None]
    # The first that comes with a citation and the answer's words, else the best of the others.
    others = [*quoting, *cited] if doubted else [*cited, *quoting]
    best = [*(number for number in cited if number in quoting), *others]
    evidence = best[0] if best else _nearest(answer, passages)
    notes = []
    wrong = [str(number) for number in cited_numbers if number - 1 not in cited]
    if wrong:
        notes.append(f"it cites passage {', '.join(wrong)}, but was shown {len(passages)}")
    is_supported = not doubted
    if evidence in cited:
        if doubted:
            what = ": " + " ".join(doubted) if len(statements) > 1 else " it"
            notes.append(f"the passages that it cites do not say{what}")
    elif best:
        is_supported = True
        notes.append(_QUOTE_ELSEWHERE)
    elif can_stand_there and not cited_numbers and _says(passages[evidence], answer):
        is_supported = True
        notes.append(_WORDS_ELSEWHERE)
    else:
        notes.append(_NOWHERE if can_stand_there else "it cites no passage")
    span = spans[evidence]
    if span is not None:
        answer = passages[evidence].text[slice(*span)]
    evidences = [request.evidence(number, span) for number, span in zip(read, spans, strict=True)]
    citations = [evidences[number] for number in cited] if {*cited} - {evidence} else []
    return Answer(
        answer, 0.0, 0.0, evidences[evidence], citations=tuple(citations), is_supported=is_supported
    ), notes


def _shortened(
    statements: Sequence[Statement], passages: Sequence[Passage]
) -> tuple[Sequence[Statement], list[str]]:
    """Of a long reply the sentences that the passages support, and the others; or all of it."""
    if sum(len(text.split()) for text, _ in statements) <= _MOST_SHORT_WORDS:
        return statements, []
    everything = range(1, len(passages) + 1)
    sentences = sentences_of(statements)
    are_supported = [
        _is_supported(text, numbers or everything, passages) for text, numbers in sentences
    ]
    supported = list(compress(sentences, are_supported))
    if not supported:
        return statements, []
    return supported, [
        text for (text, _), is_kept in zip(sentences, are_supported, strict=True) if not is_kept
    ]


def _says(passage: Passage, answer: str) -> bool:
    """Whether a passage says an answer that has words of its own to be said."""
    return says([titled(passage)], answer) and not says([], answer)


def _nearest(answer: str, passages: Sequence[Passage]) -> int:
    """Place of the passage with most of the answer's words."""
    shares = [overlap([titled(passage)], answer) for passage in passages]
    return shares.index(max(shares))


def _is_supported(statement: str, numbers: Sequence[int], passages: Sequence[Passage]) -> bool:
    return is_said(statement, cited_passages(numbers, passages))
