"""HotpotQA's official figures: answer, supporting facts, joint; each EM, F1, precision, recall.

Works for every set in HotpotQA's shape (2WikiMultiHopQA, MuSiQue).

Source: Yang et al., HotpotQA, EMNLP 2018, section 5.2, and its evaluation script.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rag.core.errors import DataError
from rag.data.text import exact_match, overlap, supporting_fact_overlap

Fact = tuple[str, int]
_PARTS = ("em", "f1", "prec", "recall")


def score_hotpot(
    answer: str | None, facts: Iterable[Sequence[object]] | None, gold: str, gold_facts: Iterable[Fact] = ()
) -> dict[str, float]:
    """The twelve official figures of one question: em, f1, prec and recall, plain and with sp_ and joint_.

    Args:
        answer: predicted answer; None if the prediction file has none. A missing part scores 0.
        facts: predicted (title, sentence index) pairs; None if the prediction file has none.
        gold: the accepted answer.
        gold_facts: supporting (title, sentence index) pairs.

    Example:
        >>> scores = score_hotpot("yes", [["A", 0], ["A", 0], ["B", 2]], "yes", [("A", 0), ("B", 1)])
        >>> scores["em"], scores["sp_em"], scores["sp_f1"], scores["joint_f1"]
        (1.0, 0.0, 0.5, 0.5)

    Note: joint figures need both parts, as in the official script.
    """
    values = {f"{part}{name}": 0.0 for part in ("", "sp_", "joint_") for name in _PARTS}
    if answer is not None:
        found = overlap(answer, gold, "hotpot")
        exact = float(exact_match(answer, [gold], "hotpot"))
        values |= dict(zip(_PARTS, (exact, found.f1, found.precision, found.recall), strict=True))
    if facts is not None:
        same, found = supporting_fact_overlap(map(_fact, facts), gold_facts)
        values |= {"sp_em": float(same), "sp_f1": found.f1}
        values |= {"sp_prec": found.precision, "sp_recall": found.recall}
    if answer is not None and facts is not None:
        precision, recall = values["prec"] * values["sp_prec"], values["recall"] * values["sp_recall"]
        both = precision + recall
        values |= {
            "joint_em": values["em"] * values["sp_em"],
            "joint_prec": precision,
            "joint_recall": recall,
        }
        values["joint_f1"] = 2 * precision * recall / both if both > 0 else 0.0
    return values


def _fact(fact: Sequence[object]) -> Fact:
    if len(fact) != 2 or not isinstance(fact[0], str) or not isinstance(fact[1], int):
        raise DataError(f"supporting fact {fact!r}: expected [title, sentence index]")
    return fact[0], fact[1]
