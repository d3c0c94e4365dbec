"""What the recipes of bi-encoders share: model, training set, loss, validation and export of a
run.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from indexers.gold import CorpusTexts
from indexers.index import Index
from indexers.index_writer import write_index
from rag.data.examples import Example
from rag.training.card import Card
from rag.training.distributed import World
from rag.training.fit import FitHooks, Loss, Method, Weights
from rag.training.precision import MasterWeights
from rag.training.run import train
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.encoders.settings import PAIR, EncoderSettings
from retrievers.examples.batches import BatchMaker, Epochs, RetrieverBatch, RetrieverBatches
from retrievers.examples.data import ExampleSplit, ExampleTable, split_examples
from retrievers.training.bi_encoder import (
    BiEncoderModel,
    adopt_index,
    encoder_form,
    export_model,
    load_model,
)
from retrievers.training.config import BiEncoderConfig
from retrievers.training.losses import BatchLoss, in_batch_loss
from retrievers.training.step import contrastive_step
from retrievers.training.validation import HeldOutScores


@dataclass(frozen=True)
class BiEncoderRun:
    """The parts of a bi-encoder's training run.

    Attributes:
        config: the settings; what they leave to an index is in `model.config`.
        bank: an index whose vectors are the passages'; then only the question side is trained.
    """

    config: Any
    world: World
    bank: Index | None

    @cached_property
    def _loaded(self) -> tuple[BiEncoderModel, MasterWeights]:
        """Loaded when first used: wrong files and settings are refused before."""
        model = load_model(self.config, self.world.device, freeze_passages=self.bank is not None)
        return model, MasterWeights(model, self.config.precision)

    @property
    def model(self) -> BiEncoderModel:
        """The model, in its compute dtype."""
        return self._loaded[0]

    @property
    def master(self) -> MasterWeights:
        """The model's weights in fp32."""
        return self._loaded[1]

    def split_examples(
        self, *args: Any, fixes_vectors: bool = True, **options: Any
    ) -> ExampleSplit:
        """`split_examples`; with `bank`, the model takes the vectors of the passages from it."""
        split = split_examples(self.config, self.config.out / "data", *args, **options)
        if self.bank is not None and fixes_vectors:
            self.model.fixed = fixed_vectors(self.bank, chain(split.training, split.held_out))
        return split

    def method(
        self,
        batches: Any,
        held_out: Sequence[Example],
        facts: Mapping[str, object],
        *,
        make_batches: BatchMaker,
        loss: BatchLoss = in_batch_loss,
        step: Callable[[Any], Loss] | None = None,
        hooks: FitHooks | None = None,
    ) -> Method:
        """The method of a recipe that makes `encoder/`, and with `bank` also `index/`.

        Args:
            loss: minimised in training, by `contrastive_step`, and measured on held-out questions.
            step: the step of training, if it is another than `contrastive_step`.
        """
        config = self.config
        model = self.model
        bank = self.bank
        form = encoder_form(model) if bank is None else frozen_form(model)

        def export(weights: Weights) -> None:
            if bank is None:
                export_model(self.config.out / "encoder", model, weights, form)
            else:
                export_frozen(bank, model, weights)

        evaluate: Callable[[], Mapping[str, float]] | None = dict if held_out else None
        if self.world.is_main and held_out:
            evaluate = partial(HeldOutScores(config, held_out, make_batches, loss), model)
        card = encoder_card(model.config, form)
        hooks = hooks or FitHooks()
        facts = {
            **facts,
            "held-out questions": len(held_out),
            "questions per step": batches.batch_size,
        }
        return Method(
            model,
            self.master,
            batches,
            step or partial(self._step, loss=loss),
            export,
            card,
            evaluate=evaluate,
            hooks=hooks,
            facts=facts,
            shares=True,
        )

    def _step(self, batch: RetrieverBatch, loss: BatchLoss) -> Loss:
        return contrastive_step(self.model, batch, self.world, self.config.chunk_size, loss=loss)


def contrastive_batches(config: Any, data: ExampleTable, *, once: bool = False) -> RetrieverBatches:
    """Batches of positives and hard negatives, as a `ContrastiveConfig` says."""
    epochs = Epochs.of(config, len(data), once=once)
    return RetrieverBatches(
        data,
        epochs,
        hard_negatives=config.hard_negatives,
        mask_false_negatives=config.mask_false_negatives,
    )


def learn_from_examples(
    run: BiEncoderRun,
    *,
    loss: BatchLoss = in_batch_loss,
    make_batches: BatchMaker = contrastive_batches,
) -> Method:
    """The recipe of bi-encoders that learn from training examples: examples → batches → loss →
    validation.
    """
    split = run.split_examples()
    batches = make_batches(run.config, split.training)
    facts = {"training questions": len(split.training)}
    return run.method(batches, split.held_out, facts, make_batches=make_batches, loss=loss)


def train_bi_encoder(
    config: Any,
    build: Callable[[BiEncoderRun], Method] = learn_from_examples,
    *,
    one_process: str = "",
) -> Path:
    """Train a bi-encoder, or resume the run that `config.out` holds; see `rag.training.run.train`.

    In addition to the files of every run, writes `data/` (the divided examples) and the finished
    `encoder/`. A configuration that `keeps_index` takes the index's vectors for the passages, and
    trains the question side; then `config.out / "index"` is the index for the trained encoder,
    without a copy of the vectors where the file system allows it.

    Args:
        config: a `BiEncoderConfig`.
        build: makes the method from the parts of the run.
        one_process: see `rag.training.run.train`.
    """
    with Index.open(config.index) if config.keeps_index else nullcontext() as bank:
        if bank is not None:
            config = adopt_index(config, bank, same_encoder=not one_process)

        def method(world: World) -> Method:
            return build(BiEncoderRun(config, world, bank))

        return train(config, method, "encoder", one_process=one_process)


def encoder_card(start: BiEncoderConfig, form: EncoderSettings) -> Card:
    """The model card of a bi-encoder that lays texts out in this form.

    Args:
        start: the `config` of its model.
    """
    values = {"form": form, "is_pair": form.layout == PAIR, "start": start}
    return Card("retrievers.training", "bi_encoder.md", values)


def frozen_form(model: BiEncoderModel) -> EncoderSettings:
    """Text settings of an encoder whose passage vectors are an index's: those it was encoded
    with.
    """
    return replace(encoder_form(model), max_length=model.config.passage_tokens)


def export_frozen(index: Index, model: BiEncoderModel, weights: Mapping[str, Tensor]) -> None:
    """Write `encoder/`, and the index for it, whose vectors are those of `index`."""
    config = model.config
    folder = export_model(config.out / "encoder", model, weights, frozen_form(model))
    encoder = BiEncoder.load(folder)
    target = config.out / "index"
    shutil.rmtree(target, ignore_errors=True)
    settings = index.manifest.settings
    write_index(target, None, settings=settings, encoder=encoder, start_from=index)


def fixed_vectors(index: Index, examples: Iterable[Example]) -> dict[tuple[str, str], Tensor]:
    """The index's vectors of those passages in examples that it contains, by title and text."""
    texts = CorpusTexts(index.passages)
    listed = {c.passage.text: c.passage for example in examples for c in example.candidates}
    rows = np.unique([row for passage in listed.values() for row in texts.find(passage)]).astype(
        np.int64
    )
    vectors = torch.from_numpy(index.require_dense().embeddings.rows(rows))
    passages = index.passages.get_many(rows)
    return {(p.title, p.text): vector for p, vector in zip(passages, vectors, strict=True)}
