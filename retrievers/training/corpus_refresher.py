"""What refreshes in training share: snapshots of a bi-encoder, and search over the corpus it encodes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from indexers.embedding_shards import EmbeddingShards
from indexers.exact import exact_search
from rag.core.arrays import Float32, Int64
from rag.core.types import Query
from rag.training.refresh import Refresh, Refreshed, Refresher
from retrievers.protocols import TextEncoder
from retrievers.training.bi_encoder import BiEncoderModel, encoder_form, export_model

_QUERIES_AT_ONCE = 2048


class EncodedCorpus:
    """Exact search over the vectors that one snapshot of the encoder gives the corpus."""

    def __init__(self, encoder: TextEncoder, embeddings: EmbeddingShards) -> None:
        self._encoder, self._embeddings = encoder, embeddings

    def search(self, queries: Sequence[Query], top_k: int) -> Int64:
        """Rows (n, K), best first."""
        firsts = range(0, len(queries), _QUERIES_AT_ONCE)
        blocks = (queries[first : first + _QUERIES_AT_ONCE] for first in firsts)
        return np.concatenate([self._search_block(block, top_k)[1] for block in blocks])

    def _search_block(self, queries: Sequence[Query], top_k: int) -> tuple[Float32, Int64]:
        return exact_search(self._embeddings, self._encoder.encode_queries(queries), top_k)


def encoder_refresh(
    config: Any,
    model: BiEncoderModel,
    weights: Callable[[], Mapping[str, Tensor]],
    make: Callable[..., Refresher],
    take_up: Callable[[Refreshed], Mapping[str, float]],
    *,
    max_length: int,
    **others: Any,
) -> Refresh:
    """Hooks that publish a bi-encoder as the folder `encoder` and take up what is made with it.

    Args:
        model: the model in training.
        weights: returns the weights of `model` in fp32.
        max_length: maximum text length, in tokens, of the published encoders.
        make, take_up, others: see `Refresh`.
    """
    form = replace(encoder_form(config, model), max_length=max_length)

    def write_snapshot(folder: Path) -> None:
        export_model(folder / "encoder", model, weights(), form)

    return Refresh(config, make, write_snapshot, take_up, **others)
