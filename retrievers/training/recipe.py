"""The body that the recipes of bi-encoders share; each brings its batches, its objective and its hooks.

model → data → batches → objective → fit → export
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import torch

from indexers.index import Index
from rag.core.errors import DataError
from rag.core.files import fingerprint
from rag.core.log import get_logger
from rag.training.distributed import World
from rag.training.fit import BatchSource, FitHooks, Loss, fit
from rag.training.precision import MasterWeights
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.examples.batches import Epochs, RetrieverBatches
from retrievers.examples.data import TrainingArrays
from retrievers.examples.split import ExampleSplit, split_examples
from retrievers.examples.tokens import RetrieverTokenizer
from retrievers.training.config import RetrieverTrainConfig
from retrievers.training.frozen import FrozenIndex, finish_questions, known_vectors, settings_of
from retrievers.training.losses import Objective, in_batch_objective, own_negatives, pairwise_objective
from retrievers.training.model import BiEncoderModel
from retrievers.training.run import encoder_form, export_model, finish_run, load_model
from retrievers.training.step import contrastive_step
from retrievers.training.validation import TOP_KS, CorpusSearch, pool_rank


class Batches(BatchSource[Any], Protocol):
    """All batches of a run, by step."""

    batch_size: int


BatchMaker = Callable[[Any, TrainingArrays, Epochs], Batches]
"""Configuration, training set, and which examples each batch holds → the batches."""


@dataclass(frozen=True, slots=True)
class BiEncoderRun:
    """What a recipe is made of.

    Attributes:
        world: the processes.
        model: in its compute dtype.
        master: its weights in fp32.
        tokenizer: of both sides, as the model reads texts.
        split: which examples are trained on, which are held out.
    """

    world: World
    model: BiEncoderModel
    master: MasterWeights
    tokenizer: RetrieverTokenizer
    split: ExampleSplit


@dataclass(frozen=True, slots=True)
class Method:
    """What a recipe does.

    Attributes:
        batches: of the whole run.
        compute_loss: of one batch.
        evaluate: scores the model on held-out questions, in the main process.
        hooks: what is done inside the fit loop.
        described: for the model card, as name → value.
    """

    batches: Batches
    compute_loss: Callable[[Any], Loss]
    evaluate: Callable[[BiEncoderModel], Mapping[str, float]] | None
    hooks: FitHooks | None = None
    described: Mapping[str, object] = field(default_factory=dict)


def contrastive_batches(config: Any, data: TrainingArrays, examples: Epochs) -> RetrieverBatches:
    """Batches of positives and hard negatives, as the configuration's `ContrastConfig` says."""
    return RetrieverBatches(
        data, examples, hard_negatives=config.data.hard_negatives,
        mask_false_negatives=config.data.mask_false_negatives,
    )  # fmt: skip


def epochs_of(config: RetrieverTrainConfig, count: int) -> Epochs:
    """Which of `count` examples each batch of the run holds."""
    return Epochs(
        count, config.data.batch_size, epochs=config.optim.epochs, max_batches=config.optim.max_batches,
        seed=config.run.seed,
    )  # fmt: skip


def train_model(
    config: RetrieverTrainConfig,
    world: World,
    prepare: Callable[[BiEncoderRun], Method],
    *,
    bank: Index | None = None,
    divide: Callable[[RetrieverTrainConfig, Path], ExampleSplit] = split_examples,
) -> Path:
    """Train a bi-encoder inside `claimed`, or resume the run that `config.out` holds.

    Under torchrun every process calls this; the batch is shared among them, and the gradients are those of
    one process.

    Writes into `config.out`: `config.json`, `metrics.jsonl`, `curves.svg`, `data/` (divided and tokenised),
    `checkpoints/`, `figures.json`, and `encoder/`, the finished encoder with its model card.

    Args:
        prepare: the recipe; processes run it one after the other, the main one first.
        bank: an index whose vectors stay as they are: questions alone are learned, and `config.out / "index"`
            is the index for the trained encoder, without a copy of the vectors where the file system allows
            it. The configuration is that of `settings_of`.
        divide: which examples are trained on, which are held out.

    Returns:
        The folder of the finished encoder, `config.out / "encoder"`.

    Raises:
        DataError: an input file is wrong, or holds nothing to learn from or to be judged by.
        ConfigError: the configuration cannot work.
    """
    # model
    model, master = load_model(config, world.device, freeze_passages=bank is not None)
    sides = model.settings
    tokenizer = RetrieverTokenizer(sides.question, sides.passage, query_tokens=config.query_tokens)

    # data, batches, objective
    with world.main_first():  # it divides and tokenises
        split = divide(config, config.out / "data")
        method = prepare(BiEncoderRun(world, model, master, tokenizer, split))
    get_logger(__name__).info(
        "%d questions held out; %d batches of %d questions; %s",
        *(len(split.held_out), len(method.batches), method.batches.batch_size),
        ", ".join(f"{name}: {value}" for name, value in method.described.items()),
    )

    # fit
    evaluate = method.evaluate
    result = fit(
        model, master, method.batches, lambda _, batch: method.compute_loss(batch),
        config.optim, config.run, config.out,
        evaluate=None if not split.held_out else lambda _: {} if evaluate is None else evaluate(model),
        hooks=method.hooks if bank is None or method.hooks is not None else FrozenIndex(bank.version),
        world=world,
    )  # fmt: skip

    # export
    if world.is_main:
        described = {
            **method.described,
            "held-out questions": len(split.held_out),
            "files": ", ".join(path.name for path in config.train_files),
            "steps": result.chosen_step,
            "questions a step": method.batches.batch_size,
            "temperature": model.temperature,
        }
        if bank is None:
            finish_run(config, model, result, encoder_form(config, model), described)
        else:
            finish_questions(config, model, result, described)
    world.barrier()
    return config.out / "encoder"


