"""The part that the recipes of bi-encoders share; each recipe adds batches, an objective and hooks.

model → data → batches → objective → export
"""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from indexers.gold import CorpusTexts
from indexers.index import Index
from indexers.protocols import EncoderIdentity
from indexers.reissue import reissue_index
from rag.core.files import fingerprint
from rag.core.manifest import MANIFEST_NAME
from rag.data.examples import Example
from rag.training.card import Card
from rag.training.distributed import World
from rag.training.fit import BatchSource, FitHooks, Loss
from rag.training.precision import MasterWeights
from rag.training.run import Method, Run, Trained, train
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.encoders.layout import PAIR
from retrievers.encoders.settings import EncoderSettings
from retrievers.examples.batches import BatchTargets, Epochs, RetrieverBatches
from retrievers.examples.data import TrainingSet
from retrievers.examples.tokens import RetrieverTokenizer
from retrievers.training.bi_encoder import BiEncoderModel, adopt_index, encoder_form, export_model, load_model
from retrievers.training.config import EncodedTrainConfig, RetrieverTrainConfig
from retrievers.training.frozen import FrozenIndex
from retrievers.training.losses import Objective, in_batch_objective
from retrievers.training.split import ExampleSplit, split_examples
from retrievers.training.step import contrastive_step
from retrievers.training.validation import HeldOutScores


class Batches(BatchSource[Any], Protocol):
    """All batches of a run, by step."""

    batch_size: int


BatchMaker = Callable[[Any, TrainingSet, Epochs], Batches]
"""Configuration, training set, and which examples each batch holds → the batches."""


@dataclass(frozen=True, slots=True)
class BiEncoderRun:
    """The parts of a bi-encoder recipe.

    Attributes:
        config: configuration of the run.
        out: its folder.
        world: the processes.
        model: in its compute dtype.
        master: its weights in fp32.
        tokenizer: of both sides, as the model reads texts.
        bank: an index whose vectors are the passages'; then only the question side is trained.
    """

    config: RetrieverTrainConfig
    out: Path
    world: World
    model: BiEncoderModel
    master: MasterWeights
    tokenizer: RetrieverTokenizer
    bank: Index | None

    def method(
        self,
        batches: Batches,
        loss: Callable[[Any], Loss],
        held_out: Sequence[Example],
        evaluate: Callable[[BiEncoderModel], Mapping[str, float]] | None = None,
        hooks: Sequence[FitHooks] = (),
        facts: Mapping[str, object] | None = None,
    ) -> Method:
        """The method of a recipe that makes `encoder/`, and with `bank` also `index/`.

        Args:
            held_out: examples that are never trained on.
            evaluate: scores the model on held-out questions; needed only in the main process.
            facts: for the log and the model card, as name → value.
        """
        config, model, bank = self.config, self.model, self.bank
        form = encoder_form(config, model)
        if bank is not None:
            form = frozen_form(config, model)
            hooks = (FrozenIndex(bank.version), *hooks)

        def export(trained: Trained) -> None:
            if bank is None:
                export_model(self.out / "encoder", model, trained.weights, form)
            else:
                export_frozen(config, bank, model, trained.weights)

        scores = dict if evaluate is None else partial(evaluate, model)
        return Method(
            model, self.master, batches, loss, export, encoder_card(form),
            evaluate=scores if held_out else None,
            hooks=hooks,
            facts={
                **(facts or {}),
                "held-out questions": len(held_out),
                "questions per step": batches.batch_size,
                "temperature": model.temperature,
                **({} if bank is None else {"passage encoder": "that of the index, unchanged"}),
            },
        )  # fmt: skip


def contrastive_batches(
    config: Any, data: TrainingSet, examples: Epochs, targets: BatchTargets | None = None
) -> RetrieverBatches:
    """Batches of positives and hard negatives, as the configuration's `ContrastConfig` says."""
    return RetrieverBatches(
        data, examples, hard_negatives=config.data.hard_negatives,
        mask_false_negatives=config.data.mask_false_negatives, targets=targets,
    )  # fmt: skip


def train_model(
    config: RetrieverTrainConfig,
    recipe: Callable[[BiEncoderRun], Method],
    *,
    bank: Index | None = None,
    one_process: str = "",
) -> Path:
    """Train a bi-encoder, or resume the run that `config.out` holds; see `rag.training.run.train`.

    In addition to the files of every run, writes `data/` (divided and tokenised) and the finished `encoder/`.

    Args:
        bank: an index whose vectors are the passages': only the question side is trained, and
            `config.out / "index"` is the index for the trained encoder, without a copy of the vectors where
            the file system allows it. The configuration must come from `adopt_index`.
        one_process: see `rag.training.run.train`.

    Returns:
        The folder of the finished encoder, `config.out / "encoder"`.
    """

    def prepare(run: Run) -> Method:
        model = load_model(config, run.device, freeze_passages=bank is not None)
        master, sides = run.master(model), model.settings
        tokenizer = RetrieverTokenizer(sides.question, sides.passage, query_tokens=config.query_tokens)
        return recipe(BiEncoderRun(config, run.out, run.world, model, master, tokenizer, bank))

    return train(config, prepare, "encoder", one_process=one_process)


