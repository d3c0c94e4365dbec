"""Embeddings by an address: a model behind an OpenAI-compatible server encodes passages and
questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
from pydantic import Field

from indexers.protocols import EncoderIdentity, IdentityValue, is_same_probe
from rag.config import Config, load_config
from rag.core.arrays import Float32
from rag.core.errors import ConfigError, ResourceError, RetrievalError
from rag.core.types import Query
from rag.runtime.model_server import SCHEME, ModelAddress, ModelServer, ServedKind
from retrievers.encoders.base import Encoder
from retrievers.encoders.settings import SERVED, SERVED_LENGTH
from retrievers.encoders.static import unit_rows
from retrievers.encoders.tokenization import PassageLayout, query_texts

KIND = ServedKind(
    role="an encoder",
    what="embeddings model",
    example="openai:http://localhost:8080/v1#bge-m3",
    key_variable="RAG_ENCODER_API_KEY",
    protocol="embeddings",
    too_long="a text may be longer than it reads: cut shorter passages: `rag index … --max-tokens 256`",
)
_PROBE = "The Danube rises in the Black Forest, and 7 + 5 = 12."
_PROBE_NUMBERS = 32
_REFUSED = (400, 413, 422)  # the status where a server refuses texts, and answers to others


class EncoderUnavailableError(RetrievalError, ResourceError):
    """The model behind an address gives no vectors now; the same may succeed later."""


class EndpointOptions(Config):
    """How the server is asked; none of it changes a vector.

    Attributes:
        batch_size: most texts in a request.
        parallel: requests at a time.
        timeout_s: longest time for a request.
        retries: repetitions of a failed request, with growing pauses.
    """

    batch_size: int = Field(default=64, ge=1)
    parallel: int = Field(default=4, ge=1)
    timeout_s: float = Field(default=60.0, gt=0)
    retries: int = Field(default=4, ge=0)


class EndpointEncoder(Encoder):
    """Sends texts to a server and takes their vectors. Made by `load`.

    Safe to use from several threads. A probe goes along with each request: a server whose model
    changes while it is used is noticed.

    Attributes:
        identity: what the server was found to be: model, dimension, and the probe's vector.
    """

    def __init__(
        self,
        server: ModelServer,
        model: str,
        options: EndpointOptions,
        identity: EncoderIdentity,
    ) -> None:
        super().__init__(identity)
        self._server = server
        self._model = model
        self._options = options
        self._layout = PassageLayout(identity.layout)

    @classmethod
    def load(cls, source: str, **changes: IdentityValue) -> EndpointEncoder:
        """Ask the server for the vector of the probe.

        Args:
            source: such as "openai:http://localhost:8080/v1#bge-m3"; `EndpointOptions` may follow:
                `#bge-m3,batch_size=16`.
            changes: max_length, normalize, prefixes and layout, see
                `retrievers.encoders.options.EncoderOptions`.

        Raises:
            ConfigError: the source names no server, or a setting is one of the server's.
            MissingDependencyError: the package `openai` is not installed.
            RetrievalError: the server gives no vectors.
        """
        address = ModelAddress.parse(source, KIND)
        if changes.pop("pooling", SERVED) != SERVED:
            raise ConfigError(
                f"{source} pools by itself", hint="leave {pooling} out", arguments=["pooling"]
            )
        options = load_config(EndpointOptions, overrides=address.settings)
        server = ModelServer(address, KIND, timeout_s=options.timeout_s, retries=options.retries)
        name = f"{SCHEME}{address.base_url}#{address.model}"
        normalize = bool(changes.setdefault("normalize", True))
        changes.setdefault("max_length", SERVED_LENGTH)
        identity = replace(
            EncoderIdentity(name, "", dim=0, pooling=SERVED),
            similarity="cosine" if normalize else "dot",
            **changes,  # type: ignore[arg-type]
        )
        encoder = cls(server, address.model, options, identity)
        vectors = encoder._request([])
        encoder.identity = replace(identity, dim=vectors.shape[1], probe=_shown(vectors[0]))
        return encoder

    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Float32:
        """Vectors (n, D) float32 of passages, in order.

        Raises:
            RetrievalError: the server gives none, or its model has changed.
        """
        return self._encode(
            self._layout.render(titles, texts, prefix=self.identity.passage_prefix)[0]
        )

    def encode_queries(self, queries: Sequence[Query]) -> Float32:
        """Vectors (n, D) float32 of questions with the passages retrieved for them so far, in
        order.
        """
        return self._encode(query_texts(queries, prefix=self.identity.query_prefix))

    def _encode(self, texts: Sequence[str]) -> Float32:
        size = self._options.batch_size
        batches = [texts[start : start + size] for start in range(0, len(texts), size)]
        vectors = np.empty((len(texts), self.dim), np.float32)
        start = 0
        with ThreadPoolExecutor(self._options.parallel) as pool:
            try:
                for made in pool.map(self._checked, batches):
                    vectors[start : start + len(made)] = made
                    start += len(made)
                    self._report(len(made))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return unit_rows(vectors) if self.identity.normalize else vectors

    def _checked(self, texts: Sequence[str]) -> Float32:
        """Vectors (n, D) of one request, from the model that `load` found."""
        vectors = self._request(texts)
        is_same = vectors.shape[1] == self.dim and is_same_probe(
            _shown(vectors[0]), self.identity.probe
        )
        if not is_same:
            raise EncoderUnavailableError(
                f"the model behind {self._server.name} has changed: a text that had a vector of "
                f"{self.dim} numbers now has another, of {vectors.shape[1]}",
                hint="let the server run the model of before; an interrupted build goes on with "
                "the same command, and another model needs another index",
            )
        return vectors[1:]

    def _request(self, texts: Sequence[str]) -> Float32:
        """Vectors (1 + n, D) of the probe and of texts."""
        try:
            embedding = self._server.client.embeddings.create(
                model=self._model, input=[_PROBE, *texts], encoding_format="float"
            )
            reply = self._server.run(embedding)
            rows = sorted(reply.data, key=lambda row: int(row.index))
            vectors = np.array([row.embedding for row in rows], np.float32)
            if vectors.ndim != 2 or len(vectors) != 1 + len(texts) or not vectors.size:
                raise ValueError(f"{len(rows)} vectors for {1 + len(texts)} texts")
        except (self._server.api.OpenAIError, ValueError, AttributeError, TypeError) as error:
            status, reason, hint = self._server.explain(error)
            kind = RetrievalError if status in _REFUSED else EncoderUnavailableError
            raise kind(reason, hint=hint) from error
        if not np.isfinite(vectors).all():
            raise RetrievalError(
                f"{self._server.name}: a vector holds NaN or infinity",
                hint="the server's log may say why; another precision of the model may help",
            )
        return vectors


def _shown(vector: Float32) -> str:
    """The first numbers of a vector of length one in the direction of this one."""
    unit = vector / max(float(np.linalg.norm(vector)), 1e-12)
    return " ".join(f"{number:.4f}" for number in unit[:_PROBE_NUMBERS])
