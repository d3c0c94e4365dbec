"""The body that the recipes of bi-encoders share; each brings its batches, its objective and its hooks.

model → data → batches → objective → fit → export
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from indexers.index import Index
from rag.core.files import directory_lock
from rag.core.log import get_logger
from rag.runtime.hardware import use_threads
from rag.runtime.seeds import seed_everything
from rag.training.claim import claim_run
from rag.training.distributed import World
from rag.training.fit import BatchSource, FitHooks, Loss, fit
from rag.training.precision import MasterWeights
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.examples.batches import RetrieverBatch, RetrieverBatches
from retrievers.examples.data import TrainingSet
from retrievers.examples.split import ExampleSplit, split_examples
from retrievers.examples.tokens import RetrieverTokenizer
from retrievers.training.config import RetrieverTrainConfig
from retrievers.training.losses import Objective, in_batch_objective
from retrievers.training.model import BiEncoderModel
from retrievers.training.run import encoder_form, export_model, finish_run, load_model
from retrievers.training.step import contrastive_step
from retrievers.training.validation import CorpusSearch, pool_rank

__all__ = ["BatchMaker", "Batches", "BiEncoderRun", "claimed", "contrastive_batches", "examples_key"]
__all__ += ["train_bi_encoder"]


class Batches(BatchSource[RetrieverBatch], Protocol):
    """All batches of a run, by step."""

    batch_size: int


class BatchMaker(Protocol):
    """Makes the batches of a run, and those that held-out questions are scored in."""

    def __call__(self, config: Any, data: TrainingSet, *, epochs: float, max_batches: int | None) -> Batches:
        """So many passes over `data`, or so many batches if that is less."""
        ...


@dataclass(frozen=True, slots=True)
class BiEncoderRun:
    """What a recipe's hooks are made of.

    Attributes:
        world: the processes.
        model: in its compute dtype.
        master: its weights in fp32.
        split: which examples are trained on, which are held out.
        data: the training set; the corpus's passages come first, if there is a corpus.
        batches: of the run.
        key: fingerprint of the examples, and of the corpus whose rows are those of `data`.
    """

    world: World
    model: BiEncoderModel
    master: MasterWeights
    split: ExampleSplit
    data: TrainingSet
    batches: Batches
    key: str


@contextmanager
def claimed(config: RetrieverTrainConfig) -> Iterator[World]:
    """The processes of a run, its folder locked and claimed for this configuration, seeds and threads set.

    Raises:
        MismatchedArtifactError: `config.out` holds a run with another configuration.
        ResourceError: another process trains there.
    """
    with World.from_environment() as world, directory_lock(config.out) if world.is_main else nullcontext():
        if world.is_main:
            claim_run(config, config.out)
        world.barrier()
        seed_everything(config.run.seed)
        use_threads(config.run.threads)
        yield world


def contrastive_batches(
    config: Any, data: TrainingSet, *, epochs: float, max_batches: int | None
) -> RetrieverBatches:
    """Batches of positives and hard negatives, as the configuration's `ContrastConfig` says."""
    said = config.data
    return RetrieverBatches(
        data,
        batch_size=said.batch_size,
        hard_negatives=said.hard_negatives,
        epochs=epochs,
        max_batches=max_batches,
        mask_false_negatives=said.mask_false_negatives,
        seed=config.run.seed,
    )


