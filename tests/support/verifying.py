"""A verifier that compares words, for tests of what stands around a verifier."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rag.core.arrays import Float32
from readers.protocols import Verifier

_NEGATIONS = {"no", "not", "never"}


class WordVerifier(Verifier):
    """Needs half of the claim's words in the text; a negation in one of the two alone refutes."""

    name = "words"
    version = "1"

    def probabilities(self, claims: Sequence[str], texts: Sequence[str]) -> Float32:
        rows = [self._row(claim, text) for claim, text in zip(claims, texts, strict=True)]
        return np.array(rows, dtype=np.float32).reshape(-1, 3)

    def _row(self, claim: str, text: str) -> tuple[float, float, float]:
        wanted = _words(claim)
        found = _words(text)
        share = len(found & wanted) / max(1, len(wanted))
        if share < 0.5:
            return (share * 0.5, share * 0.25, 1 - share * 0.75)
        decided = 0.4 + share / 2
        rest = 1 - decided
        if bool(found & _NEGATIONS) == bool(wanted & _NEGATIONS):
            return (decided, rest * 0.25, rest * 0.75)
        return (rest * 0.25, decided, rest * 0.75)


def _words(text: str) -> set[str]:
    return {word.strip(".,:;!?\"'()").lower() for word in text.split()} - {""}
