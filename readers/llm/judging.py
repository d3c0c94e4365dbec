"""Sentences of cited replies, judged by the passages that they cite."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rag.core.types import Hit, JudgedSentence, Passage, SearchResult
from rag.data.claims import why_not_judged
from rag.data.sentences import split_sentences
from readers.borders import find_span
from readers.llm.reply import Statement
from readers.llm.wording import says
from readers.protocols import Verifier
from readers.verdicts import titled

_LIKELY = 0.5
_MARKS = ",;:)"


def sentences_of(statements: Sequence[Statement]) -> list[Statement]:
    """The sentences of statements, each with the citations of its statement.

    A sentence that cites in its middle comes as several statements: it is one sentence, with all of
    their citations.

    Example:
        >>> sentences_of([("It rises in Baden", (1,)), ("and is long.", (2,)), ("It ends.", (3,))])
        [('It rises in Baden and is long.', (1, 2)), ('It ends.', (3,))]
    """
    sentences = list[Statement]()
    for text, numbers in statements:
        for sentence in split_sentences(text):
            if sentences and _goes_on(sentences[-1][0], sentence):
                before, earlier = sentences.pop()
                blank = "" if sentence[0] in _MARKS else " "
                sentence = f"{before}{blank}{sentence}"
                numbers = tuple(dict.fromkeys((*earlier, *numbers)))
            sentences.append((sentence, numbers))
    return sentences


def _goes_on(before: str, text: str) -> bool:
    """Whether a text goes on with the sentence before it."""
    return before[-1] not in ".!?" and (text[0].islower() or text[0] in f"({_MARKS}")


def judge_sentences(
    sentences: Sequence[Statement], passages: Sequence[Passage], verifier: Verifier | None
) -> list[JudgedSentence]:
    """Judge each sentence by all passages that it cites, and each of its citations.

    A citation of a supported sentence is relevant if its passage alone supports the sentence, or if
    the others do not without it. A sentence that cites nothing is not supported.

    Args:
        passages: those that the model was shown; citations of others support nothing.
        verifier: None compares words.

    Source:
        Gao et al. 2023, "Enabling Large Language Models to Generate Text with Citations" (ALCE),
        section 4.3.
    """
    pairs = [(text, cited_passages(numbers, passages)) for text, numbers in sentences]
    supports = _supports(pairs, verifier)
    parts = list[tuple[str, Sequence[Passage]]]()
    for (text, cited), support in zip(pairs, supports, strict=True):
        if len(cited) > 1 and support > _LIKELY:
            for number, passage in enumerate(cited):
                parts += [(text, [passage]), (text, [*cited[:number], *cited[number + 1 :]])]
    of_parts = iter(_supports(parts, verifier))
    judged = []
    for (text, cited), (_, numbers), support in zip(pairs, sentences, supports, strict=True):
        is_supported = support > _LIKELY
        relevant = []
        for passage in cited if is_supported else ():
            alone = support
            others = 0.0
            if len(cited) > 1:
                alone = next(of_parts)
                others = next(of_parts)
            if alone > _LIKELY or others <= _LIKELY:
                relevant.append(passage.id)
        ids = tuple(passage.id for passage in cited)
        unknown = len(numbers) - len(cited)
        judged.append(JudgedSentence(text, ids, tuple(relevant), is_supported, support, unknown))
    return judged


def cited_passages(numbers: Sequence[int], passages: Sequence[Passage]) -> list[Passage]:
    """The passages of these numbers, from 1, without numbers that no passage has."""
    return [passages[number - 1] for number in numbers if 1 <= number <= len(passages)]


def _supports(
    pairs: Sequence[tuple[str, Sequence[Passage]]], verifier: Verifier | None
) -> list[float]:
    """How far the passages of each sentence support it; 0 without any.

    A verifier judges them together, each alone, and by sentences, and the best of these counts:
    several passages may say together what none of them says alone, and a long text hides what a
    part of it says. Words are compared where a sentence is no claim by itself ("It …"), is too long
    for one, or quotes a few words.
    """
    supports = np.zeros(len(pairs))
    judged = list[int]()
    found = list[SearchResult]()
    claims = list[str]()
    texts = list[str]()
    starts = list[int]()
    for number, (sentence, passages) in enumerate(pairs):
        is_claim = is_quotable(sentence) and not why_not_judged(sentence, in_text=True)
        if verifier is None or not is_claim or _is_quoted(sentence, passages):
            supports[number] = is_said(sentence, passages)
        elif passages:
            judged.append(number)
            ranked = [(Hit(-1, passage.id, 1.0), passage) for passage in passages]
            found.append(SearchResult(sentence, ranked))
            alone = list(map(titled, passages))
            starts.append(len(texts))
            texts += [" ".join(alone), *alone]
            claims += [sentence] * (1 + len(alone))
    if verifier is not None and judged:
        read = verifier.probabilities(claims, texts)[:, 0]
        verdicts = verifier.judge_found(found)
        by_sentences = [verdict.probabilities.get("supported", 0.0) for verdict in verdicts]
        supports[judged] = np.maximum(np.maximum.reduceat(read, starts), by_sentences)
    return supports.tolist()


def is_said(sentence: str, passages: Sequence[Passage]) -> bool:
    """Whether passages contain a sentence literally or in other words; "yes" and "no" are said by
    any passage.
    """
    if not passages or not is_quotable(sentence):
        return bool(passages)
    return _is_quoted(sentence, passages) or says(map(titled, passages), sentence)


def _is_quoted(sentence: str, passages: Sequence[Passage]) -> bool:
    return any(find_span(sentence, passage.text) for passage in passages)


def is_quotable(answer: str) -> bool:
    """Whether an answer can stand in a passage, as "yes" and "no" cannot."""
    return answer.lower().rstrip(".") not in ("yes", "no")
