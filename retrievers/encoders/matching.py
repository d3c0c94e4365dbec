"""Scores passages by how their words match a question's, with the vectors of a static encoder.

A vector per text forgets which words stand together. Here every token of the question looks for its
most similar token in the passage, as in late interaction, but with vectors that know no context, so
that sixty passages take some milliseconds; no network runs.

Source:
    Khattab and Zaharia 2020, "ColBERT: Efficient and Effective Passage Search via Contextualized
    Late Interaction over BERT" (MaxSim); Guo et al. 2016, "A Deep Relevance Matching Model for
    Ad-hoc Retrieval" (static vectors, weights of question terms); Metzler and Croft 2005, "A Markov
    Random Field Model for Term Dependencies" (adjacent words, words within a window).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from rag.core.arrays import Bool, Float32, Int32, Int64, ranges
from rag.core.types import Passage
from retrievers.encoders.static import StaticEncoder, unit_rows

FEATURES = ("cosine", "maxsim", "window", "adjacent", "title", "peak")
# In units of the scores that `default_fusion` gives. Their proportions were fitted for the encoder of
# the package on 2,200 held-out training questions of NQ, SQuAD, HotpotQA, WebQuestions and
# CuratedTREC (likelihood of the right passages), their size again when the fusion changed.
WEIGHTS = np.array([44.9, 21.6, 14.0, 11.4, 4.0, -14.2], np.float32)
_BLOCK = 16  # tokens; a window is two blocks that follow one another


class TokenMatch:
    """Scores pairs of question and passage by six features of their matching tokens.

    A token t has the weight g(t) = ‖v(t)‖², since training makes the vectors of telling tokens
    long. For a question of tokens q and a passage of tokens p, with c(q, p) the cosine of two
    tokens and all sums over q divided by Σ g(q):

        cosine    of the vectors of question and passage
        maxsim    Σ g(q) max c(q, p)
        window    the largest such sum with p within 32 tokens
        adjacent  share of the question's pairs of adjacent tokens, by weight, that are adjacent
                  in p
        title     Σ g(t) max(0, c(q, t))² / Σ g(t) over the tokens t of the title
        peak      largest v(p) · v / √mean g, where v is the question's vector: a passage that owes
                  its cosine to one token

    Implements `retrievers.protocols.PairScorer`.

    Args:
        encoder: the static encoder that the passages were indexed with.
    """

    is_log_odds = False

    def __init__(self, encoder: StaticEncoder) -> None:
        self.encoder = encoder
        self._units = unit_rows(encoder.vectors)  # (V, D)
        self._weight = np.linalg.norm(encoder.vectors, axis=1) ** 2  # (V,)
        self._scale = float(np.sqrt(self._weight.mean()))

    @property
    def name(self) -> str:
        """Name of the encoder."""
        return self.encoder.identity.name

    def score(self, questions: Sequence[str], passages: Sequence[Passage]) -> Float32:
        """Scores (n,) float32 of n pairs; neighbouring pairs of one question are scored
        together.
        """
        scores = np.empty(len(questions), np.float32)
        start = 0
        for question, group in groupby(questions):
            stop = start + sum(1 for _ in group)
            scores[start:stop] = self.features(question, passages[start:stop]) @ WEIGHTS
            start = stop
        return scores

    def features(self, question: str, passages: Sequence[Passage]) -> Float32:
        """The features (n, 6) float32 of n passages; zero where question or passage has no
        token.
        """
        question_ids, _ = self.encoder.tokens([question])
        titles = [passage.title for passage in passages]
        texts = self.encoder.rendered(titles, [passage.text for passage in passages])
        flat, bounds = self.encoder.tokens(texts)
        values = np.zeros((len(passages), len(FEATURES)), np.float32)
        filled = np.flatnonzero(np.diff(bounds))
        if not len(filled) or not self._weight[question_ids].sum() > 0:
            return values
        starts = bounds[filled]
        ends = bounds[filled + 1]
        weights = self._weight[question_ids] / self._weight[question_ids].sum()  # (m,)
        # A token that comes several times is compared once.
        distinct, number = np.unique(flat, return_inverse=True)
        cosines = (self._units[question_ids] @ self._units[distinct].T)[:, number]  # (m, T)
        same = question_ids[:, None] == flat  # (m, T)
        query = unit_rows(self.encoder.encode_questions([question]))[0]
        values[:, 0] = unit_rows(self.encoder.means(flat, bounds)) @ query
        values[filled, 1] = weights @ np.maximum.reduceat(cosines, starts, axis=1)
        values[filled, 2] = _best_window(cosines, weights, starts, ends)
        values[filled, 3] = _adjacent(same, weights, starts, ends)
        values[:, 4] = self._titles(question_ids, *self.encoder.tokens(titles))
        products = (self.encoder.vectors[distinct] @ query)[number]  # (T,)
        values[filled, 5] = np.maximum.reduceat(products, starts)
        values[:, 5] /= max(self._scale, 1e-12)
        return values

    def _titles(self, question_ids: Int32, flat: Int32, bounds: Int64) -> Float32:
        """Feature "title" (n,) of n titles, given their tokens (T,) and where each begins."""
        cosines = self._units[question_ids] @ self._units[flat].T  # (m, T)
        best = np.maximum(cosines.max(axis=0, initial=0), 0)  # (T,)
        # One more of each, so that an empty last title has a place to begin at.
        weights = np.append(self._weight[flat], 0)
        matches = weights * np.append(best, 0) ** 2
        sums = np.add.reduceat(np.stack([matches, weights]), bounds[:-1], axis=1)
        sums[:, np.diff(bounds) == 0] = 0
        return np.asarray(sums[0] / np.maximum(sums[1], 1e-12), np.float32)


def _best_window(matches: Float32, weights: Float32, starts: Int64, ends: Int64) -> Float32:
    """Largest weighted sum (n,) of the maxima of each question token's values (m, T) within two
    blocks.
    """
    counts = -(-(ends - starts) // _BLOCK)  # blocks of each passage
    first = np.cumsum(counts) - counts
    number = ranges(0, counts)  # of each block in its passage
    blocks = np.maximum.reduceat(matches, np.repeat(starts, counts) + _BLOCK * number, axis=1)
    # The last block of a passage has no next one, and is a window of its own.
    following = np.minimum(np.arange(len(number)) + 1, np.repeat(first + counts - 1, counts))
    sums = weights @ np.maximum(blocks, blocks[:, following])
    return np.asarray(np.maximum.reduceat(sums, first), np.float32)


def _adjacent(same: Bool, weights: Float32, starts: Int64, ends: Int64) -> Float32:
    """Share (n,) of the pairs of adjacent question tokens that a passage has as such, by weight."""
    pairs = weights[:-1] + weights[1:]  # (m - 1,)
    if not len(pairs):
        return np.zeros(len(starts), np.float32)
    both = np.pad(same[:-1, :-1] & same[1:, 1:], ((0, 0), (0, 1)))
    both[:, ends - 1] = False  # the next token belongs to another passage
    return np.asarray((pairs / pairs.sum()) @ np.maximum.reduceat(both, starts, axis=1), np.float32)
