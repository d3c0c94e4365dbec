"""How true the citations of a reply are."""

from __future__ import annotations

from collections.abc import Sequence

from rag.core.types import JudgedSentence


def citation_scores(sentences: Sequence[JudgedSentence]) -> dict[str, float]:
    """ALCE's citation recall and precision of a reply.

    - "citation_recall": share of the sentences that the passages which they cite, taken together,
        support; a sentence without a citation is not supported.
    - "citation_precision": share of the citations that are relevant: their sentence is supported,
        and their passage alone supports it, or the others do not without it; that of a passage
        which the model was not shown is not. 0 without a citation.

    Figures of several replies are means over the replies.

    Args:
        sentences: of one reply, at least one.

    Source:
        Gao et al. 2023, "Enabling Large Language Models to Generate Text with Citations" (ALCE),
        section 4.3.

    Note:
        The paper judges by the model TRUE, here by whatever judged the sentences; and here a
        citation behind several sentences counts for each of them. A sentence that also cites what
        was not shown is judged by its other citations; the paper's code has it unsupported, and
        leaves its citations out of the precision.

    Example:
        >>> both = JudgedSentence("It rises in Ulm.", ("a", "b"), ("a",), True, 0.9)
        >>> citation_scores([both, JudgedSentence("It is blue.")])
        {'citation_recall': 0.5, 'citation_precision': 0.5}
    """
    citations = sum(len(sentence.citations) + sentence.unknown for sentence in sentences)
    relevant = sum(len(sentence.relevant) for sentence in sentences)
    supported = sum(sentence.is_supported for sentence in sentences)
    return {
        "citation_recall": supported / len(sentences),
        "citation_precision": relevant / citations if citations else 0.0,
    }
