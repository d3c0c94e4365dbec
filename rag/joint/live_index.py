"""Passages and vectors of an index while the encoder that made them trains on.

A refresh writes `embeddings/`, float32 vectors of the whole corpus by a snapshot of the encoder,
which replace those of the trainer and are searched exactly.
"""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from indexers.embeddings import EmbeddingShards, ShardLayout, encode_corpus
from indexers.exact import FlatIndex
from indexers.index import Index
from indexers.protocols import EncodesCorpus
from rag.core.arrays import Int64
from rag.core.types import Passage
from rag.joint.config import LiveIndexConfig
from rag.training.distributed import World
from rag.training.precision import MasterWeights, part
from rag.training.refresh import Refresh
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.training.bi_encoder import BiEncoderModel, snapshot_writer


class LiveIndex:
    """An index, which must have vectors, searched with those of the latest refresh.

    Attributes:
        index: the index as it was built.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self._vectors = index.require_dense().vectors

    def search(self, questions: Tensor, top_k: int) -> Int64:
        """Rows (B, K) of the best passages in the live index, best first; −1 where there are fewer
        than K.

        Args:
            questions: (B, D) vectors from the current model; the search is not differentiable.
        """
        queries = questions.detach().float().cpu().numpy()
        return self._vectors.search(queries, top_k)[1]

    def passages_of(self, rows: Int64) -> list[list[Passage]]:
        """The passages of each question, from the rows that `search` returns."""
        return [self.index.passages.get_many(row[row >= 0]) for row in rows]

    def take_up(self, result: Path) -> Mapping[str, float]:
        """Search the vectors in the folder of a refresh's result from now on."""
        layout = ShardLayout(len(self.index.passages), self._vectors.dim, "float32")
        self._vectors = FlatIndex(EmbeddingShards.open(result / "embeddings", layout))
        return {}


def encode_snapshot(
    config: LiveIndexConfig,
    device: str,
    snapshot: Path,
    folder: Path,
    encode: EncodesCorpus = encode_corpus,
) -> None:
    """Encode the corpus with a snapshot; an interrupted refresh resumes after the last finished
    shard.
    """
    encoder = BiEncoder.load(snapshot / "encoder", device=device, precision=config.precision)
    with Index.open(config.index) as index:
        encode(folder / "embeddings", index.passages, encoder, "float32")


def index_refresh(
    config: LiveIndexConfig,
    live_index: LiveIndex,
    model: BiEncoderModel,
    master: MasterWeights,
    *,
    world: World,
    encode: EncodesCorpus | None = None,
) -> Refresh:
    """Hooks of the fit loop that publish snapshots of `model`, whose fp32 weights are the entries
    `retriever.…` of `master`, and take up refreshed indexes."""

    def weights() -> Mapping[str, Tensor]:
        return part(master.state(), "retriever")

    return Refresh(
        config,
        encode_snapshot,
        snapshot_writer(model, weights, max_length=config.passage_tokens),
        live_index.take_up,
        world=world,
        encode=encode,
        begins_with_result=True,
    )
