"""The token vectors that a static encoder starts from: those of a teacher, fitted to its passage vectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from indexers.index import Index
from indexers.protocols import PassageEncoder
from rag.core.arrays import Float32, Float64, Int32, Int64
from rag.core.progress import Progress
from rag.core.types import Passage, Query
from rag.runtime.model_files import folder_tokenizer
from rag.runtime.seeds import generator
from retrievers.encoders.layout import PassageLayout
from retrievers.encoders.word_cache import WordCache

FITTED_PASSAGES = 200_000  # of the index, drawn at random
_QUESTION_TOKENS, _PASSAGE_TOKENS = 64, 256  # that are read in training
_AT_ONCE = 2048  # tokens that the teacher encodes between two steps of the progress; passages read at once
_STEPS = 20  # of `fit_tokens`
_SMOOTHING = 1e-3  # a of `frequency_weights`
_RIDGE = 1e-3  # λ of `fit_tokens`


class StaticTokenizer:
    """Questions and passages to token ids, laid out as the finished encoder reads them."""

    def __init__(self, folder: Path) -> None:
        file = folder / "tokenizer.json"
        self.tokenizer = folder_tokenizer(folder)
        self.file, self.size = file, self.tokenizer.get_vocab_size()
        self._layout = PassageLayout("{title} {text}")
        self._questions = WordCache(self.tokenizer, _QUESTION_TOKENS)
        self._passages = WordCache(self.tokenizer, _PASSAGE_TOKENS)

    def queries(self, queries: Sequence[Query]) -> list[Int32]:
        """Token ids of questions, in order."""
        return _rows(*self._questions([query.question for query in queries]))

    def passages(self, passages: Sequence[Passage]) -> list[Int32]:
        """Token ids of passages, in order."""
        titles, texts = [p.title for p in passages], [p.text for p in passages]
        return _rows(*self._passages(self._layout.render(titles, texts)[0]))


def principal_axes(vectors: Float32, dim: int) -> Float32:
    """The axes (D, dim) that best preserve the inner products of vectors (n, D), strongest first.

    The vectors are not centred: search compares them as they are.
    """
    moments = vectors.T.astype(np.float64) @ vectors
    return np.ascontiguousarray(np.linalg.eigh(moments)[1][:, ::-1][:, :dim], np.float32)


def token_texts(tokenizer: Any) -> list[str]:
    """Each token of a vocabulary as a text, without the mark of word pieces."""
    texts = (tokenizer.decode([n], skip_special_tokens=False) for n in range(tokenizer.get_vocab_size()))
    return [text.strip().removeprefix("##") for text in texts]


def frequency_weights(counts: Int64, smooth: float) -> Float32:
    """Weights a / (a + p(t)) of tokens (V,) that occur `counts` times.

    Source:
        Arora et al. 2017, "A Simple but Tough-to-Beat Baseline for Sentence Embeddings", equation 3.
    """
    shares = counts / max(1, counts.sum())
    return np.asarray(smooth / (smooth + shares), np.float32)


def fit_tokens(bags: csr_matrix, targets: Float32, start: Float32, ridge: float, *, steps: int) -> Float32:
    r"""Fit token vectors W (V, D) whose means approximate the targets, by conjugate gradients from `start`.

        W = argmin ‖X W − T‖² + λ ‖W − W₀‖²

    Every dimension is a separate linear system with the same matrix XᵀX + λ; all are solved together. Tokens
    that occur in no passage stay at W₀.

    Args:
        bags: X (n, V), the share of each token in each passage.
        targets: T (n, D).
        start: W₀ (V, D).
        ridge: λ.
        steps: number of iterations.

    Source:
        Hestenes and Stiefel 1952, "Methods of Conjugate Gradients for Solving Linear Systems".
    """
    turned = bags.T.tocsr()

    def times(values: Float32) -> Float32:
        return np.asarray(turned @ (bags @ values), np.float32) + np.float32(ridge) * values

    found = start.copy()
    rest = np.asarray(turned @ (targets - bags @ found), np.float32)  # of XᵀT + λW₀ − (XᵀX + λ)W
    along, length = rest.copy(), _squares(rest, 0)
    for _ in range(steps):
        image = times(along)
        step = length / np.maximum(np.einsum("vd,vd->d", along, image, dtype=np.float64), 1e-30)
        found += step.astype(np.float32) * along
        rest -= step.astype(np.float32) * image
        new = _squares(rest, 0)
        along = rest + (new / np.maximum(length, 1e-30)).astype(np.float32) * along
        length = new
    return found


def distilled_tokens(
    teacher: PassageEncoder, index: Index, tokens: StaticTokenizer, *, dim: int, seed: int
) -> Float32:
    """Token vectors (V, dim): the teacher's of each token alone, weighted by frequency, then fitted to its
    vectors of passages that are drawn from the index.

    They are scaled so that the mean squared length over the tokens of the passages is 1: cosines do not
    depend on the scale, but this way one learning rate suits all teachers.

    Args:
        teacher: the encoder of `index`.
        dim: number of dimensions to keep, at most the teacher's.

    Source:
        Tulkens and van Dongen 2024, "Model2Vec: Fast State-of-the-Art Static Embeddings": vectors of single
        tokens, principal components, weights by frequency.
    """
    count = min(FITTED_PASSAGES, len(index.passages))
    rows = np.sort(generator(seed, 41).choice(len(index.passages), count, replace=False))
    bags, counts = _bags(index, rows, tokens)
    targets = index.require_dense().embeddings.rows(rows)
    axes = principal_axes(targets, dim)
    texts = token_texts(tokens.tokenizer)
    alone = np.empty((len(texts), axes.shape[1]), np.float32)  # (V, dim)
    with Progress(len(texts), "tokens", "encode tokens") as progress:
        for first in range(0, len(texts), _AT_ONCE):
            part = texts[first : first + _AT_ONCE]
            encoded = teacher.encode_passages([""] * len(part), part)
            alone[first : first + len(part)] = np.asarray(encoded, np.float32) @ axes
            progress.update(len(part))
    start = alone * frequency_weights(counts, _SMOOTHING)[:, None]
    wanted = targets @ axes
    means = np.asarray(bags @ start, np.float32)
    start *= np.float32((means * wanted).sum() / max(float((means**2).sum()), 1e-30))  # the targets' length
    fitted = fit_tokens(bags, wanted, start, _RIDGE, steps=_STEPS)
    shares = counts / max(1, counts.sum())
    return fitted / np.float32(np.sqrt(max(float(shares @ _squares(fitted, 1)), 1e-30)))


def _bags(index: Index, rows: Int64, tokens: StaticTokenizer) -> tuple[csr_matrix, Int64]:
    """(n, V) share of each token in each passage, and how often each occurs in all (V,)."""
    parts: list[Int32] = []
    for first in range(0, len(rows), _AT_ONCE):
        parts += tokens.passages(index.passages.get_many(rows[first : first + _AT_ONCE]))
    lengths = np.fromiter(map(len, parts), np.int64, len(rows))
    flat = np.concatenate(parts)
    shares = np.repeat(1 / np.maximum(lengths, 1), lengths).astype(np.float32)
    bounds = np.append(0, np.cumsum(lengths))
    bags = csr_matrix((shares, flat, bounds), shape=(len(rows), tokens.size))
    return bags, np.bincount(flat, minlength=tokens.size)


def _squares(values: Float32, axis: int) -> Float64:
    total: Float64 = np.square(values, dtype=np.float64).sum(axis)
    return total


def _rows(values: Int32, bounds: Any) -> list[Int32]:
    return np.split(values, bounds[1:-1])
