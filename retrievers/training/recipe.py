"""What the recipes of bi-encoders share: model, training set, loss, validation and export of a
run.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
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
    start_from_index,
)
from retrievers.training.config import BiEncoderConfig
from retrievers.training.losses import Objective, in_batch_objective
from retrievers.training.step import contrastive_step
from retrievers.training.validation import HeldOutScores


@dataclass(frozen=True, slots=True)
class BiEncoderRun:
    """The parts of a bi-encoder's training run.

    Attributes:
        config: completed by what follows from the index.
        model: in its compute dtype.
        master: its weights in fp32.
        bank: an index whose vectors are the passages'; then only the question side is trained.
    """

    config: Any
    world: World
    model: BiEncoderModel
    master: MasterWeights
    bank: Index | None

    def split_examples(
        self, *args: Any, fixes_vectors: bool = True, **options: Any
    ) -> ExampleSplit:
        """`split_examples`; with `bank`, the model takes the vectors of the passages from it."""
        split = split_examples(self.config, self.config.out / "data", *args, **options)
        if self.bank is not None and fixes_vectors:
            self.model.fixed = fixed_vectors(self.bank, chain(split.training, split.held_out))
        return split

    def loss(self, objective: Objective) -> Callable[[RetrieverBatch], Loss]:
        """The step by an objective over the vectors of whole batches."""
        chunk = self.config.chunk_size
        return lambda batch: contrastive_step(
            self.model, batch, self.world, chunk, objective=objective
        )

    def method(
        self,
        batches: Any,
        loss: Callable[[Any], Loss],
        held_out: Sequence[Example],
        facts: Mapping[str, object],
        *,
        make_batches: BatchMaker,
        objective: Objective = in_batch_objective,
        hooks: FitHooks | None = None,
    ) -> Method:
        """The method of a recipe that makes `encoder/`, and with `bank` also `index/`."""
        config, model, bank = self.config, self.model, self.bank
        form = encoder_form(config, model) if bank is None else frozen_form(config, model)

        def export(weights: Weights) -> None:
            if bank is None:
                export_model(self.config.out / "encoder", model, weights, form)
            else:
                export_frozen(config, bank, model, weights)

        evaluate: Callable[[], Mapping[str, float]] | None = dict if held_out else None
        if self.world.is_main and held_out:
            evaluate = partial(HeldOutScores(config, held_out, make_batches, objective), model)
        card = encoder_card(form)
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
            loss,
            export,
            card,
            evaluate=evaluate,
            hooks=hooks,
            facts=facts,
        )


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
    config: Any,
    run: BiEncoderRun,
    *,
    objective: Objective = in_batch_objective,
    make_batches: BatchMaker = contrastive_batches,
) -> Method:
    """The recipe of bi-encoders that learn from training examples: examples → batches → loss →
    validation.
    """
    split = run.split_examples()
    batches = make_batches(config, split.training)
    loss = run.loss(objective)
    facts = {"training questions": len(split.training)}
    return run.method(
        batches, loss, split.held_out, facts, make_batches=make_batches, objective=objective
    )


def train_bi_encoder(
    config: Any,
    recipe: Callable[[Any, BiEncoderRun], Method] = learn_from_examples,
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
        recipe: makes the method from the configuration, completed by what follows from the index,
            and the run.
        one_process: see `rag.training.run.train`.
    """
    with Index.open(config.index) if config.keeps_index else nullcontext() as bank:
        if bank is None:
            config = start_from_index(config)
        else:
            config = adopt_index(config, bank, same_encoder=not one_process)

        def method(world: World) -> Method:
            model = load_model(config, world.device, freeze_passages=bank is not None)
            master = MasterWeights(model, config.precision)
            return recipe(config, BiEncoderRun(config, world, model, master, bank))

        return train(config, method, "encoder", one_process=one_process)


def encoder_card(form: EncoderSettings) -> Card:
    """The model card of a bi-encoder that lays texts out in this form."""
    return Card(
        "retrievers.training", "bi_encoder.md", {"form": form, "is_pair": form.layout == PAIR}
    )


def frozen_form(config: BiEncoderConfig, model: BiEncoderModel) -> EncoderSettings:
    """Text settings of an encoder whose passage vectors are an index's: those it was encoded
    with.
    """
    return replace(encoder_form(config, model), max_length=config.passage_tokens)


def export_frozen(
    config: BiEncoderConfig, index: Index, model: BiEncoderModel, weights: Mapping[str, Tensor]
) -> None:
    """Write `encoder/`, and the index for it, whose vectors are those of `index`."""
    folder = export_model(config.out / "encoder", model, weights, frozen_form(config, model))
    encoder, target = BiEncoder.load(folder), config.out / "index"
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
