"""Train a dense retriever against its own index (ANCE): encode the corpus with each snapshot,
search, mine.

What a refresh writes:

    negatives.npy   (Q, K) passage rows, hardest first, then -1
    embeddings/     vectors of the corpus until the negatives are mined; a killed refresh resumes
    after its
                    last finished shard
"""

import shutil
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from indexers.embeddings import encode_corpus
from indexers.exact import exact_search
from indexers.gold import CorpusTexts
from indexers.index import Index
from indexers.passages import PassageStore
from indexers.protocols import EncodesCorpus
from rag.core.arrays import load_npy, save_npy
from rag.core.errors import ConfigError, DataError
from rag.core.log import Progress
from rag.data.examples import Candidate, Example
from rag.training.config import RefreshedConfig
from rag.training.fit import Method
from rag.training.refresh import Refresh
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.examples.batches import RetrieverBatches
from retrievers.examples.data import answer_matcher, split_examples
from retrievers.negatives.mine import NegativeFilter
from retrievers.protocols import TextEncoder
from retrievers.training.bi_encoder import snapshot_writer
from retrievers.training.config import ContrastiveConfig
from retrievers.training.losses import in_batch_objective, pairwise_objective
from retrievers.training.recipe import BiEncoderRun, contrastive_batches, train_bi_encoder

_QUESTIONS_AT_ONCE = 2048
_NAME = "negatives.npy"


class AnceTrainConfig(ContrastiveConfig, RefreshedConfig):
    """Settings of `rag train ance`.

    Attributes:
        index: its passages are encoded again at every refresh.
        loss: "pairwise" scores each positive against its own mined passages only, as published;
            "in_batch" adds all other passages of the batch.
        depth: number of passages retrieved for each question.
        kept: maximum number of these that become negatives of the question, best first.
    """

    recipe: ClassVar[str] = "ance"
    trains: ClassVar[str] = "retrievers.training.ance:train_ance"

    index: Path
    loss: Literal["pairwise", "in_batch"] = "pairwise"
    depth: int = Field(default=200, ge=1)
    kept: int = Field(default=100, ge=1)

    @model_validator(mode="after")
    def _cross_check_ance(self) -> "AnceTrainConfig":
        if self.depth < self.kept:
            raise ValueError(f"kept ({self.kept}) is more than depth ({self.depth}): raise depth")
        if not 1 <= self.hard_negatives <= self.kept:
            raise ValueError(
                f"hard_negatives ({self.hard_negatives}) are drawn from kept ({self.kept})"
            )
        if self.pooling == "tokens":
            raise ValueError("pooling=tokens: negatives are mined with one vector per passage")
        if self.keeps_index:
            raise ValueError(
                "frozen=passage: the index is encoded anew at every refresh, with both sides"
            )
        return self


def train_ance(config: AnceTrainConfig, *, encode: EncodesCorpus | None = None) -> Path:
    """Train a retriever with negatives that its own snapshots retrieve; see `train_bi_encoder`.

    Also writes `refresh/`, the snapshots and the negatives; `encode` encodes the corpus for them.

    Source:
        Xiong et al. 2021, "Approximate Nearest Neighbor Negative Contrastive Learning for Dense
        Text Retrieval"; the refresher is section 4's "inferencer", figure 2.

    Note:
        The optimiser is AdamW, not LAMB, and the learning rate is warmed up once, not at every
        refresh.
    """
    with Index.open(config.index) as index:
        return train_bi_encoder(config, partial(_method, index=index, encode=encode))


def _method(
    config: AnceTrainConfig, run: BiEncoderRun, *, index: Index, encode: EncodesCorpus | None
) -> Method:
    split, every = run.split_examples(), config.refresh_every_steps
    data = split.training
    if not every and not data.has_negatives:
        raise ConfigError(
            "refresh_every_steps is 0, and the training file has no negatives either",
            hint="set refresh_every_steps, or mine negatives with `rag mine`",
        )
    batches = contrastive_batches(config, data)
    write = snapshot_writer(config, run.model, run.master.state, max_length=config.longest_query)
    take_up = partial(take_up_negatives, batches, index.passages)
    refresh = Refresh(config, refresh_negatives, write, take_up, world=run.world, encode=encode)
    objective = pairwise_objective if config.loss == "pairwise" else in_batch_objective
    origin = f"mined anew with the model itself every {every} steps" if every else "of the file"
    facts = {"training questions": len(data), "negatives": origin}
    return run.method(
        batches,
        run.loss(objective),
        split.held_out,
        facts,
        make_batches=contrastive_batches,
        hooks=refresh,
    )


def take_up_negatives(
    batches: RetrieverBatches, corpus: PassageStore, result: Path
) -> dict[str, float]:
    """Draw from the negatives in a result's folder from the next batch on; returns figures for the
    log.
    """
    rows = load_npy(result / _NAME, dtype=np.int32)
    batches.use_negatives(rows, corpus)
    return {"mined/negatives_per_question": float((rows >= 0).sum(axis=1).mean())}


def refresh_negatives(
    config: Any, device: str, snapshot: Path, folder: Path, encode: EncodesCorpus = encode_corpus
) -> None:
    """Mine the negatives of a run, which has divided its examples, with a snapshot of its model."""
    training = split_examples(config, config.out / "data").training
    encoder = BiEncoder.load(snapshot / "encoder", device=device)
    with Index.open(config.index) as index:
        mine_negatives(config, index.passages, training, encoder, folder, encode)


def mine_negatives(
    config: Any,
    corpus: PassageStore,
    examples: Iterable[Example],
    encoder: TextEncoder,
    folder: Path,
    encode: EncodesCorpus = encode_corpus,
) -> None:
    """Mine for all questions; one without new negatives has those of its file.

    Raises:
        DataError: not one negative was found.
    """
    labelled = [
        replace(e, candidates=tuple(Candidate(p, "positive") for p in e.positives))
        for e in examples
    ]
    texts = CorpusTexts(corpus)  # which may hold a passage twice
    embeddings = encode(folder / "embeddings", corpus, encoder, "float16")
    mined = np.full((len(labelled), config.kept), -1, np.int32)
    with Progress(len(labelled), "questions", "mine") as progress:
        for start in range(0, len(labelled), _QUESTIONS_AT_ONCE):
            block = labelled[start : start + _QUESTIONS_AT_ONCE]
            vectors = encoder.encode_queries([example.query for example in block])
            retrieved = exact_search(embeddings, vectors, config.depth)[1]
            for number, (example, ranked) in enumerate(zip(block, retrieved, strict=True), start):
                rows = [row for row in ranked.tolist() if row >= 0]
                allowed = NegativeFilter(
                    answer_matcher(example),
                    {row for passage in example.positives for row in texts.find(passage)},
                    [passage.text for passage in example.positives],
                )
                passing = (row for row in rows if not allowed.reason(row, corpus[row]))
                chosen = list(islice(passing, config.kept))
                mined[number, : len(chosen)] = chosen
            progress.update(len(block))
    if (mined < 0).all():
        raise DataError(
            f"of the {config.depth} best passages of {len(labelled)} questions not one is a negative",
            hint="raise depth, or check the answers: every passage seems to hold one",
        )
    save_npy(folder / _NAME, mined)
    shutil.rmtree(folder / "embeddings")
