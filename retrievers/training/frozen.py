"""Training the question side against an index whose vectors stay as they are."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from indexers.gold import CorpusTexts
from indexers.index import Index
from indexers.protocols import EncoderIdentity, IntArray
from indexers.reissue import reissue_index
from rag.core.errors import ConfigError, MismatchedArtifactError
from rag.core.log import get_logger
from rag.core.manifest import MANIFEST_NAME
from rag.data.examples import Example
from rag.runtime.model_files import TOWER_SEPARATOR, model_folder, tower_folders
from rag.training.fit import FitHooks, FitResult
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.examples.tokens import RetrieverTokenizer
from retrievers.training.config import RetrieverTrainConfig
from retrievers.training.model import BiEncoderModel
from retrievers.training.run import encoder_form, finish_run, load_model

ConfigT = TypeVar("ConfigT", bound=RetrieverTrainConfig)
log = get_logger(__name__)


def settings_of(config: ConfigT, index: Index, *, started: bool = False) -> ConfigT:
    """The configuration with everything the index decides.

    Args:
        started: an encoder that the configuration names must be the one of the index.

    Raises:
        ConfigError: the index has no vectors, or two towers where one is to be trained.
        MismatchedArtifactError: its encoder is not the one it was built with any more, or not that of the
            configuration.
    """
    identity = index.encoder_identity
    if identity is None:
        raise ConfigError(f"{config.index} has no vectors", hint="build it with --retriever dense")
    index.check_encoder(BiEncoder.load_like(identity, precision="fp32").identity)
    if (given := config.model.question_encoder) is not None:
        its = BiEncoder.load_like(identity, given, precision="fp32").identity
        if started:
            index.check_encoder(its)
        elif its.weights_sha256 != identity.weights_sha256:
            log.warning(
                "questions start from %s, and the vectors of %s were made by %s: set question_encoder "
                "to that, unless this is meant", given, config.index, identity.name,
            )  # fmt: skip
    passages, _, questions = identity.name.partition(TOWER_SEPARATOR)
    of_passages, of_questions = tower_folders(model_folder(passages))
    if config.model.shared and (questions or of_passages != of_questions):
        raise ConfigError(f"{identity.name} has two towers", hint="set shared=false")
    said = {
        "question_encoder": config.model.question_encoder or questions or passages,
        "passage_encoder": passages,
        "passage_tokens": identity.max_length,
        **{name: getattr(identity, name) for name in ("pooling", "normalize", "layout")},
        **{name: getattr(identity, name) for name in ("query_prefix", "passage_prefix")},
    }
    return config.model_copy(update={"model": config.model.replaced(**said)})


def known_vectors(
    index: Index, examples: Iterable[Example], tokenizer: RetrieverTokenizer
) -> dict[bytes, Tensor]:
    """The index's vectors of the passages in examples that it holds, by their token ids' bytes."""
    assert index.embeddings is not None
    texts = CorpusTexts(index.passages)
    listed = {c.passage.text: c.passage for example in examples for c in example.candidates}
    rows = np.unique([row for passage in listed.values() for row in texts.find(passage)]).astype(np.int64)
    passages = index.passages.get_many(rows)
    ids = tokenizer.passages([p.title for p in passages], [p.text for p in passages])
    vectors = torch.from_numpy(index.embeddings.rows(rows))
    return {np.array(row, np.int32).tobytes(): own for row, own in zip(ids, vectors, strict=True)}


def listed_scores(questions: Tensor, vectors: Tensor, places: Tensor, scale: float = 1.0) -> Tensor:
    """(B, K) scaled inner products of each question with the passages of its own list.

    Args:
        questions: (B, D).
        vectors: (U, D) of different passages.
        places: (B, K) int64 rows of `vectors`; −1 where a list is shorter, which scores −inf.

    Example:
        >>> listed_scores(torch.eye(2), torch.eye(2), torch.tensor([[1, 0], [1, -1]])).tolist()
        [[0.0, 1.0], [1.0, -inf]]
    """
    places = places.to(vectors.device)
    scores = torch.einsum("bd,bkd->bk", questions, vectors[places.clamp_min(0)]) * scale
    return scores.masked_fill(places < 0, float("-inf"))


def score_rows(model: BiEncoderModel, index: Index, queries: Tensor, rows: IntArray) -> Tensor:
    """Scores (B, K), over the temperature, of queries' vectors (B, D) and the vectors in `rows` (B, K) of the
    index; −inf where a row is −1. Differentiable in the queries."""
    assert index.embeddings is not None
    distinct, places = np.unique(np.maximum(rows, 0), return_inverse=True)
    vectors = torch.from_numpy(index.embeddings.rows(distinct)).to(queries.device)  # (U, D)
    listed = torch.from_numpy(np.where(rows < 0, -1, places.reshape(rows.shape)))
    return listed_scores(queries, vectors, listed, model.scale)


class FrozenIndex(FitHooks):
    """Which index is searched, in every record."""

    def __init__(self, version: str) -> None:
        self._version = version

    def log_fields(self, step: int) -> Mapping[str, Any]:
        """Its version; it has no age, because passages are encoded as they were."""
        return {"index_version": self._version}

    def extra_state(self) -> Mapping[str, Any]:
        """Its version."""
        return {"index_version": self._version}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Refuse to go on with another index."""
        if state["index_version"] != self._version:
            raise MismatchedArtifactError(
                f"the run was started against index version {state['index_version']}, this one is "
                f"{self._version}",
                hint="give the same index, or choose another --out",
            )


def finish_questions(
    config: RetrieverTrainConfig,
    model: BiEncoderModel,
    result: FitResult,
    described: Mapping[str, object],
) -> None:
    """Write the finished encoder, its passage tower in the numbers it came in, and the index for it.

    Args:
        config: as `settings_of` gives it.
        described: what the card says of the data and the run.
    """
    plain = config.model_copy(update={"optim": config.optim.replaced(precision="fp32")})
    whole, _ = load_model(plain, "cpu", freeze_passages=True)
    form = replace(encoder_form(config, model), max_length=config.model.passage_tokens)
    said = {**described, "passage encoder": "that of the index, unchanged"}
    _reissue(config, finish_run(config, model, result, form, said, exported=whole))


def _reissue(config: RetrieverTrainConfig, finished: Path) -> None:
    """The index for the trained encoder, made anew unless it is there already."""
    encoder = BiEncoder.load(finished)
    target = config.out / "index"
    if target.exists():
        if (target / MANIFEST_NAME).exists() and _identity(target) == encoder.identity:
            return
        shutil.rmtree(target)
    assert config.index is not None
    reissue_index(config.index, target, encoder, seed=config.run.seed)
    encoder.close()


def _identity(directory: Path) -> EncoderIdentity | None:
    with Index.open(directory, verify="none") as index:
        return index.encoder_identity
