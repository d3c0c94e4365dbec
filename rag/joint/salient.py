"""Which words of a sentence to mask: a name or date, which a passage may help to predict, or a run of words.

Rules find dates; the titles of the corpus and capital letters tell names.

Source:
    Guu et al. 2020, "REALM: Retrieval-Augmented Language Model Pre-Training", section 3.4 (salient spans),
    table 2 (random spans in their place).
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from rag.core.types import Passage
from rag.data.salient import WORDS, CapitalTagger, CharSpans, title_hashes
from rag.joint.config import Masks

_GO_ON = 0.8  # of a random span, after each word: 3.8 words on average with at most ten
_LONGEST = 10


def title_tagger(passages: Iterable[Passage], folder: Path, *, key: str) -> CapitalTagger:
    """Finds names by capital letters and by the titles of passages.

    Args:
        folder: where the hashes of the titles are stored.
        key: fingerprint of `passages`: other passages have other titles.
    """
    return CapitalTagger(title_hashes(passages, folder / f"titles-{key[:16]}.npy"))


def choose_spans(how: Masks, sentence: str, salient: CharSpans, draw: np.random.Generator) -> CharSpans:
    """The spans of a sentence to mask; empty if there are none.

    Args:
        how: "salient" masks one of `salient`; "span" masks one run of words of random length.

    Example:
        >>> draw = np.random.default_rng(0)
        >>> choose_spans("salient", "In May 1983 it sank.", [(3, 11)], draw)
        [(3, 11)]
        >>> len(choose_spans("span", "one two three four five six seven", [], draw))
        1
    """
    if how == "salient":
        return [salient[int(draw.integers(len(salient)))]] if salient else []
    words = [match.span() for match in WORDS.finditer(sentence)]
    if not words:
        return []
    length = min(1 + int(np.argmin(draw.random(_LONGEST) < _GO_ON)), _LONGEST, len(words))
    first = int(draw.integers(len(words) - length + 1))
    return [(words[first][0], words[first + length - 1][1])]
