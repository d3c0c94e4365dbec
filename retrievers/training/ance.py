"""Train a dense retriever against its own index (ANCE): encode the corpus with each snapshot,
search, mine.

What a refresh writes:

    negatives.npy   (Q, K) passage rows, hardest first, then -1
    embeddings/     vectors of the corpus until the negatives are mined; a killed refresh resumes
                    after its last finished shard
"""

import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path

import numpy as np

from indexers.embeddings import encode_corpus
from indexers.exact import exact_search
from indexers.gold import CorpusTexts
from indexers.index import Index
from indexers.passages import PassageStore
from indexers.protocols import EncodesCorpus
from rag.core.arrays import Int64, load_npy, save_npy
from rag.core.errors import ConfigError, DataError
from rag.core.log import Progress
from rag.core.types import Query
from rag.data.examples import Example
from rag.training.distributed import World
from rag.training.fit import Method
from rag.training.refresh import Refresh
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.examples.batches import RetrieverBatches
from retrievers.examples.data import ExampleSplit, ExampleTable, split_examples
from retrievers.negatives.mine import NegativeFilter
from retrievers.protocols import TextEncoder
from retrievers.training.bi_encoder import load_model, snapshot_writer
from retrievers.training.config import AnceTrainConfig
from retrievers.training.dpr import contrastive_batches
from retrievers.training.losses import in_batch_loss, pairwise_loss
from retrievers.training.recipe import bi_encoder_method

_QUESTIONS_AT_ONCE = 2048
_NEGATIVES = "negatives.npy"


def build(
    config: AnceTrainConfig, index: Index, encode: EncodesCorpus | None, world: World
) -> Method:
    """The method of `rag train ance`: a retriever with negatives that its own snapshots retrieve.

    Also writes `refresh/`, the snapshots and the negatives.

    Args:
        index: its passages are encoded anew at every refresh.
        encode: encodes the corpus; None does it here.

    Source:
        Xiong et al. 2021, "Approximate Nearest Neighbor Negative Contrastive Learning for Dense
        Text Retrieval"; the refresher is section 4's "inferencer", figure 2.

    Note:
        The optimiser is AdamW, not LAMB, and the learning rate is warmed up once, not at every
        refresh.
    """
    # data
    split = split_examples(config, config.out / "data")
    every = config.refresh_every_steps
    if not every:
        _check_negatives(config, split)
    batches = contrastive_batches(config, split.training)
    mined = [batches]

    def make_batches(
        config: AnceTrainConfig, data: ExampleTable, *, once: bool = False
    ) -> RetrieverBatches:
        """The held-out batches, which draw from mined negatives too."""
        held_out = contrastive_batches(config, data, once=once)
        mined.append(held_out)
        return held_out

    # model
    retriever = load_model(config, world.device)
    origin = f"mined anew with the model itself every {every} steps" if every else "of the file"
    method = bi_encoder_method(
        config,
        retriever,
        world,
        batches,
        split.held_out,
        make_batches=make_batches,
        loss=pairwise_loss if config.loss == "pairwise" else in_batch_loss,
        facts={"training questions": len(split.training), "negatives": origin},
    )

    # negatives
    refresh = Refresh(
        config,
        refresh_negatives,
        snapshot_writer(retriever.model, method.master.state, max_length=config.longest_query),
        partial(take_up_negatives, mined, index.passages),
        world=world,
        encode=encode,
    )
    return replace(method, hooks=refresh)


def _check_negatives(config: AnceTrainConfig, split: ExampleSplit) -> None:
    """Refuse examples without the negatives that no refresh will bring."""
    has_negatives = split.training.has_negatives
    if config.loss == "pairwise" and split.held_out:
        has_negatives = has_negatives and any(example.negatives for example in split.held_out)
    if not has_negatives:
        raise ConfigError(
            "refresh_every_steps is 0, and the training or held-out examples have no negatives either",
            hint="set refresh_every_steps, or mine negatives with `rag mine`",
        )


def take_up_negatives(
    mined: Sequence[RetrieverBatches], corpus: PassageStore, result: Path
) -> dict[str, float]:
    """Draw from the negatives in a result's folder from the next batch on; returns figures for the
    log.

    Args:
        mined: batches of the training examples, and those of the held-out ones, if there are any.
    """
    rows = load_npy(result / _NEGATIVES, dtype=np.int32)
    first = 0
    for batches in mined:
        last = first + len(batches.data)
        batches.use_negatives(rows[first:last], corpus)
        first = last
    return {"mined/negatives_per_question": float((rows >= 0).sum(axis=1).mean())}


def refresh_negatives(
    config: AnceTrainConfig,
    device: str,
    snapshot: Path,
    folder: Path,
    encode: EncodesCorpus = encode_corpus,
) -> None:
    """Mine the negatives of a run, which has divided its examples, with a snapshot of its model."""
    split = split_examples(config, config.out / "data")
    # Their other passages would fill the memory.
    examples = [
        replace(example, candidates=example.of_role("positive"))
        for example in chain(split.training, split.held_out)
    ]
    encoder = BiEncoder.load(snapshot / "encoder", device=device)
    with Index.open(config.index) as index:
        mine_negatives(config, index.passages, examples, encoder, folder, encode)


def mine_negatives(
    config: AnceTrainConfig,
    corpus: PassageStore,
    examples: Sequence[Example],
    encoder: TextEncoder,
    folder: Path,
    encode: EncodesCorpus = encode_corpus,
) -> None:
    """Mine for all questions; one without new negatives has those of its file.

    Raises:
        DataError: not one negative was found.
    """
    texts = CorpusTexts(corpus)  # which may hold a passage twice
    right = defaultdict[Query, set[int]](set)  # several examples may be of a question
    for example in examples:
        right[example.query].update(chain.from_iterable(map(texts.find, example.positives)))
    embeddings = encode(folder / "embeddings", corpus, encoder, "float16")
    mined = np.full((len(examples), config.kept), -1, np.int32)
    with Progress(len(examples), "questions", "mine") as progress:
        for start in range(0, len(examples), _QUESTIONS_AT_ONCE):
            block = examples[start : start + _QUESTIONS_AT_ONCE]
            vectors = encoder.encode_queries([example.query for example in block])
            retrieved = exact_search(embeddings, vectors, config.depth)[1]
            for number, (example, ranked) in enumerate(zip(block, retrieved, strict=True), start):
                allowed = NegativeFilter(example, right[example.query])
                negatives = _allowed_rows(ranked, corpus, allowed)
                kept = list(islice(negatives, config.kept))
                mined[number, : len(kept)] = kept
            progress.update(len(block))
    if (mined < 0).all():
        raise DataError(
            f"of the {config.depth} best passages of {len(examples)} questions not one is a negative",
            hint="raise depth, or check the answers: every passage seems to hold one",
        )
    save_npy(folder / _NEGATIVES, mined)
    shutil.rmtree(folder / "embeddings")


def _allowed_rows(ranked: Int64, corpus: PassageStore, allowed: NegativeFilter) -> Iterator[int]:
    """The rows of a ranking that are negatives of a question, best first; -1 ends the ranking."""
    for row in ranked.tolist():
        if row >= 0 and not allowed.reason(row, corpus[row]):
            yield row
