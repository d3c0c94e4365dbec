"""The teacher's scores as targets of a static encoder's batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from indexers.index import Index
from rag.core.arrays import Float16, Float32, Int64, UInt64
from rag.core.files import fingerprint, hash64
from rag.core.log import get_logger
from rag.core.npy import load_npy, save_npy
from rag.core.types import Passage
from retrievers.examples.data import ExampleTable
from retrievers.protocols import TextEncoder

_AT_ONCE = 2048  # passages of the index that are read at once
log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TeacherTargets:
    """A teacher's scores of every passage of a batch, ⟨q, d⟩ / T', as logits of its distribution.

    Attributes:
        questions: (Q, D) the teacher's vectors of the examples' questions.
        hashes: (N,) of the examples' passages, ascending.
        passages: (N, D) the teacher's vectors of those.
        temperature: T'.
    """

    questions: Float16
    hashes: UInt64
    passages: Float16
    temperature: float = 0.05

    def __call__(self, examples: Int64, passages: Sequence[Passage]) -> Float32:
        """Targets (B, P), see `BatchTargets`."""
        rows = np.searchsorted(self.hashes, [_hash(passage) for passage in passages])
        questions, vectors = (v.astype(np.float32) for v in (self.questions[examples], self.passages[rows]))
        scores: Float32 = questions @ vectors.T
        scores /= self.temperature
        return scores


def teacher_vectors(
    teacher: TextEncoder, index: Index, examples: ExampleTable, folder: Path, key: str
) -> tuple[Float16, UInt64, Float16]:
    """The teacher's vectors of the examples' questions, and hashes and vectors of their passages.

    Passages of the index have their vectors already; the others are encoded.

    Args:
        teacher: the encoder of `index`.
        folder: holds the result for the next start of the run.
        key: identifies the examples.
    """
    place = folder / f"teacher-{fingerprint([key, index.version, teacher.identity.to_json()])[:16]}"
    names, types = ("questions", "hashes", "passages"), (np.float16, np.uint64, np.float16)
    files = [place / f"{name}.npy" for name in names]
    if not all(file.exists() for file in files):
        place.mkdir(parents=True, exist_ok=True)
        questions = teacher.encode_queries([example.query for example in examples])
        save_npy(files[0], questions.astype(np.float16))
        found, vectors = _passages(teacher, index, examples)
        save_npy(files[1], found)
        save_npy(files[2], vectors)
    first, hashes, last = (load_npy(file, dtype=kind) for file, kind in zip(files, types, strict=True))
    return first, hashes, last


def _passages(teacher: TextEncoder, index: Index, examples: ExampleTable) -> tuple[UInt64, Float16]:
    embeddings = index.require_dense().embeddings
    listed = {_hash(c.passage): c.passage for example in examples for c in example.candidates}
    hashes = np.array(sorted(listed), np.uint64)
    vectors = np.zeros((len(hashes), embeddings.dim), np.float16)
    missing = {key: place for place, key in enumerate(hashes.tolist())}
    first = 0
    for batch in index.passages.batches(_AT_ONCE):
        pairs = [(row, missing.pop(_hash(p), -1)) for row, p in enumerate(batch, first)]
        rows = np.array([pair for pair in pairs if pair[1] >= 0], np.int64).reshape(-1, 2)
        vectors[rows[:, 1]] = embeddings.rows(rows[:, 0])
        first += len(batch)
    if missing:
        log.info("%d of %d passages are not in the index: they are encoded", len(missing), len(hashes))
        others = [listed[key] for key in missing]
        vectors[list(missing.values())] = teacher.encode_passages(
            [passage.title for passage in others], [passage.text for passage in others]
        )
    return hashes, vectors


def _hash(passage: Passage) -> int:
    return hash64(f"{passage.title}\0{passage.text}".encode())
