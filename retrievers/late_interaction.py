"""Late interaction: search by a question's token vectors in the compressed token vectors of passages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from indexers.selected import Selection
from indexers.token_index import TokenIndex
from rag.core.progress import StageTimer
from rag.core.types import Hit
from retrievers.dense import check_dim, stage, to_hits
from retrievers.protocols import Passages

if TYPE_CHECKING:
    from retrievers.encoders.bi_encoder import BiEncoder


class LateInteractionRetriever:
    """Searches token vectors; scores are MaxSim.

    Args:
        tokens: token vectors of the passages.
        passages: the passage store, in the same order.
        encoder: encodes questions.

    Raises:
        MismatchedArtifactError: the encoder's vectors are of another size.
    """

    def __init__(self, tokens: TokenIndex, passages: Passages, encoder: BiEncoder) -> None:
        check_dim(tokens.dim, encoder.identity)
        self.tokens, self.passages, self.encoder = tokens, passages, encoder

    def search(
        self,
        questions: Sequence[str],
        top_k: int,
        *,
        timer: StageTimer | None = None,
        selected: Selection | None = None,
    ) -> list[list[Hit]]:
        """Best passages of each question; see `Retriever.search`."""
        if not questions:
            return []
        with stage(timer, "encode_question"):
            vectors = self.encoder.question_tokens(questions)
            values, lengths = np.asarray(vectors.values, np.float32), np.asarray(vectors.lengths)
        with stage(timer, "search_tokens"):
            return to_hits(*self.tokens.search(values, lengths, top_k, selected=selected), self.passages)
