"""Train a dense retriever against its own index (ANCE): the recipe, top to bottom."""

from functools import partial
from pathlib import Path

from indexers.index import Index
from indexers.protocols import EncodesCorpus
from rag.core.errors import ConfigError
from rag.training.fit import FitHooks
from retrievers.examples.batches import RetrieverBatches
from retrievers.training.ance_refresher import negatives_refresher, take_up_negatives
from retrievers.training.config import AnceTrainConfig
from retrievers.training.corpus_refresher import encoder_refresh
from retrievers.training.losses import in_batch_objective, pairwise_objective
from retrievers.training.recipe import BiEncoderRun, contrastive_batches, examples_key, train_bi_encoder
from retrievers.training.split import ExampleSplit


def train_ance(config: AnceTrainConfig, *, encode: EncodesCorpus | None = None) -> Path:
    """Train a retriever with negatives that its own snapshots retrieve; see `train_model`.

    Also writes `refresh/`, the snapshots and the negatives.

    Args:
        encode: encodes the corpus at a refresh.

    Source:
        Xiong et al. 2021, "Approximate Nearest Neighbor Negative Contrastive Learning for Dense Text
        Retrieval".

    Note:
        The optimiser is AdamW, not LAMB, and the learning rate is warmed up once, not at every refresh.
    """
    with Index.open(config.index) as index:

        def make_hooks(
            run: BiEncoderRun, split: ExampleSplit, _: object, batches: RetrieverBatches
        ) -> FitHooks:
            if not config.refresh_every_steps and not len(batches.data.negatives.values):
                raise ConfigError(
                    "refresh_every_steps is 0, and the training file has no negatives either",
                    hint="set refresh_every_steps, or mine negatives with `rag mine`",
                )
            key = examples_key(split, index)
            return encoder_refresh(
                config, run.model, run.master.state, negatives_refresher,
                partial(take_up_negatives, batches, key=key),
                max_length=config.query_tokens, key=key, world=run.world, encode=encode,
                must_wait=lambda: not len(batches.data.negatives.values),
            )  # fmt: skip

        every = config.refresh_every_steps
        negatives = f"mined anew with the model itself every {every} steps" if every else "of the file"
        return train_bi_encoder(
            config,
            make_batches=contrastive_batches,
            objective=pairwise_objective if config.loss == "pairwise" else in_batch_objective,
            corpus=index,
            make_hooks=make_hooks,
            facts={"negatives": negatives},
        )
