"""An index that the trainer searches with the current question encoder, refreshed while it trains.

A refresh writes `embeddings/`, float32 vectors of the whole corpus by a snapshot of the encoder, which
replace those of the trainer and are searched exactly.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from indexers.embeddings import EmbeddingShards, encode_corpus
from indexers.exact import FlatIndex
from indexers.index import Index
from indexers.protocols import EncodesCorpus
from rag.core.arrays import Int64
from rag.core.types import Passage
from rag.training.distributed import World
from rag.training.precision import MasterWeights, part
from rag.training.refresh import Refresh
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.training.bi_encoder import BiEncoderModel, snapshot_writer


class LiveIndex:
    """Passages of an index, which must have vectors, and their vectors from the latest refresh.

    Attributes:
        passages: the passages; row i of the index is passage i.
    """

    def __init__(self, index: Index) -> None:
        self.passages = index.passages
        self._search = index.require_dense().vectors

    def search(self, questions: Tensor, top_k: int) -> Int64:
        """Rows (B, K) of the best passages in the live index, best first; −1 where there are fewer than K.

        Args:
            questions: (B, D) vectors from the current model; the search is not differentiable.
        """
        return self._search.search(questions.detach().float().cpu().numpy(), top_k)[1]

    def passages_of(self, rows: Int64) -> list[list[Passage]]:
        """The passages of each question, from the rows that `search` returns."""
        return [self.passages.get_many(row[row >= 0]) for row in rows]

    def take_up(self, result: Path) -> Mapping[str, float]:
        """Search the vectors in the folder of a refresh's result from now on."""
        self._search = FlatIndex(EmbeddingShards.open(result / "embeddings"))
        return {}


def encode_snapshot(
    config: Any, device: str, snapshot: Path, folder: Path, encode: EncodesCorpus = encode_corpus
) -> None:
    """Encode the corpus with a snapshot; an interrupted refresh resumes after the last finished shard."""
    encoder = BiEncoder.load(snapshot / "encoder", device=device, precision=config.precision)
    with Index.open(config.index) as index:
        encode(folder / "embeddings", index.passages, encoder, "float32")


def index_refresh(
    config: Any,
    live_index: LiveIndex,
    model: BiEncoderModel,
    master: MasterWeights,
    *,
    world: World,
    encode: EncodesCorpus | None = None,
) -> Refresh:
    """Hooks of the fit loop that publish snapshots of `model`, whose fp32 weights are the entries
    `retriever.…` of `master`, and take up refreshed indexes."""
    write_snapshot = snapshot_writer(
        config, model, lambda: part(master.state(), "retriever"), max_length=config.passage_tokens
    )
    return Refresh(
        config, encode_snapshot, write_snapshot, live_index.take_up, world=world, encode=encode,
        begins_with_result=True,
    )  # fmt: skip
