"""Figures for questions that need several passages: coverage by lists and paths, HotpotQA's
official ones.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import chain

from rag.data.text import exact_match, overlap
from rag.metrics.ranking import first_true

Fact = tuple[str, int]
_PARTS = ("em", "f1", "prec", "recall")


def multihop_scores(
    retrieved: Sequence[str], gold: Collection[str], ks: Iterable[int]
) -> dict[str, float]:
    """Share of a question's gold passages among the first k passages.

    Args:
        retrieved: passage ids or titles, best first.
        gold: ids or titles of all passages that are needed; at least one.

    Returns:
        For every k "passage_em@k" (all gold passages are among them), "passage_any@k" (at least one
        is; also called PR) and "passage_recall@k" (the share that is).

    Example:
        >>> multihop_scores(["a", "x", "b"], {"a", "b"}, [2])
        {'passage_em@2': 0.0, 'passage_any@2': 1.0, 'passage_recall@2': 0.5}

    Note: in the literature "recall@k" may mean any of the three.
    """
    needed = set(gold)
    scores: dict[str, float] = {}
    for k in ks:
        present = len(needed.intersection(retrieved[:k]))
        scores[f"passage_em@{k}"] = float(present == len(needed))
        scores[f"passage_any@{k}"] = float(present > 0)
        scores[f"passage_recall@{k}"] = present / len(needed)
    return scores


def path_scores(
    paths: Sequence[Sequence[str]], gold: Sequence[str], ks: Iterable[int]
) -> dict[str, float]:
    """How many of a question's gold passages are on the first k paths.

    Args:
        paths: ids or titles of each path's passages, the best path first.
        gold: ids or titles of the passages that are needed, in hop order; at least one.
        ks: cut-offs, in paths.

    Returns:
        For every k "path_em@k" (one of the first k paths consists of exactly the gold passages, in
        any order), "path_cover@k" (the first k paths together hold all of them) and, for every hop
        h from 1, "hop{h}_recall@k" (they hold the gold passage of that hop).

    Example:
        >>> scores = path_scores([["a", "x"], ["b", "a"]], ["a", "b"], [1, 2])
        >>> [scores[f"{name}@1"] for name in ("path_em", "path_cover", "hop1_recall", "hop2_recall")]
        [0.0, 0.0, 1.0, 0.0]
        >>> scores["path_em@2"], scores["path_cover@2"]
        (1.0, 1.0)

    Source: Xiong et al., Answering Complex Open-Domain Questions with Multi-Hop Dense Retrieval,
        2021 (their path recall is path_em@k, their recall@k is path_cover@k).
    """
    hops = list(dict.fromkeys(gold))
    rank = first_true([set(path) == set(hops) for path in paths])
    scores: dict[str, float] = {}
    for k in ks:
        passages = set(chain.from_iterable(paths[:k]))
        scores[f"path_em@{k}"] = float(rank is not None and rank <= k)
        scores[f"path_cover@{k}"] = float(passages.issuperset(hops))
        for hop, key in enumerate(hops, start=1):
            scores[f"hop{hop}_recall@{k}"] = float(key in passages)
    return scores


def score_hotpot(
    answer: str | None, facts: Iterable[Fact] | None, gold: str, gold_facts: Iterable[Fact]
) -> dict[str, float]:
    """The twelve official figures of one question: em, f1, prec and recall, plain and with sp_ and
    joint_.

    Args:
        answer: None if the prediction file has none; a missing part scores 0.
        facts: predicted (title, sentence index) pairs; None if the prediction file has none.

    Example:
        >>> scores = score_hotpot("yes", [("A", 0), ("A", 0), ("B", 2)], "yes", [("A", 0), ("B", 1)])
        >>> scores["em"], scores["sp_em"], scores["sp_f1"], scores["joint_f1"]
        (1.0, 0.0, 0.5, 0.5)

    Note: joint figures need both parts, as in the official script. Also for sets in HotpotQA's
        shape (2WikiMultiHopQA, MuSiQue).

    Source: Yang et al., HotpotQA, EMNLP 2018, section 5.2, and its evaluation script.
    """
    values: dict[str, float] = {}
    for part in ("", "sp_", "joint_"):
        values |= dict.fromkeys([f"{part}{name}" for name in _PARTS], 0.0)
    if answer is not None:
        words = overlap(answer, gold, "hotpot")
        values["em"] = float(exact_match(answer, [gold], "hotpot"))
        values["f1"] = words.f1
        values["prec"] = words.precision
        values["recall"] = words.recall
    if facts is not None:
        predicted = set(facts)
        expected = set(gold_facts)
        shared = len(predicted & expected)
        values["sp_em"] = float(predicted == expected)
        values["sp_prec"] = shared / max(1, len(predicted))
        values["sp_recall"] = shared / max(1, len(expected))
        values["sp_f1"] = _harmonic_mean(values["sp_prec"], values["sp_recall"])
    for name in ("em", "prec", "recall"):
        values[f"joint_{name}"] = values[name] * values[f"sp_{name}"]
    values["joint_f1"] = _harmonic_mean(values["joint_prec"], values["joint_recall"])
    return values


def _harmonic_mean(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0
