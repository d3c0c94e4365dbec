"""Measure how far a model has moved from the version that encoded the corpus.

The figures, and the alarms raised on them, are measured on fixed probe questions and passages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from rag.core.arrays import Float32, Int64
from rag.core.errors import DataError
from rag.core.log import get_logger
from rag.core.npy import load_npy, save_npy
from rag.runtime.seeds import generator
from rag.training.config import RefreshedConfig

TOP_K = 100
_QUESTIONS_PER_BLOCK = 1000
_LOW_OVERLAP, _LOW_COSINE, _LOW_ENTROPY, _LOW_DISTINCT = 0.3, 0.5, 0.02, 0.02  # worth a warning below
_VECTORS, _ROWS = "probe_vectors.npy", "probe_rows.npy"
_PROBE_STREAM = 77_003  # apart from the streams of other uses of the same seed


def top_k_overlap(stale: Int64, fresh: Int64) -> float:
    """Mean share of the fresh top-k that is also in the stale top-k; 1 means nothing changed.

    Args:
        stale: rows (n, K) retrieved by the older version; -1 in empty places.

    Example:
        >>> top_k_overlap(np.array([[1, 2, 3, 4]]), np.array([[4, 3, 9, 8]]))
        0.5
    """
    if len(stale) != len(fresh):
        raise DataError(
            f"{len(stale)} stale result lists for {len(fresh)} fresh ones, expected equal numbers"
        )
    shares = []
    for old, new in zip(stale, fresh, strict=True):
        found = new[new >= 0]
        if len(found):
            shares.append(float(np.isin(found, old[old >= 0]).mean()))
    return float(np.mean(shares)) if shares else 1.0


def mean_cosine(old: Float32, new: Float32) -> float:
    """Mean cosine of vectors (n, D) before and after, row by row.

    Example:
        >>> mean_cosine(np.float32([[1, 0], [0, 2]]), np.float32([[3, 0], [1, 0]]))
        0.5
    """
    if old.shape != new.shape:
        raise DataError(f"vectors of shapes {old.shape} and {new.shape}, expected equal shapes")
    a, b = old.astype(np.float64), new.astype(np.float64)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(np.mean(np.sum(a * b, axis=1) / np.maximum(lengths, 1e-30)))


def score_entropy(scores: Float32, temperature: float = 1.0) -> float:
    """Mean entropy of p(z|q) = softmax(scores / temperature) as a share of the largest possible, 0 to 1.

    1 means all retrieved documents are equally likely, 0 that one has all the weight.

    Args:
        scores: (n, K); -inf in empty places.

    Example:
        >>> round(score_entropy(np.zeros((2, 4))), 3), round(score_entropy(np.array([[100.0, 0.0]])), 3)
        (1.0, 0.0)
    """
    from scipy.special import entr, softmax

    counts = np.isfinite(scores).sum(axis=1)
    values = np.where(np.isfinite(scores), scores, -np.inf)[counts > 1].astype(np.float64)  # (m, K)
    if not len(values):
        return 1.0
    entropies = entr(softmax(values / temperature, axis=1)).sum(axis=1)
    return float(np.mean(entropies / np.log(counts[counts > 1])))


def distinct_share(rows: Int64, documents: int) -> float:
    """Distinct documents among those retrieved per 1,000 questions, as a share of what is possible.

    Near 0 the retriever has collapsed: every question gets the same documents.

    Args:
        rows: (n, K); -1 in empty places.

    Example:
        >>> distinct_share(np.array([[0, 1], [0, 1]]), documents=100)
        0.5
    """
    shares = []
    for start in range(0, len(rows), _QUESTIONS_PER_BLOCK):
        block = rows[start : start + _QUESTIONS_PER_BLOCK]
        found = block[block >= 0]
        if found.size:
            shares.append(len(np.unique(found)) / min(found.size, documents))
    return float(np.mean(shares)) if shares else 0.0


@dataclass(frozen=True, slots=True)
class Staleness:
    """Staleness of the version before a refresh, on a probe set; figures not measured have their ideal value.

    Attributes:
        age_steps: steps between the two versions.
    """

    age_steps: int = 0
    overlap: float = 1.0
    cosine: float = 1.0
    entropy: float = 1.0
    distinct: float = 1.0

    def record(self) -> Mapping[str, float]:
        """The figures under their names in metrics files."""
        return {f"refresh/{name}": value for name, value in asdict(self).items()}

    def alarms(self) -> list[str]:
        """Sentences about what has gone wrong; empty if nothing has.

        Example:
            >>> Staleness(500, overlap=0.9, cosine=0.99, entropy=0.4, distinct=0.001).alarms()
            ['collapse: only 0.1% of the retrieved documents are distinct; lower the learning rate']
        """
        rules = (
            (
                self.overlap < _LOW_OVERLAP,
                f"stale: only {self.overlap:.0%} of the top documents were known after {self.age_steps:,} "
                "steps; refresh more often",
            ),
            (
                self.cosine < _LOW_COSINE,
                f"drift: old and new document vectors have a mean cosine of {self.cosine:.2f}; refresh more "
                "often or lower the learning rate",
            ),
            (
                self.entropy < _LOW_ENTROPY,
                f"peaked: p(z|q) has {self.entropy:.1%} of its largest entropy, one document takes all; "
                "raise the temperature",
            ),
            (
                self.distinct < _LOW_DISTINCT,
                f"collapse: only {self.distinct:.1%} of the retrieved documents are distinct; lower the "
                "learning rate",
            ),
        )
        return [sentence for applies, sentence in rules if applies]


@dataclass(frozen=True, slots=True)
class Probes:
    """Outputs of one version of the model for fixed questions and passages.

    Attributes:
        vectors: (m, D) float32, of passages.
        rows: (n, K) int64, best passages of questions, -1 in empty places.
    """

    vectors: Float32
    rows: Int64

    def write(self, folder: Path) -> None:
        """Write the vectors and rows to files in `folder`."""
        save_npy(folder / _VECTORS, self.vectors)
        save_npy(folder / _ROWS, self.rows)

    @classmethod
    def read(cls, folder: Path) -> Probes:
        """Memory-map the files that `write` wrote.

        Raises:
            ArtifactError: a file is missing or damaged.
        """
        return cls(load_npy(folder / _VECTORS, dtype=np.float32), load_npy(folder / _ROWS, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class ProbeSet:
    """The questions and passages that staleness is measured on, fixed for a whole run.

    Attributes:
        questions: (n,) examples.
        passages: (m,) rows of the corpus.
    """

    questions: Int64
    passages: Int64

    @classmethod
    def draw(cls, config: RefreshedConfig, seed: int, *, questions: int, passages: int) -> ProbeSet:
        """Draw at most `probe_questions` questions and `probe_passages` passages, in ascending order.

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
    scores: Float32,
    *,
    age_steps: int,
    corpus: int,
    temperature: float,
) -> Staleness:
    """Figures of a refresh; alarms are logged.

    Args:
        before, after: probes of the version that is replaced (None if there was none) and of the new one.
        scores: (n, K) of `after.rows`.
        age_steps: training steps between the two versions.
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

    def __init__(self, encode: Callable[[], Float32]) -> None:
        self._encode = encode
        self._reference: Float32 | None = None

    def save(self, folder: Path) -> None:
        """Make the current model the new reference and save its probe vectors in a snapshot's folder."""
        self._reference = self._encode()
        save_npy(folder / _VECTORS, self._reference)

    def load(self, folder: Path) -> None:
        """Make the model of this snapshot the reference."""
        now = self._encode()
        self._reference = load_npy(folder / _VECTORS, dtype=now.dtype, shape=now.shape).copy()

    def __call__(self) -> float | None:
        """Drift since the last snapshot; None if there is none."""
        if self._reference is None:
            return None
        return 1.0 - mean_cosine(self._reference, self._encode())