def train_bi_encoder(
    config: EncodedTrainConfig,
    *,
    make_batches: BatchMaker = contrastive_batches,
    objective: Objective = in_batch_objective,
    held_out_objective: Objective = in_batch_objective,
    corpus: Index | None = None,
    make_hooks: Callable[[BiEncoderRun, ExampleSplit, TrainingSet, Any], FitHooks] | None = None,
    facts: Mapping[str, object] | None = None,
) -> Path:
    """Train by an objective over the vectors of whole batches; see `train_model`.

    Where passages are frozen and an index is given, its vectors are the passages' (`bank` of `train_model`).

    Args:
        make_batches: makes the training batches.
        objective: the loss.
        held_out_objective: the loss that is reported as `nll` on held-out questions.
        corpus: an index whose passages come first in the training set, so that its rows are theirs.
        make_hooks: makes the recipe's hooks of the fit loop from its examples, training set and batches.
        facts: further facts for the model card, as name → value.
    """

    def recipe(config: EncodedTrainConfig, run: BiEncoderRun) -> Method:
        bank, world, folder = run.bank, run.world, run.out / "data"
        split = split_examples(config, folder)
        if bank is not None:
            listed = chain(split.training(), split.held_out)
            run.model.known = known_vectors(bank, listed, run.tokenizer)
        data = TrainingSet.build(
            split.training(), run.tokenizer,
            corpus=() if corpus is None else corpus.passages,
            folder=folder,
            key=split.key if corpus is None else examples_key(split, corpus),
        )  # fmt: skip
        batches = make_batches(config, data, Epochs.of(config, len(data)))
        held_out = None
        if world.is_main and split.held_out:
            held_out = HeldOutScores(
                config, split.held_out, run.tokenizer, make_batches, held_out_objective, bank
            )
        chunk = config.data.chunk_size
        return run.method(
            batches,
            lambda batch: contrastive_step(run.model, batch, world, chunk, objective=objective),
            split.held_out,
            held_out,
            () if make_hooks is None else (make_hooks(run, split, data, batches),),
            {
                "training questions": len(data), "passages": len(data.passages), **(facts or {}),
                **({} if held_out is None else held_out.facts()),
            },
        )  # fmt: skip

    if config.index is None or corpus is not None or not config.model.as_indexed:
        return train_model(config, partial(recipe, config))
    with Index.open(config.index) as bank:
        adopted = adopt_index(config, bank, same_encoder=True)
        return train_model(adopted, partial(recipe, adopted), bank=bank)


def encoder_card(form: EncoderSettings) -> Card:
    """The model card of a bi-encoder that lays texts out in this form."""
    return Card("retrievers.training", "bi_encoder.md", {"form": form, "is_pair": form.layout == PAIR})


def frozen_form(config: RetrieverTrainConfig, model: BiEncoderModel) -> EncoderSettings:
    """Text settings of an encoder whose passage vectors are an index's: those it was encoded with."""
    return replace(encoder_form(config, model), max_length=config.model.passage_tokens)


def export_frozen(
    config: RetrieverTrainConfig, index: Index, model: BiEncoderModel, weights: Mapping[str, Tensor]
) -> None:
    """Write `encoder/`, and its index `index/` unless it exists already.

    Args:
        config: as `adopt_index` returns it.
        weights: of both towers.
    """
    folder = export_model(config.out / "encoder", model, weights, frozen_form(config, model))
    encoder, target = BiEncoder.load(folder), config.out / "index"
    if target.exists():
        if (target / MANIFEST_NAME).exists() and _identity(target) == encoder.identity:
            return
        shutil.rmtree(target)
    reissue_index(index.directory, target, encoder, seed=config.run.seed)
    encoder.close()


def examples_key(split: ExampleSplit, index: Index) -> str:
    """Fingerprint of the examples and of the passages whose rows are exchanged."""
    return fingerprint([split.key, index.manifest["passages"]])


def known_vectors(
    index: Index, examples: Iterable[Example], tokenizer: RetrieverTokenizer
) -> dict[bytes, Tensor]:
    """The index's vectors of those passages in examples that it contains, by the bytes of their token ids."""
    texts = CorpusTexts(index.passages)
    listed = {c.passage.text: c.passage for example in examples for c in example.candidates}
    rows = np.unique([row for passage in listed.values() for row in texts.find(passage)]).astype(np.int64)
    passages = index.passages.get_many(rows)
    ids = tokenizer.passages([p.title for p in passages], [p.text for p in passages])
    vectors = torch.from_numpy(index.require_dense().embeddings.rows(rows))
    return {np.array(row, np.int32).tobytes(): vector for row, vector in zip(ids, vectors, strict=True)}


def _identity(directory: Path) -> EncoderIdentity | None:
    with Index.open(directory, verify="none") as index:
        return index.encoder_identity
