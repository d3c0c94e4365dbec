"""Train a dense retriever against its own index (ANCE): the recipe, top to bottom.

Trainer and refresher are two processes that share the folder of the run, or one process that does both in
turn. A process that was killed is simply started again.
"""

from functools import partial
from pathlib import Path

from indexers.embeddings import encode_corpus
from indexers.index import Index
from indexers.protocols import EncodesCorpus
from rag.core.errors import ConfigError
from rag.training.fit import FitHooks
from rag.training.refresh.processes import TrainerRole
from rag.training.refresh.staleness import ProbeSet
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.examples.batches import RetrieverBatches
from retrievers.training.ance_refresher import NegativesRefresher, take_up_negatives
from retrievers.training.config import AnceTrainConfig
from retrievers.training.corpus_refresher import corpus_exchange, refresh_beside
from retrievers.training.losses import in_batch_objective, pairwise_objective
from retrievers.training.recipe import BiEncoderRun, contrastive_batches, examples_key, train_bi_encoder
from retrievers.training.split import ExampleSplit, split_examples


def train_ance(
    config: AnceTrainConfig, *, role: TrainerRole = "both", encode: EncodesCorpus = encode_corpus
) -> Path:
    """Train a retriever with negatives that its own snapshots retrieve; see `train_model`.

    Also writes `snapshots/` and `negatives/`, which it shares with the refresher.

    Args:
        role: "both" mines in this process whenever a refresh is due; "trainer" leaves that to
            `refresh_negatives` in another process and loads its results without waiting, except for the
            first negatives if the training file has none.

    Source:
        Xiong et al. 2021, "Approximate Nearest Neighbor Negative Contrastive Learning for Dense Text
        Retrieval".

    Note:
        The optimiser is AdamW, not LAMB, and the learning rate is warmed up once, not at every refresh.
    """
    with Index.open(config.index) as index:
        return train_bi_encoder(
            config,
            make_batches=contrastive_batches,
            objective=pairwise_objective if config.loss == "pairwise" else in_batch_objective,
            corpus=index,
            make_hooks=lambda run, split, _, batches: _exchange(
                config, role, run, split, batches, index, encode
            ),
            role=role,
            facts={"negatives": f"mined anew with the model itself, {config.refresh}"},
        )


def refresh_negatives(config: AnceTrainConfig, encode: EncodesCorpus = encode_corpus) -> Path:
    """Mine with every newer snapshot of the trainer in `config.out`; see `refresh_beside`."""
    with Index.open(config.index) as index:
        return refresh_beside(
            config,
            lambda: _refresher(config, index, split_examples(config, config.out / "data"), "auto", encode),
        )


def _refresher(
    config: AnceTrainConfig, index: Index, split: ExampleSplit, device: str, encode: EncodesCorpus
) -> NegativesRefresher:
    return NegativesRefresher(
        config, index.passages, split.training(), split.held_out, key=examples_key(split, index),
        load=lambda folder: BiEncoder.load(folder, device=device), encode=encode,
    )  # fmt: skip


def _exchange(
    config: AnceTrainConfig,
    role: TrainerRole,
    run: BiEncoderRun,
    split: ExampleSplit,
    batches: RetrieverBatches,
    index: Index,
    encode: EncodesCorpus,
) -> FitHooks:
    """Snapshots out, negatives in."""
    data, key = batches.data, examples_key(split, index)
    if config.schedule_of_refresh.is_never and not len(data.negatives.values):
        raise ConfigError(
            "refresh is never, and the training file has no negatives either",
            hint="set refresh, or mine negatives with `rag mine`",
        )

    return corpus_exchange(
        config, index, run.model, run.master.state, partial(take_up_negatives, batches, key=key),
        lambda device: _refresher(config, index, split, device, encode),
        payload="negatives", max_length=config.query_tokens, key=key, world=run.world, role=role,
        watched=ProbeSet.draw(
            config, config.run.seed, questions=len(data), passages=len(index.passages)
        ).passages,
        must_wait=lambda: not len(batches.data.negatives.values),
    )  # fmt: skip
