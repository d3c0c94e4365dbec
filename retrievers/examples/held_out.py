"""Held-out questions of a contrastive run: the same batches and loss, average rank, true retrieval."""

from __future__ import annotations

import torch

from indexers.index import Index
from rag.training.distributed import World
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.examples.batches import RetrieverBatches
from retrievers.examples.data import TrainingSet
from retrievers.examples.split import ExampleSplit
from retrievers.examples.tokens import RetrieverTokenizer
from retrievers.training.config import ContrastiveTrainConfig
from retrievers.training.model import BiEncoderModel
from retrievers.training.run import encoder_form, export_model
from retrievers.training.step import contrastive_step
from retrievers.training.validation import CorpusSearch, pool_rank

__all__ = ["HeldOutScores", "make_batches"]


def make_batches(config: ContrastiveTrainConfig, data: TrainingSet) -> RetrieverBatches:
    """The batches of a run, as its configuration says."""
    batches = None if config.max_steps is None else config.max_steps * config.accumulate
    return RetrieverBatches(
        data,
        batch_size=config.batch_size,
        hard_negatives=config.hard_negatives,
        epochs=config.epochs,
        max_batches=batches,
        positives=config.positives,
        mask_false_negatives=config.mask_false_negatives,
        group_by=config.group_by,
        pool_batches=config.pool_batches,
        seed=config.seed,
    )


class HeldOutScores:
    """Scores the model on held-out questions: loss, average rank, retrieval over a corpus.

    Args:
        config: of the run.
        split: which questions are held out.
        tokenizer: of the model.
    """

    def __init__(
        self, config: ContrastiveTrainConfig, split: ExampleSplit, tokenizer: RetrieverTokenizer
    ) -> None:
        self.config, self.held_out = config, split.held_out
        data = TrainingSet.build(split.held_out, tokenizer, match_answers=config.mask_false_negatives)
        self.batches = make_batches(config.model_copy(update={"epochs": 1.0, "max_steps": None}), data)
        self.search = None
        if config.index is not None:
            self.search = CorpusSearch(
                Index.open(config.index).passages,
                split.held_out,
                limit=config.validation_passages,
                seed=config.seed,
            )

    def __call__(self, model: BiEncoderModel) -> dict[str, float]:
        """{"nll", "average_rank"} and, with an index, {"mrr", "top1", …} in percent."""
        scores = {"nll": self._loss(model)}
        folder = self.config.out / "validation"  # measured as a finished encoder is used, on its fast path
        export_model(folder, model, {}, encoder_form(self.config, model))
        encoder = BiEncoder.load(folder, device=model.device, precision=self.config.precision)
        scores["average_rank"] = pool_rank(encoder, self.held_out)
        if self.search is not None:
            scores |= self.search.measure(encoder)
        encoder.close()
        return scores

    @torch.no_grad()
    def _loss(self, model: BiEncoderModel) -> float:
        model.eval()
        world = World.single(model.device)
        with torch.random.fork_rng(devices=[]):
            steps = [
                contrastive_step(model, self.batches[number], world, self.config.chunk_size)
                for number in range(len(self.batches))
            ]
        model.train()
        return sum(float(loss.value) for loss in steps) / len(steps)
