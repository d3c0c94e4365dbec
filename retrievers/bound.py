"""The question encoder in a reader's folder, for the passage vectors that it was trained with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from indexers.index import Index
from indexers.protocols import EncoderIdentity
from rag.core.errors import ArtifactError, ConfigError, MismatchedArtifactError
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.first_stage import DenseRetriever
from retrievers.protocols import TextEncoder

QUESTION_ENCODER = "question_encoder"


def binding(folder: Path, passages: EncoderIdentity) -> dict[str, object]:
    """Description of the question encoder in a reader's folder, for its `reader.json`."""
    encoder = BiEncoder.load(folder / QUESTION_ENCODER, precision="fp32")
    return {
        "questions_sha256": encoder.identity.weights_sha256,
        "dim": encoder.dim,
        "index_encoder": passages.to_json(),
    }


class BoundEncoder:
    """A question tower whose vectors are compared with those of an encoder's passage tower.

    Attributes:
        identity: identity of the encoder that made the passages' vectors.
        questions_sha256: checksum of the question tower's weights.
    """

    def __init__(self, encoder: BiEncoder, identity: EncoderIdentity) -> None:
        self.identity = identity
        self.questions_sha256 = encoder.identity.weights_sha256
        self.dim = encoder.dim
        self.encode_queries = encoder.encode_queries


class BoundRetriever(DenseRetriever):
    """Searches with the question encoder in a reader's folder."""

    @property
    def identity(self) -> dict[str, object]:
        """The retriever with the checksum of its question encoder."""
        encoder = cast("BoundEncoder", self.encoder)
        return {**super().identity, "question_encoder": encoder.questions_sha256}


def open_bound(
    index: Index, folder: Path, description: Mapping[str, Any], *, precision: str = "auto"
) -> DenseRetriever:
    """Search an index with the question encoder in a reader's folder."""
    try:
        identity = EncoderIdentity.from_json(description["index_encoder"])
        weights = str(description["questions_sha256"])
    except (KeyError, TypeError) as error:
        raise ArtifactError(
            f"{folder}: reader.json does not describe its question encoder ({error})",
            hint="train it again",
        ) from error
    if index.dense is None or index.encoder_identity is None:
        raise ConfigError(
            f"{folder} searches with its own question encoder, and {index.directory} has no vectors",
            hint="build it with `rag index … --retriever dense`, or search by BM25",
        )
    differences = index.encoder_identity.differences(identity)
    if differences:
        raise MismatchedArtifactError(
            f"{folder} was trained over passages encoded by {identity.name}, {index.directory} was built "
            f"with {index.encoder_identity.name} ({'; '.join(differences)})",
            hint="give the index of its training, or one built with its run's encoder (OUT/encoder)",
        )
    encoder_folder = folder / QUESTION_ENCODER
    encoder = BiEncoder.load(
        encoder_folder,
        precision=precision,
        pooling=identity.pooling,
        normalize=identity.normalize,
        query_prefix=identity.query_prefix,
    )
    if encoder.identity.weights_sha256 != weights:
        raise MismatchedArtifactError(
            f"{encoder_folder} is another question encoder than {folder / 'reader.json'} states",
            hint="copy the reader's whole folder again",
        )
    bound = cast("TextEncoder", BoundEncoder(encoder, identity))  # it encodes no passages
    return BoundRetriever(index.dense, index.passages, bound)