def train_bi_encoder(
    config: RetrieverTrainConfig,
    world: World,
    *,
    make_batches: BatchMaker = contrastive_batches,
    objective: Objective = in_batch_objective,
    held_out_objective: Objective = in_batch_objective,
    corpus: Index | None = None,
    make_hooks: Callable[[BiEncoderRun], FitHooks] | None = None,
    described: Mapping[str, object] | None = None,
) -> Path:
    """Train a bi-encoder inside `claimed`, or resume the run that `config.out` holds.

    Writes into `config.out`: `config.json`, `metrics.jsonl`, `curves.svg`, `data/` (tokenised),
    `checkpoints/`, `figures.json`, and `encoder/`, the finished encoder with its model card.

    Args:
        config: of the run.
        world: the processes; each calls this.
        make_batches: what is learned from.
        objective: what is minimised.
        held_out_objective: what `nll` measures on held-out questions.
        corpus: an index whose passages come first in the training set, so that its rows are theirs.
        make_hooks: what the recipe does inside the fit loop.
        described: more for the model card, as name → value.

    Returns:
        The folder of the finished encoder, `config.out / "encoder"`.

    Raises:
        DataError: an input file is wrong, or no held-out question can be judged.
        ConfigError: the configuration cannot work.
    """
    # model
    model, master = load_model(config, world.device)
    tokenizer = RetrieverTokenizer(model.settings.question, model.settings.passage)

    # data
    if not world.is_main:
        world.barrier()  # the main process divides and tokenises, the others find it done
    split = split_examples(config, config.out / "data")
    key = split.key if corpus is None else examples_key(split, corpus)
    data = TrainingSet.build(
        split.training(), tokenizer,
        corpus=() if corpus is None else corpus.passages,
        max_negatives=getattr(config.data, "negatives_depth", 0) or None,
        match_answers=config.matches_answers,
        folder=config.out / "data",
        key=key,
    )  # fmt: skip
    if world.is_main:
        world.barrier()

    # batches
    steps = config.optim.max_steps
    most = None if steps is None else steps * config.optim.accumulate
    batches = make_batches(config, data, epochs=config.optim.epochs, max_batches=most)
    get_logger(__name__).info(
        "%d questions to train on, %d held out, %d passages (%d of the corpus), %d batches of %d questions",
        *(len(data), len(split.held_out), len(data.passages), data.corpus_rows),
        *(len(batches), batches.batch_size),
    )
    run = BiEncoderRun(world, model, master, split, data, batches, key)
    hooks = None if make_hooks is None else make_hooks(run)

    # objective
    def compute_loss(_: torch.nn.Module, batch: RetrieverBatch) -> Loss:
        return contrastive_step(model, batch, world, config.data.chunk_size, objective=objective)

    # fit
    held_out = None
    if world.is_main and split.held_out:
        held_out = _HeldOut(config, split, tokenizer, make_batches, held_out_objective)
    result = fit(
        model, master, batches, compute_loss, config.optim, config.run, config.out,
        evaluate=None if not split.held_out else lambda _: {} if held_out is None else held_out(model),
        hooks=hooks,
        world=world,
    )  # fmt: skip

    # export
    if world.is_main:
        said: dict[str, object] = {
            "training questions": len(data),
            "held-out questions": len(split.held_out),
            "passages": len(data.passages),
            "files": ", ".join(path.name for path in config.train_files),
            "steps": result.chosen_step,
            "questions a step": batches.batch_size,
            "temperature": model.temperature,
            **(described or {}),
        }
        if held_out is not None and held_out.search is not None:
            known = "is a positive" if held_out.search.kind == "positive" else "holds an answer"
            said["a searched passage is right if it"] = known
            said["held-out questions whose positives are not in the index"] = held_out.search.missing
        finish_run(config, model, result, encoder_form(config, model), said)
    world.barrier()
    return config.out / "encoder"


def examples_key(split: ExampleSplit, index: Index) -> str:
    """Fingerprint of the examples and of the passages whose rows are exchanged."""
    content = json.dumps([split.key, index.manifest["passages"]])
    return hashlib.sha256(content.encode()).hexdigest()


class _HeldOut:
    """Scores the model on held-out questions: loss, average rank, retrieval over a corpus."""

    def __init__(
        self,
        config: RetrieverTrainConfig,
        split: ExampleSplit,
        tokenizer: RetrieverTokenizer,
        make_batches: BatchMaker,
        objective: Objective,
    ) -> None:
        self.config, self.objective = config, objective
        self.judged = [example for example in split.held_out if example.positives]
        data = TrainingSet.build(split.held_out, tokenizer, match_answers=config.matches_answers)
        self.batches = make_batches(config, data, epochs=1.0, max_batches=None)
        self.search = None
        if config.index is not None:
            self.search = CorpusSearch(
                Index.open(config.index).passages,
                split.held_out,
                limit=config.data.validation_passages,
                seed=config.run.seed,
            )

    def __call__(self, model: BiEncoderModel) -> dict[str, float]:
        """{"nll", "average_rank"} and, with an index, {"mrr", "top1", …} in percent."""
        scores = {"nll": self._loss(model)}
        folder = self.config.out / "validation"  # measured as a finished encoder is used, on its fast path
        export_model(folder, model, {}, encoder_form(self.config, model))
        encoder = BiEncoder.load(folder, device=model.device, precision=self.config.optim.precision)
        if self.judged:
            scores["average_rank"] = pool_rank(encoder, self.judged)
        if self.search is not None:
            scores |= self.search.measure(encoder)
        encoder.close()
        return scores

    @torch.no_grad()
    def _loss(self, model: BiEncoderModel) -> float:
        model.eval()
        world, chunk = World.single(model.device), self.config.data.chunk_size
        with torch.random.fork_rng(devices=[]):
            steps = [
                contrastive_step(model, self.batches[number], world, chunk, objective=self.objective)
                for number in range(len(self.batches))
            ]
        model.train()
        return sum(float(loss.value) for loss in steps) / len(steps)
