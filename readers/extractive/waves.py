"""Read only as much as needed: passages in waves, best first, some of them through the first layers only.

Nine tenths of the time of an answer are spent on passages that do not change it. So a question's best
passages are read first; if their answer is likely enough, the others are not read. In later waves the early
head of the network, if it has one, drops unpromising passages after a few layers.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from rag.core.arrays import Bool, Float32, Int64
from readers.confidence import likelihoods
from readers.extractive.inference import RowScores
from readers.extractive.layout import Row
from readers.extractive.settings import SIX_LAYERS, ReaderSettings
from readers.manifest import Calibration
from readers.protocols import ScoreLists
from readers.ranking import PassageRows, QuestionRanker, Ranked

ScoreRows = Callable[[Sequence[Row], Float32 | None], RowScores]
"""Scores rows; with floors, drops those that the early head scores lower."""


def read_waves(
    rows: PassageRows,
    retrieval: ScoreLists,
    settings: ReaderSettings,
    calibration: Calibration,
    score: ScoreRows,
    *,
    depth: int,
) -> list[Ranked]:
    """Read passages of all questions, wave by wave, as far as `settings.reading` requires.

    A question's answers are ranked after each wave that it takes part in; the last ranking is its result.

    Args:
        rows: rows of all passages that may be read.
        retrieval: for each question the retrieval scores of its passages.
        calibration: for the confidence of the best answer.
        depth: number of layers of the network.
    """
    effort, n_questions = settings.reading, len(rows.questions)
    drop = effort.drop if settings.skim_layer else None
    most = None if effort.most is None else effort.most * depth // SIX_LAYERS
    owner = rows.owners
    ranks = retrieval_ranks(rows, retrieval)
    lengths = np.array([len(row.ids) for row in rows.rows], np.int64)
    waves = effort.waves or (int(ranks.max(initial=0)) + 1,)
    ends = np.cumsum(waves)
    layers = np.zeros(len(rows.rows), np.int64)  # layers that each row went through
    best_skim = np.full(n_questions, -np.inf, np.float32)  # of the early head, of a question's best row
    is_open, is_limited = np.ones(n_questions, bool), np.zeros(n_questions, bool)
    rankers = [QuestionRanker(rows, n, own, settings) for n, own in enumerate(retrieval)]
    ranked = [Ranked([], None)] * n_questions
    parts: list[tuple[Int64, RowScores]] = []
    for wave, end in enumerate(ends.tolist()):
        part = np.nonzero(is_open[owner] & (ranks < end) & (ranks >= end - waves[wave]))[0]
        if wave and most is not None:
            spent = np.bincount(owner, lengths * layers, minlength=n_questions).astype(np.int64)
            fits = _fits(part, owner, ranks, lengths * depth, most - spent)
            is_limited[owner[part[~fits]]] = True
            part, is_open = part[fits], is_open & ~is_limited
        if wave and not len(part):
            break
        floors = None if drop is None else best_skim[owner[part]] - np.float32(drop)
        scores = score([rows.rows[i] for i in part], floors)
        stays = np.ones(len(part), bool) if floors is None else scores.skims >= floors
        np.maximum.at(best_skim, owner[part], scores.skims)
        layers[part] = np.where(stays, depth, settings.skim_layer)
        parts.append((part[stays], scores.take(np.nonzero(stays)[0])))
        numbers = np.concatenate([part for part, _ in parts])
        everything = RowScores.joined([scores for _, scores in parts])
        for question in np.unique(owner[part]).tolist():
            mine = np.nonzero(owner[numbers] == question)[0]
            mine = mine[np.argsort(numbers[mine])]
            ranked[question] = rankers[question].rank(numbers[mine], everything.take(mine))
        if wave + 1 < len(ends) and effort.enough[wave] < 1:
            for question in np.nonzero(is_open)[0].tolist():
                p, _ = likelihoods(ranked[question], calibration)
                is_open[question] = p[:1].sum() < effort.enough[wave]  # without any answer 0
    for question in range(n_questions):
        mine = (owner == question) & (ranks < ends[-1])
        offered, read, whole = (len(np.unique(ranks[mine & (layers >= n)])) for n in (0, 1, depth))
        cost = {"passages": read, "dropped": read - whole, "token_layers": int(lengths[mine] @ layers[mine])}
        over = {"over_limit": offered - read} if is_limited[question] else {}
        ranked[question] = replace(ranked[question], reading={**cost, **over})
    return ranked


def _fits(part: Int64, owner: Int64, ranks: Int64, cost: Int64, left: Int64) -> Bool:
    """Whether the passage of each row of `part`, and all better ones, fit into what is `left` (Q,) to its
    question; `cost` is that of each row of all.
    """
    fits = np.ones(len(part), bool)
    for question in np.unique(owner[part]):
        mine = np.nonzero(owner[part] == question)[0]
        _, passage = np.unique(ranks[part[mine]], return_inverse=True)
        fits[mine] = (np.cumsum(np.bincount(passage, cost[part[mine]])) <= left[question])[passage]
    return fits


def retrieval_ranks(rows: PassageRows, retrieval: ScoreLists) -> Int64:
    """For each row, how many passages of its question rank before its passage by retrieval score."""
    ranks = [np.argsort(np.argsort(-np.asarray(own, float), kind="stable")) for own in retrieval]
    pairs = (rows.pairs[row.group] for row in rows.rows)
    return np.array([ranks[question][place] for question, place, _ in pairs], np.int64)
