"""HotpotQA's official figures: answer, supporting facts, joint; each EM, F1, precision, recall.

Works for every set in HotpotQA's shape (2WikiMultiHopQA, MuSiQue).

Source: Yang et al., HotpotQA, EMNLP 2018, section 5.2, and its evaluation script.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rag.core.errors import DataError
from rag.data.text import exact_match, overlap, supporting_fact_overlap

__all__ = ["HotpotGold", "HotpotScores", "score_hotpot"]

Fact = tuple[str, int]


@dataclass(frozen=True, slots=True)
class HotpotGold:
    """What the set says about one question.

    Attributes:
        id: question id.
        answer: the accepted answer.
        facts: supporting (title, sentence index) pairs.
        type: "bridge", "comparison", …; empty if unknown.
    """

    id: str
    answer: str
    facts: tuple[Fact, ...] = ()
    type: str = ""


@dataclass(frozen=True, slots=True)
class HotpotScores:
    """The twelve official figures of one question, each in [0, 1]; a missing part scores 0."""

    em: float = 0.0
    f1: float = 0.0
    prec: float = 0.0
    recall: float = 0.0
    sp_em: float = 0.0
    sp_f1: float = 0.0
    sp_prec: float = 0.0
    sp_recall: float = 0.0
    joint_em: float = 0.0
    joint_f1: float = 0.0
    joint_prec: float = 0.0
    joint_recall: float = 0.0


def score_hotpot(
    answer: str | None, facts: Iterable[Sequence[object]] | None, gold: HotpotGold
) -> HotpotScores:
    """Score one question.

    Args:
        answer: predicted answer; None if the prediction file has none.
        facts: predicted (title, sentence index) pairs; None if the prediction file has none.
        gold: what the set says.

    Example:
        >>> gold = HotpotGold("1", "yes", (("A", 0), ("B", 1)))
        >>> scores = score_hotpot("yes", [["A", 0], ["A", 0], ["B", 2]], gold)
        >>> scores.em, scores.sp_em, scores.sp_f1, scores.joint_f1
        (1.0, 0.0, 0.5, 0.5)

    Note: joint figures need both parts, as in the official script.
    """
    values: dict[str, float] = {}
    if answer is not None:
        part = overlap(answer, gold.answer, "hotpot")
        values |= {
            "em": float(exact_match(answer, [gold.answer], "hotpot")),
            "f1": part.f1,
            "prec": part.precision,
            "recall": part.recall,
        }
    if facts is not None:
        same, support = supporting_fact_overlap((_fact(fact) for fact in facts), gold.facts)
        values |= {
            "sp_em": float(same),
            "sp_f1": support.f1,
            "sp_prec": support.precision,
            "sp_recall": support.recall,
        }
    if answer is not None and facts is not None:
        precision, recall = values["prec"] * values["sp_prec"], values["recall"] * values["sp_recall"]
        values |= {
            "joint_em": values["em"] * values["sp_em"],
            "joint_prec": precision,
            "joint_recall": recall,
            "joint_f1": 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0,
        }
    return HotpotScores(**values)


def _fact(fact: Sequence[object]) -> Fact:
    if len(fact) != 2 or not isinstance(fact[0], str) or not isinstance(fact[1], int):
        raise DataError(f"supporting fact {fact!r}: expected [title, sentence index]")
    return fact[0], fact[1]
