"""Static encoders: a vector per token, looked up and averaged; no network runs, and no torch is
imported.

A text's vector is the mean of its tokens' vectors, of unit length where the folder says so. One
encoder comes with the package (`static`), and `rag train static` makes others. Two kinds of folder
are read, see `settings`.

Source:
    Tulkens and van Dongen 2024, "Model2Vec: Fast State-of-the-Art Static Embeddings" (layout and
    weighting); Arora et al. 2017, "A Simple but Tough-to-Beat Baseline for Sentence Embeddings"
    (weights by frequency).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from indexers.protocols import EncoderIdentity
from rag.core.arrays import Float32, Int32, Int64
from rag.core.errors import ArtifactError
from rag.core.files import atomic_path, atomic_write_json
from rag.core.log import get_logger
from rag.core.types import Query
from rag.runtime.model_files import folder_tokenizer, model_folder, weight_files
from rag.runtime.tensor_files import file_arrays
from retrievers.encoders.base import Encoder
from retrievers.encoders.folders import read_settings, write_modules
from retrievers.encoders.settings import STATIC_LENGTH, findable_name, warn_of_guesses
from retrievers.encoders.tokenization import PassageLayout, query_texts

_TEXTS_AT_ONCE = 1024  # per call of the tokenizer and per matrix product

log = get_logger(__name__)


class StaticEncoder(Encoder):
    """Looks up the vectors of a text's tokens and averages them.

    Made by `load`. Safe to use from several threads. The vector of a text depends on that text
    alone.

    Attributes:
        vectors: (V, D) one per token.
    """

    def __init__(
        self,
        vectors: Float32,
        tokenizer: Any,
        identity: EncoderIdentity,
        *,
        straight_apostrophes: bool = False,
        skips_unknown: bool = False,
    ) -> None:
        super().__init__(identity)
        self.vectors = vectors
        self._tokenizer = tokenizer
        self._straight_apostrophes = straight_apostrophes
        self._skipped = _unknown_id(tokenizer) if skips_unknown else -1
        self._has_warned = False
        tokenizer.enable_truncation(identity.max_length)

        self._layout = PassageLayout(identity.layout)

    @classmethod
    def load(cls, name_or_path: str | Path, **changes: Any) -> StaticEncoder:
        """Load a static encoder.

        Args:
            name_or_path: a folder or a Hugging Face name.
            changes: of the folder's settings, as for `BiEncoder.load`.

        Raises:
            ArtifactError: the folder lacks a file, or its parts do not fit together.
            ConfigError: a setting that it does not take.
        """
        folder = model_folder(name_or_path)
        settings = read_settings(folder).override(**changes)
        vectors = _read_vectors(settings.weights_dir)
        tokenizer = folder_tokenizer(settings.weights_dir)
        if tokenizer.get_vocab_size() > len(vectors):
            raise ArtifactError(
                f"{folder}'s tokenizer.json knows {tokenizer.get_vocab_size()} tokens, the weights beside it "
                f"have {len(vectors)} rows",
                hint="tokenizer.json and model.safetensors belong to different encoders",
            )
        warn_of_guesses(settings)
        return cls(
            vectors,
            tokenizer,
            settings.identity(findable_name(str(name_or_path))),
            straight_apostrophes=settings.straight_apostrophes,
            skips_unknown=settings.skips_unknown,
        )

    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Float32:
        """Vectors (n, D) float32 of passages, in order."""
        return self._encode(self.rendered(titles, texts))

    def rendered(self, titles: Sequence[str], texts: Sequence[str]) -> list[str]:
        """Passages as the texts that are read."""
        return self._layout.render(titles, texts, prefix=self.identity.passage_prefix)[0]

    def tokens(self, texts: Sequence[str]) -> tuple[Int32, Int64]:
        """Token ids (T,) of n texts end to end, without prefixes, and where each begins and ends (n
        + 1,).
        """
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        cut = sum(bool(encoding.overflowing) for encoding in encodings)
        if cut and not self._has_warned:
            self._has_warned = True
            log.warning(
                "%d of %d texts are longer than the %d tokens that %s reads: their ends do not count",
                cut,
                len(texts),
                self.identity.max_length,
                self.identity.name,
            )
        ids = [encoding.ids for encoding in encodings]
        if self._skipped >= 0:
            ids = [[token for token in text if token != self._skipped] for text in ids]
        bounds = np.append(0, np.cumsum(list(map(len, ids)), dtype=np.int64))
        return np.fromiter(chain.from_iterable(ids), np.int32, int(bounds[-1])), bounds

    def encode_queries(self, queries: Sequence[Query]) -> Float32:
        """Vectors (n, D) float32 of questions with the passages retrieved for them so far, in
        order.
        """
        prefix = self.identity.query_prefix
        straight = self._straight_apostrophes
        return self._encode(query_texts(queries, prefix=prefix, straight_apostrophes=straight))

    def _encode(self, texts: Sequence[str]) -> Float32:
        vectors = np.empty((len(texts), self.dim), np.float32)
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            part = texts[start : start + _TEXTS_AT_ONCE]
            vectors[start : start + len(part)] = self.means(*self.tokens(part))
            self._report(len(part))
        return vectors

    def means(self, flat: Int32, bounds: Int64) -> Float32:
        """Vectors (n, D) float32 of n texts, given their token ids and where each begins and
        ends.
        """
        bags = token_shares(flat, bounds, len(self.vectors))
        vectors: Float32 = np.asarray(bags @ self.vectors, np.float32)  # (n, D)
        if self.identity.normalize:
            vectors = unit_rows(vectors)
        return vectors


def token_shares(flat: Int32, bounds: Int64, size: int) -> csr_matrix:
    """(n, size): the share of each token of a vocabulary in each of n texts, given the texts' token
    ids (T,) end to end, and where each begins and ends (n + 1,).
    """
    lengths = np.diff(bounds)
    shares = np.repeat(1.0 / np.maximum(lengths, 1), lengths).astype(np.float32)
    return csr_matrix((shares, flat, bounds), shape=(len(lengths), size))


def _unknown_id(tokenizer: Any) -> int:
    """The token for what the vocabulary lacks; -1 if there is none."""
    token = getattr(tokenizer.model, "unk_token", None)
    if token is None or tokenizer.token_to_id(token) is None:
        return -1
    return int(tokenizer.token_to_id(token))


def unit_rows(vectors: Float32) -> Float32:
    """Vectors (n, D) scaled to unit length; those of zeros stay zero."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def write_static(folder: Path, vectors: Float32, tokenizer: Path) -> None:
    """Write an encoder of unit vectors as a folder that sentence-transformers and model2vec open
    too.

    Previous content of `folder` is replaced. The same vectors give the same bytes: rows of int8,
    each with a scale, which model2vec calls a weight.

    Args:
        vectors: (V, D) token vectors, weights included.
        tokenizer: the folder of its tokenizer.
    """
    from safetensors.numpy import save_file

    # Sentence-transformers cuts texts where the file of the tokenizer says so.
    made = folder_tokenizer(tokenizer)
    made.enable_truncation(STATIC_LENGTH)
    scales = np.maximum(np.abs(vectors).max(axis=1), 1e-12) / 127  # (V,)
    rows = np.rint(vectors / scales[:, None])
    tensors = {"embeddings": rows.astype(np.int8), "weights": scales.astype(np.float32)}
    config = {"model_type": "model2vec", "normalize": True, "max_length": STATIC_LENGTH}
    modules = {"": "models.StaticEmbedding", "1_Normalize": "models.Normalize"}
    with atomic_path(folder, folder=True) as temporary:
        save_file(tensors, temporary / "model.safetensors", metadata={"format": "np"})
        made.save(str(temporary / "tokenizer.json"))
        atomic_write_json(temporary / "config.json", config)
        write_modules(temporary, modules, {"similarity_fn_name": "cosine"})


def _read_vectors(folder: Path) -> Float32:
    """(V, D) float32: row t is what token t adds to a text.

    model2vec's `mapping` says which row a token has, its `weights` by how much it counts.
    """
    tensors: dict[str, np.ndarray] = {}
    for file in weight_files(folder):
        tensors |= file_arrays(file)
    vectors = tensors.get("embedding.weight", tensors.get("embeddings"))
    if vectors is None or vectors.ndim != 2:
        raise ArtifactError(
            f"{folder}/model.safetensors holds {', '.join(sorted(tensors)) or 'nothing'}, expected a matrix "
            "called embedding.weight (sentence-transformers) or embeddings (model2vec)",
            hint="give the folder of a static encoder",
        )
    rows = vectors.astype(np.float32)
    if "mapping" in tensors:
        rows = rows[tensors["mapping"].astype(np.int64)]
    if "weights" in tensors:
        rows *= tensors["weights"].astype(np.float32)[:, None]
    return np.ascontiguousarray(rows)
