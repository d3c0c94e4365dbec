"""The teacher's scores as targets of a static encoder's batches."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from indexers.index import Index
from rag.core.arrays import Float16, Float32, Int64
from rag.core.files import fingerprint
from rag.core.log import get_logger
from rag.core.npy import load_npy, save_npy
from rag.data.examples import Example
from retrievers.examples.data import TrainingSet, passage_hash
from retrievers.protocols import TextEncoder

_AT_ONCE = 2048  # passages of the index that are read at once
log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TeacherTargets:
    """A teacher's scores of every passage of a batch, ⟨q, d⟩ / T', as logits of its distribution.

    Attributes:
        questions: (Q, D) the teacher's vectors of the training set's questions.
        passages: (N, D) those of its passages.
        temperature: T'.
    """

    questions: Float16
    passages: Float16
    temperature: float = 0.05

    def __call__(self, examples: Int64, rows: Int64) -> Float32:
        """Targets (B, P), see `BatchTargets`."""
        questions, passages = self.questions[examples], self.passages[rows]
        scores: Float32 = questions.astype(np.float32) @ passages.astype(np.float32).T
        scores /= self.temperature
        return scores


def teacher_vectors(
    teacher: TextEncoder,
    index: Index,
    data: TrainingSet,
    examples: Callable[[], Iterable[Example]],
    folder: Path,
    key: str,
) -> tuple[Float16, Float16]:
    """The teacher's vectors (Q, D) of a training set's questions and (N, D) of its passages.

    Passages of the index have theirs already; the others are encoded.

    Args:
        teacher: the encoder of `index`.
        data: made of `examples`.
        examples: reads those of the training set, in order.
        folder: holds the result for the next start of the run.
        key: identifies the examples, and the passages that `data` has besides theirs.
    """
    dim = index.require_dense().embeddings.dim
    place = folder / f"teacher-{fingerprint([key, index.version, teacher.identity.to_json()])[:16]}"
    files = [(place / f"{name}.npy", (count, dim)) for name, count in
             (("questions", len(data)), ("passages", len(data.passages)))]  # fmt: skip
    if not all(file.exists() for file, _ in files):
        place.mkdir(parents=True, exist_ok=True)
        questions = teacher.encode_queries([example.query for example in examples()])
        save_npy(files[0][0], questions.astype(np.float16))
        save_npy(files[1][0], _passages(teacher, index, data, examples()))
    first, second = (load_npy(file, dtype=np.float16, shape=shape) for file, shape in files)
    return first, second


def _passages(teacher: TextEncoder, index: Index, data: TrainingSet, examples: Iterable[Example]) -> Float16:
    embeddings = index.require_dense().embeddings
    hashes, places = np.unique(data.hashes, return_inverse=True)
    vectors = np.zeros((len(hashes), embeddings.dim), np.float16)
    missing = dict(zip(hashes.tolist(), range(len(hashes)), strict=True))
    first = 0
    for batch in index.passages.batches(_AT_ONCE):
        pairs = [(row, missing.pop(passage_hash(p), -1)) for row, p in enumerate(batch, first)]
        rows = np.array([pair for pair in pairs if pair[1] >= 0], np.int64).reshape(-1, 2)
        vectors[rows[:, 1]] = embeddings.rows(rows[:, 0])
        first += len(batch)
    if missing:
        log.info(
            "%d of %d passages are not in the index: the teacher encodes them", len(missing), len(hashes)
        )
        candidates = (candidate.passage for example in examples for candidate in example.candidates)
        others = {missing[key]: p for p in candidates if (key := passage_hash(p)) in missing}
        titles, texts = [p.title for p in others.values()], [p.text for p in others.values()]
        vectors[list(others)] = teacher.encode_passages(titles, texts)
    return vectors[places]
