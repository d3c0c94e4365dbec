"""How far a model has moved from the version that encoded the corpus, on fixed questions and passages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from indexers.npy import load_npy, save_npy
from indexers.protocols import FloatArray, IntArray
from rag.core.log import get_logger
from rag.runtime.seeds import generator
from rag.training.config import RefreshedConfig
from rag.training.refresh.schedule import Staleness, distinct_share, mean_cosine, score_entropy, top_k_overlap

TOP_K = 100
_DRIFT_NAME = "probe_vectors.npy"
_PROBE_STREAM = 77_003  # apart from the streams of other uses of the same seed


@dataclass(frozen=True, slots=True)
class Probes:
    """What one version of the model makes of fixed questions and passages.

    Attributes:
        vectors: (m, D) float32, of passages.
        rows: (n, K) int64, best passages of questions, -1 where nothing was found.
    """

    vectors: FloatArray
    rows: IntArray


@dataclass(frozen=True, slots=True)
class ProbeSet:
    """Which questions and passages are watched; the same ones for a whole run.

    Attributes:
        questions: (n,) examples.
        passages: (m,) rows of the corpus.
    """

    questions: IntArray
    passages: IntArray

    @classmethod
    def draw(cls, config: RefreshedConfig, seed: int, *, questions: int, passages: int) -> ProbeSet:
        """At most as many as the configuration says of so many questions and passages, in order.

        Example:
            >>> config = RefreshedConfig(probe_questions=3, probe_passages=50)
            >>> probes = ProbeSet.draw(config, seed=1, questions=10, passages=4)
            >>> len(probes.questions), probes.passages.tolist()
            (3, [0, 1, 2, 3])
        """
        draw = generator(seed, _PROBE_STREAM)
        some = draw.choice(questions, min(config.probe_questions, questions), replace=False)
        others = draw.choice(passages, min(config.probe_passages, passages), replace=False)
        return cls(np.sort(some).astype(np.int64), np.sort(others).astype(np.int64))


def compare(
    before: Probes | None,
    after: Probes,
    scores: FloatArray,
    *,
    age_steps: int,
    corpus: int,
    temperature: float,
) -> Staleness:
    """Figures of a refresh; alarms are logged.

    Args:
        before, after: of the version that is replaced (None if there was none), and of the new one.
        scores: (n, K) of `after.rows`.
        age_steps: steps between the two.
        corpus: number of passages.
    """
    known = before if before is not None and before.vectors.shape == after.vectors.shape else after
    found = Staleness(
        age_steps=age_steps,
        overlap=top_k_overlap(known.rows, after.rows),
        cosine=mean_cosine(known.vectors, after.vectors),
        entropy=score_entropy(scores, temperature),
        distinct=distinct_share(after.rows, corpus),
    )
    for sentence in found.alarms():
        get_logger(__name__).warning("%s", sentence)
    return found


class DriftMeter:
    """Measures how far the model in training has moved from its last snapshot: 1 - mean cosine.

    Args:
        encode: vectors (m, D) float32 of the probe passages by the model as it is now.
    """

    def __init__(self, encode: Callable[[], FloatArray]) -> None:
        self._encode = encode
        self._reference: FloatArray | None = None

    def save(self, folder: Path) -> None:
        """Measure from now on from the model as it is; its vectors are kept in a snapshot's folder."""
        self._reference = self._encode()
        save_npy(folder / _DRIFT_NAME, self._reference)

    def load(self, folder: Path) -> None:
        """Measure from the model as it was when this snapshot was taken."""
        now = self._encode()
        self._reference = load_npy(folder / _DRIFT_NAME, dtype=now.dtype, shape=now.shape).copy()

    def __call__(self) -> float | None:
        """Drift since the last snapshot; None if there is none."""
        if self._reference is None:
            return None
        return 1.0 - mean_cosine(self._reference, self._encode())
