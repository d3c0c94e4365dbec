"""Learn when a path is complete, from question sets whose numbers of hops are known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from indexers.index import Index
from indexers.protocols import FloatArray, IntArray
from rag.core.errors import ConfigError, DataError
from rag.core.progress import Progress
from rag.core.types import Question
from rag.data.questions import draw_sample, read_questions
from retrievers.multihop import LearnedStop, MultiHopRetriever
from retrievers.open import open_retriever

__all__ = ["StopFigures", "hops_of", "learn_stop"]

_BATCH = 64
_FOLDS = 5
_CERTAIN = 10.0  # a bias, where all training questions say the same
_PENALTY = 1e-3
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StopFigures:
    """How well the rule of one hop tells complete questions from others that it was not fitted on.

    Attributes:
        hop: after which it decides.
        complete, incomplete: questions of either kind.
        kept: share of the complete ones that are stopped.
        lost: share of the incomplete ones that are stopped.
    """

    hop: int
    complete: int
    incomplete: int
    kept: float
    lost: float


def hops_of(question: Question) -> int:
    """Passages the question needs; 0 if the set does not say."""
    if question.gold_are_alternatives and question.gold:
        return 1
    return question.hops or len(question.gold) or len(set(question.gold_passage_ids))


def learn_stop(
    sets: Sequence[tuple[Path, Path]],
    *,
    hops: int = 2,
    beam: int = 5,
    most: int = 1000,
    seed: int = 13,
    encoder: str | None = None,
) -> tuple[LearnedStop, list[StopFigures]]:
    """Fit a logistic decision for each hop but the last, and measure it in five folds.

    Every question is searched without a stop; the vectors that would ask for its next passage are the
    features, and the label is whether it needs one. Both labels weigh the same.

    Args:
        sets: question file and the index it is searched in; all indexes have the same encoder.
        hops, beam: of the search that the rule is for.
        most: questions of each set.
        seed: of the draw.
        encoder: of the indexes, if it is not where they say.

    Returns:
        The rule, and its figures on the held-out folds.

    Raises:
        ConfigError: fewer than two hops, or indexes of different encoders.
        DataError: no question's number of hops is known.
    """
    if hops < 2:
        raise ConfigError("one hop needs no stop rule", hint="set hops to 2 or more")
    seen = [_Seen() for _ in range(hops - 1)]
    needed: list[int] = []
    identities = {}
    for path, directory in sets:
        asked = draw_sample((q for q in read_questions(path) if hops_of(q)), most, seed)
        with Index.open(directory) as index:
            searcher = open_retriever(index, f"multihop:hops={hops},beam={beam},stop=never", encoder=encoder)
            assert isinstance(searcher, MultiHopRetriever)
            identities[searcher.dense.encoder.identity.fingerprint()] = searcher.dense.encoder.identity
            _look(searcher, asked, seen, first=len(needed))
        needed += [hops_of(question) for question in asked]
    if not needed:
        raise DataError("no question says how many hops it needs", hint="give sets with gold passages")
    if len(identities) > 1:
        raise ConfigError(f"the indexes have {len(identities)} different encoders, expected one")
    fitted = [_fit_hop(hop, found, np.array(needed)) for hop, found in enumerate(seen, start=1)]
    weights = np.array([w for w, _, _ in fitted], np.float32)
    rule = LearnedStop(
        next(iter(identities.values())).weights_sha256,
        weights,
        np.array([b for _, b, _ in fitted], np.float32),
    )
    return rule, [figures for _, _, figures in fitted]


class _Seen:
    """A stop rule that only looks: what asks for the next passage, and for which question."""

    def __init__(self) -> None:
        self.queries: list[FloatArray] = []
        self.owners: list[IntArray] = []


def _look(
    searcher: MultiHopRetriever, asked: Sequence[Question], seen: Sequence[_Seen], *, first: int
) -> None:
    start = first

    def remember(queries: FloatArray, owners: IntArray, hop: int) -> set[int]:
        seen[hop - 1].queries.append(queries)
        seen[hop - 1].owners.append(owners + start)
        return set()

    searcher.stop = remember
    questions = iter(asked)
    with Progress(len(asked), "questions", "search") as progress:
        while batch := list(islice(questions, _BATCH)):
            searcher.search_paths([question.text for question in batch], 1)
            start += len(batch)
            progress.update(len(batch))


def _fit_hop(hop: int, seen: _Seen, needed: IntArray) -> tuple[Floats, float, StopFigures]:
    queries, owners = np.concatenate(seen.queries).astype(np.float64), np.concatenate(seen.owners)
    complete = needed <= hop  # of questions
    labels = complete[owners]
    if labels.all() or not labels.any():
        weights, bias = np.zeros(queries.shape[1]), _CERTAIN if labels.all() else -_CERTAIN
        share = float(labels.all())
        return weights, bias, StopFigures(hop, int(complete.sum()), int((~complete).sum()), share, share)
    stopped = np.zeros(len(needed), bool)
    for fold in range(_FOLDS):
        inside = owners % _FOLDS == fold
        w, b = _logistic(queries[~inside], labels[~inside])
        votes = np.bincount(owners[inside], queries[inside] @ w + b, minlength=len(needed))
        stopped |= votes > 0
    asked = np.zeros(len(needed), bool)
    asked[owners] = True
    figures = StopFigures(
        hop, int((complete & asked).sum()), int((~complete & asked).sum()),
        float(stopped[complete & asked].mean()), float(stopped[~complete & asked].mean()),
    )  # fmt: skip
    weights, bias = _logistic(queries, labels)
    return weights, bias, figures


def _logistic(features: Floats, labels: npt.NDArray[np.bool_]) -> tuple[Floats, float]:
    """The minimum of Σ_i c_i log(1 + exp(−y_i (w·x_i + b))) + λ/2 |w|², labels weighing 1."""
    signs = np.where(labels, 1.0, -1.0)
    shares = np.where(labels, 1.0 / max(1, labels.sum()), 1.0 / max(1, (~labels).sum()))

    def loss(point: Floats) -> tuple[float, Floats]:
        margins = signs * (features @ point[:-1] + point[-1])
        slopes = -signs * shares / (1.0 + np.exp(np.clip(margins, -500, 500)))
        value = float(shares @ np.logaddexp(0.0, -margins)) + 0.5 * _PENALTY * float(point[:-1] @ point[:-1])
        return value, np.append(features.T @ slopes + _PENALTY * point[:-1], slopes.sum())

    found = minimize(loss, np.zeros(features.shape[1] + 1), jac=True, method="L-BFGS-B")
    return found.x[:-1], float(found.x[-1])


def describe(figures: Iterable[StopFigures]) -> str:
    """A line a hop, for people."""
    return "\n".join(
        f"after hop {f.hop}: stops {f.kept:.1%} of {f.complete} complete questions and {f.lost:.1%} of "
        f"{f.incomplete} that need more (questions the rule was not fitted on)"
        for f in figures
    )