def train_bi_encoder(
    config: RetrieverTrainConfig,
    world: World,
    *,
    make_batches: BatchMaker = contrastive_batches,
    objective: Objective = in_batch_objective,
    held_out_objective: Objective = in_batch_objective,
    corpus: Index | None = None,
    make_hooks: Callable[[BiEncoderRun, TrainingArrays, Any], FitHooks] | None = None,
    described: Mapping[str, object] | None = None,
) -> Path:
    """Train by an objective over the vectors of whole batches; see `train_model`.

    Where passages are frozen and an index is given, its vectors are the passages' (`bank` of `train_model`).

    Args:
        make_batches: what is learned from.
        objective: what is minimised.
        held_out_objective: what `nll` measures on held-out questions.
        corpus: an index whose passages come first in the training set, so that its rows are theirs.
        make_hooks: what the recipe does inside the fit loop, with its training set and batches.
        described: more for the model card, as name → value.
    """
    bank, said = None, config.model
    as_indexed = said.frozen == "passage" and said.passage_encoder is None and corpus is None
    if as_indexed and config.index is not None:
        bank = Index.open(config.index)
        config = settings_of(config, bank, started=True)

    def prepare(run: BiEncoderRun) -> Method:
        if bank is not None:
            listed = chain(run.split.training(), run.split.held_out)
            run.model.known = known_vectors(bank, listed, run.tokenizer)
        data = TrainingArrays.build(
            run.split.training(), run.tokenizer,
            corpus=() if corpus is None else corpus.passages,
            match_answers=config.matches_answers,
            folder=config.out / "data",
            key=run.split.key if corpus is None else examples_key(run.split, corpus),
        )  # fmt: skip
        batches = make_batches(config, data, epochs_of(config, len(data)))
        said = {"training questions": len(data), "passages": len(data.passages), **(described or {})}
        held_out = None
        if world.is_main and run.split.held_out:
            held_out = HeldOut(config, run.split, run.tokenizer, make_batches, held_out_objective, bank)
            said |= held_out.described()
        return Method(
            batches,
            lambda batch: contrastive_step(
                run.model, batch, world, config.data.chunk_size, objective=objective
            ),
            held_out,
            None if make_hooks is None else make_hooks(run, data, batches),
            said,
        )

    return train_model(config, world, prepare, bank=bank)


def examples_key(split: ExampleSplit, index: Index) -> str:
    """Fingerprint of the examples and of the passages whose rows are exchanged."""
    return fingerprint([split.key, index.manifest["passages"]])


class HeldOut:
    """Scores the model on held-out questions: loss, average rank, retrieval over a corpus.

    Raises:
        DataError: no held-out question has what the objective is made of.
    """

    def __init__(
        self,
        config: RetrieverTrainConfig,
        split: ExampleSplit,
        tokenizer: RetrieverTokenizer,
        make_batches: BatchMaker,
        objective: Objective,
        bank: Index | None = None,
    ) -> None:
        self.config, self.objective, self.bank = config, objective, bank
        self.judged = [example for example in split.held_out if example.positives]
        data = TrainingArrays.build(split.held_out, tokenizer, match_answers=config.matches_answers)
        once = Epochs(len(data), config.data.batch_size, seed=config.run.seed)
        self.batches = make_batches(config, data, once)
        self.numbers = list(range(len(self.batches)))  # of those that can be measured
        if objective is pairwise_objective:
            self.numbers = [n for n in self.numbers if len(own_negatives(self.batches[n])[0])]
        if not self.numbers:
            raise DataError(
                f"no held-out question ({config.validation_file or 'of the training files'}) has a hard "
                "negative, which loss=pairwise is measured by",
                hint="mine negatives for them as well (rag mine), or train without validation: "
                "validation_fraction=0 and no validation file",
            )
        self.search = None
        if config.index is not None:
            self.search = CorpusSearch(
                (bank or Index.open(config.index)).passages,
                split.held_out,
                limit=config.data.validation_passages,
                seed=config.run.seed,
            )

    def described(self) -> dict[str, object]:
        """How passages are judged, for the model card."""
        if self.search is None:
            return {}
        return {
            "a searched passage is right if it": {"positive": "is a positive", "answer": "holds an answer"}[
                self.search.kind
            ],
            "held-out questions whose positives are not in the index": self.search.missing,
        }

    def __call__(self, model: BiEncoderModel) -> dict[str, float]:
        """{"nll", "average_rank"} and, with an index, {"mrr", "top1", …} in percent."""
        scores = {"nll": self._loss(model)}
        folder = self.config.out / "validation"  # measured as a finished encoder is used, on its fast path
        export_model(folder, model, {}, encoder_form(self.config, model))
        encoder = BiEncoder.load(folder, device=model.device, precision=self.config.optim.precision)
        if self.judged and encoder.identity.pooling != "tokens":
            scores["average_rank"] = pool_rank(encoder, self.judged)
        if self.search is not None and self.bank is not None and self.bank.dense is not None:
            asked = encoder.encode_queries([example.query for example in self.search.examples])
            scores |= self.search.judge(self.bank.dense.search(asked, TOP_KS[-1])[1])
        elif self.search is not None:
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
                for number in self.numbers
            ]
        model.train()
        return sum(float(loss.value) for loss in steps) / len(steps)
