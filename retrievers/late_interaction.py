"""Late interaction: search by a question's token vectors in the compressed token vectors of passages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from indexers.selected import Selection
from indexers.token_index import TokenIndex
from rag.config import Config
from rag.core.progress import StageTimer
from rag.core.types import Hit
from retrievers.dense import check_dim, stage, to_hits
from retrievers.protocols import Passages

if TYPE_CHECKING:
    from retrievers.encoders.bi_encoder import BiEncoder


class TokenSearchOptions(Config):
    """Options of the search in token vectors; see `TokenIndex.search`.

    Attributes:
        ndocs: number of passages that are compared by the centroids of all their tokens; None: set by the
            number of hits and the corpus size.
    """

    ndocs: int | None = Field(default=None, ge=1)


class LateInteractionRetriever:
    """Searches token vectors; scores are MaxSim.

    Args:
        tokens: token vectors of the passages.
        passages: the passage store, in the same order.
        encoder: encodes questions.
        options: search options.

    Raises:
        MismatchedArtifactError: the encoder's vectors are of another size.
    """

    def __init__(
        self, tokens: TokenIndex, passages: Passages, encoder: BiEncoder,
        options: TokenSearchOptions | None = None,
    ) -> None:  # fmt: skip
        check_dim(tokens.dim, encoder.identity)
        self.tokens, self.passages, self.encoder = tokens, passages, encoder
        self.options = options or TokenSearchOptions()

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
            found = self.encoder.question_tokens(questions)
            values, lengths = np.asarray(found.values, np.float32), np.asarray(found.lengths)
        with stage(timer, "search_tokens"):
            scores, rows = self.tokens.search(
                values, lengths, top_k, ndocs=self.options.ndocs, selected=selected
            )
            return to_hits(scores, rows, self.passages)
