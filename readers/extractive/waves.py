"""Read only as much as needed: passages in waves, best first, some of them through the first layers only.

Nine tenths of the time of an answer are spent on passages that do not change it. So a question's best
passages are read first; if their answer is likely enough, the others are not read. In later waves the early
head of the network, if it has one, drops unpromising passages after a few layers.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from rag.core.arrays import Bool, Float32, Int64
from readers.confidence import confidence_of_first
from readers.extractive.inference import RowScores
from readers.extractive.layout import Row
from readers.extractive.settings import ReaderSettings
from readers.manifest import Calibration
from readers.protocols import ScoreLists
from readers.ranking import PassageRows, ScoredPassages, rank

ScoreRows = Callable[[Sequence[Row], Float32 | None], RowScores]
"""Scores rows; with floors, drops those that the early head scores lower."""


@dataclass(frozen=True, slots=True)
class ReadCost:
    """Cost of one question: passages read, how many of these were dropped early, tokens times layers, and how
    many passages were left unread because of the effort's limit.
    """

    passages: int
    dropped: int
    token_layers: int
    over_limit: int = 0

    def to_json(self) -> dict[str, int]:
        """All counts; `over_limit` only where the limit left something unread."""
        return {name: count for name, count in asdict(self).items() if count or name != "over_limit"}


def read_waves(
    unread: PassageRows,
    retrieval: ScoreLists,
    settings: ReaderSettings,
    calibration: Calibration,
    score: ScoreRows,
    *,
    depth: int,
) -> tuple[ScoredPassages, list[ReadCost]]:
    """Read passages of all questions, wave by wave, as far as `settings.reading` requires.

    Args:
        retrieval: for each question the retrieval scores of its passages.
        settings, calibration: settings and calibration of the reader, for the confidence of the best answer.
        depth: number of layers of the network.

    Returns:
        The rows that were read to the end with their scores, in the order of `unread`; each question's cost.
    """
    effort, rows = settings.reading, unread.rows
    owner = np.array([unread.pairs[row.group][0] for row in rows], np.int64)
    layers = np.zeros(len(rows), np.int64)  # layers that each row went through
    if not effort.waves:
        everything = unread.scored(range(len(rows)), score(rows, None))
        return everything, _costs(unread, owner, layers + depth, depth)
    before = standing(unread, retrieval)
    best = np.full(unread.questions, -np.inf, np.float32)  # the early head's score of a question's best row
    open_ = np.ones(unread.questions, bool)
    parts: list[tuple[Int64, RowScores]] = []
    ends = np.cumsum(effort.waves)
    lengths = np.array([len(row.ids) for row in rows], np.int64)
    limited = np.zeros(unread.questions, bool)
    for number, end in enumerate(ends.tolist()):
        part = np.nonzero(open_[owner] & (before < end) & (before >= end - effort.waves[number]))[0]
        if number and effort.most is not None:
            spent = np.bincount(owner, lengths * layers, minlength=unread.questions).astype(np.int64)
            fits = _fits(part, owner, before, lengths * depth, effort.most - spent)
            limited[owner[part[~fits]]] = True
            part, open_ = part[fits], open_ & ~limited
        if number and not len(part):
            break
        floors = None if effort.drop is None else best[owner[part]] - np.float32(effort.drop)
        scores = score([rows[i] for i in part], floors)
        kept = np.ones(len(part), bool) if floors is None else scores.skims >= floors
        np.maximum.at(best, owner[part], scores.skims)
        layers[part] = np.where(kept, depth, settings.skim_layer)
        parts.append((part[kept], scores.take(np.nonzero(kept)[0])))
        if number + 1 < len(ends) and effort.enough[number] < 1:
            found = rank(_gathered(unread, parts), retrieval, settings)
            for question in np.nonzero(open_)[0]:
                likely = confidence_of_first(found[question], calibration)
                open_[question] = likely < effort.enough[number]
    costs = _costs(unread, owner, layers, depth)
    for question in np.nonzero(limited)[0]:
        offered = len(np.unique(before[(owner == question) & (before < ends[-1])]))
        costs[question] = replace(costs[question], over_limit=offered - costs[question].passages)
    return _gathered(unread, parts), costs


def _fits(part: Int64, owner: Int64, before: Int64, cost: Int64, left: Int64) -> Bool:
    """Whether the passage of each row of `part`, and all better ones, fit into what is `left` (Q,) to its
    question; `cost` is that of each row of all.
    """
    fits = np.ones(len(part), bool)
    for question in np.unique(owner[part]):
        mine = np.nonzero(owner[part] == question)[0]
        _, passage = np.unique(before[part[mine]], return_inverse=True)
        fits[mine] = (np.cumsum(np.bincount(passage, cost[part[mine]])) <= left[question])[passage]
    return fits


def standing(unread: PassageRows, retrieval: ScoreLists) -> Int64:
    """For each row, how many passages of its question rank before its passage by retrieval score."""
    ranks = [np.argsort(np.argsort(-np.asarray(given, float), kind="stable")) for given in retrieval]
    pairs = (unread.pairs[row.group] for row in unread.rows)
    return np.array([ranks[question][place] for question, place, _ in pairs], np.int64)


def _gathered(unread: PassageRows, parts: Sequence[tuple[Int64, RowScores]]) -> ScoredPassages:
    numbers = np.concatenate([part for part, _ in parts])
    order = np.argsort(numbers)
    return unread.scored(numbers[order].tolist(), RowScores.joined([s for _, s in parts]).take(order))


def _costs(unread: PassageRows, owner: Int64, layers: Int64, depth: int) -> list[ReadCost]:
    costs = []
    group = np.array([row.group for row in unread.rows], np.int64)
    lengths = np.array([len(row.ids) for row in unread.rows], np.int64)
    for question in range(unread.questions):
        mine = (owner == question) & (layers > 0)
        read = len(np.unique(group[mine]))
        whole = len(np.unique(group[mine & (layers == depth)]))
        costs.append(ReadCost(read, read - whole, int((lengths * layers)[mine].sum())))
    return costs
