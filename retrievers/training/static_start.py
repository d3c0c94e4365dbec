"""The token vectors that a static encoder starts from: those of a teacher, fitted to its passage vectors."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from indexers.protocols import PassageEncoder
from rag.core.arrays import Float32, Float64
from rag.core.progress import Progress

_AT_ONCE = 2048  # tokens that the teacher encodes between two steps of the progress
_SMOOTHING = 1e-3  # a of `frequency_weights`
_RIDGE = 1e-3  # λ of `fit_tokens`


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


def frequency_weights(counts: NDArray[np.int64], smooth: float) -> Float32:
    """Weights a / (a + p(t)) of tokens (V,) that occur `counts` times.

    Source:
        Arora et al. 2017, "A Simple but Tough-to-Beat Baseline for Sentence Embeddings", equation 3.
    """
    shares = counts / max(1, counts.sum())
    return np.asarray(smooth / (smooth + shares), np.float32)


def fit_tokens(
    bags: csr_matrix,
    targets: Float32,
    start: Float32,
    ridge: float,
    *,
    steps: int,
    done: Callable[[int], None] = lambda count: None,
) -> Float32:
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
        done: called with 1 after each.

    Source:
        Hestenes and Stiefel 1952, "Methods of Conjugate Gradients for Solving Linear Systems".
    """
    turned = bags.T.tocsr()

    def times(values: Float32) -> Float32:
        return np.asarray(turned @ (bags @ values), np.float32) + np.float32(ridge) * values

    found = start.copy()
    rest = np.asarray(turned @ (targets - bags @ found), np.float32)  # of XᵀT + λW₀ − (XᵀX + λ)W
    along, length = rest.copy(), _squares(rest)
    for _ in range(steps):
        image = times(along)
        step = length / np.maximum(np.einsum("vd,vd->d", along, image, dtype=np.float64), 1e-30)
        found += step.astype(np.float32) * along
        rest -= step.astype(np.float32) * image
        new = _squares(rest)
        along = rest + (new / np.maximum(length, 1e-30)).astype(np.float32) * along
        length = new
        done(1)
    return found


def distilled_tokens(
    teacher: PassageEncoder,
    tokenizer: Any,
    bags: csr_matrix,
    targets: Float32,
    counts: NDArray[np.int64],
    *,
    dim: int,
    steps: int,
) -> Float32:
    """Token vectors (V, dim): the teacher's of each token alone, weighted by frequency, then fitted.

    They are scaled so that the mean squared length over the tokens of the passages is 1: cosines do not
    depend on the scale, but this way one learning rate suits all teachers.

    Args:
        teacher: the encoder that made `targets`.
        bags: (n, V) shares of the tokens of n passages.
        targets: (n, D) the teacher's vectors of these passages.
        counts: (V,) how often each token occurs in them.
        dim: number of dimensions to keep, at most D.
        steps: of `fit_tokens`; without steps nothing is fitted.

    Source:
        Tulkens and van Dongen 2024, "Model2Vec: Fast State-of-the-Art Static Embeddings": vectors of single
        tokens, principal components, weights by frequency.
    """
    axes = principal_axes(targets, dim)
    texts = token_texts(tokenizer)
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
    with Progress(steps, "steps", "fit tokens") as progress:
        fitted = fit_tokens(bags, wanted, start, _RIDGE, steps=steps, done=progress.update)
    return to_one_scale(fitted, counts)


def to_one_scale(vectors: Float32, counts: NDArray[np.int64]) -> Float32:
    """Token vectors (V, D) scaled so that their mean squared length over `counts` (V,) tokens is 1."""
    shares = counts / max(1, counts.sum())
    return vectors / np.float32(np.sqrt(max(float(shares @ _lengths(vectors)), 1e-30)))


def _squares(values: Float32) -> Float64:
    total: Float64 = np.einsum("vd,vd->d", values, values, dtype=np.float64)
    return total


def _lengths(vectors: Float32) -> Float64:
    squared: Float64 = np.einsum("vd,vd->v", vectors, vectors, dtype=np.float64)
    return squared
