"""The teacher's scores as targets of a static encoder's batches."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np

from indexers.index import Index
from rag.core.arrays import Float16, Float32, Int64
from rag.core.files import fingerprint
from rag.core.log import get_logger
from rag.core.npy import load_npy, save_npy
from rag.core.progress import Progress
from rag.core.types import Passage
from rag.data.examples import Example
from retrievers.examples.data import TrainingSet, passage_hash
from retrievers.protocols import TextEncoder

_AT_ONCE = 2048  # texts of a piece, which a killed run need not encode again
log = get_logger(__name__)
T = TypeVar("T")


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
    temperature: float

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

    Passages of the index have theirs already; the others are encoded, in pieces that a killed run keeps.

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
        asked = (example.query for example in examples())
        save_npy(files[0][0], _pieces(asked, len(data), teacher.encode_queries, place, "questions"))
        save_npy(files[1][0], _passages(teacher, index, data, examples(), place))
        for piece in place.glob("*-*.npy"):
            piece.unlink()
    questions, passages = (load_npy(file, dtype=np.float16, shape=shape) for file, shape in files)
    return questions, passages


def _passages(
    teacher: TextEncoder, index: Index, data: TrainingSet, examples: Iterable[Example], place: Path
) -> Float16:
    embeddings = index.require_dense().embeddings
    wanted, places = np.unique(data.hashes, return_inverse=True)
    vectors = np.zeros((len(wanted), embeddings.dim), np.float16)
    missing = dict(zip(wanted.tolist(), range(len(wanted)), strict=True))
    first = 0
    for batch in index.passages.batches(_AT_ONCE):
        known = [(row, missing.pop(passage_hash(p), -1)) for row, p in enumerate(batch, first)]
        rows = np.array([pair for pair in known if pair[1] >= 0], np.int64).reshape(-1, 2)
        vectors[rows[:, 1]] = embeddings.rows(rows[:, 0])
        first += len(batch)
    if missing:
        total, order = len(missing), list[int]()
        log.info("%d of %d passages are not in the index: the teacher encodes them", total, len(wanted))

        def others() -> Iterator[Passage]:
            for example in examples:
                for candidate in example.candidates:
                    if (at := missing.pop(passage_hash(candidate.passage), None)) is not None:
                        order.append(at)
                        yield candidate.passage

        def encode(passages: Sequence[Passage]) -> Float32:
            return teacher.encode_passages([p.title for p in passages], [p.text for p in passages])

        encoded = _pieces(others(), total, encode, place, "passages")  # which also fills `order`
        vectors[order] = encoded
    return vectors[places]


def _pieces(
    texts: Iterable[T], total: int, encode: Callable[[Sequence[T]], Float32], place: Path, unit: str
) -> Float16:
    """The vectors of texts, piece by piece; pieces of an earlier start are read."""
    pieces: list[Float16] = []
    left = iter(texts)
    with Progress(total, unit, f"teacher: {unit}") as progress:
        while part := list(islice(left, _AT_ONCE)):
            file = place / f"{unit}-{len(pieces)}.npy"
            if not file.exists():
                save_npy(file, encode(part).astype(np.float16))
            pieces.append(load_npy(file, dtype=np.float16))
            progress.update(len(part))
    return np.concatenate(pieces)
