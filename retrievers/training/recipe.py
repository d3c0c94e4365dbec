"""What the recipes of bi-encoders share: training set, loss, validation and export of a run."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
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
from rag.training.fit import LossFunction, Method, Weights
from rag.training.precision import MasterWeights
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.encoders.settings import PAIR, EncoderSettings
from retrievers.examples.batches import BatchMaker, Epochs, RetrieverBatches
from retrievers.examples.data import ExampleTable, split_examples
from retrievers.training.bi_encoder import (
    BiEncoderModel,
    encoder_settings,
    export_model,
    frozen_settings,
    load_model,
)
from retrievers.training.config import BiEncoderConfig, ContrastiveConfig, ExamplesConfig
from retrievers.training.losses import BatchLoss, in_batch_loss
from retrievers.training.step import contrastive_step
from retrievers.training.validation import HeldOutScores


def contrastive_batches(
    config: ContrastiveConfig, data: ExampleTable, *, once: bool = False
) -> RetrieverBatches:
    """Batches of positives and hard negatives."""
    return RetrieverBatches(
        data,
        Epochs.of(config, len(data), once=once),
        hard_negatives=config.hard_negatives,
        mask_false_negatives=config.mask_false_negatives,
    )


def learn_from_examples(
    config: ExamplesConfig,
    world: World,
    *,
    loss: BatchLoss = in_batch_loss,
    make_batches: BatchMaker = contrastive_batches,
) -> Method:
    """The method of bi-encoders that learn from training examples: examples → batches → loss →
    validation.

    A configuration that `keeps_index` takes the index's vectors for the passages, and trains the
    question side; then `config.out / "index"` is the index for the trained encoder, without a copy
    of the vectors where the file system allows it.
    """
    # data
    split = split_examples(config, config.out / "data")
    batches = make_batches(config, split.training)

    # model
    model = load_model(config, world.device, same_encoder=True)
    if model.bank is not None:
        model.fixed = fixed_vectors(model.bank, chain(split.training, split.held_out))

    return bi_encoder_method(
        model,
        world,
        batches,
        split.held_out,
        make_batches=make_batches,
        loss=loss,
        facts={"training questions": len(split.training)},
    )


def bi_encoder_method(
    model: BiEncoderModel,
    world: World,
    batches: Any,
    held_out: Sequence[Example],
    *,
    make_batches: BatchMaker,
    loss: BatchLoss = in_batch_loss,
    step: LossFunction | None = None,
    facts: Mapping[str, object],
) -> Method:
    """The method of a recipe that makes `encoder/`, and with a bank also `index/`.

    Args:
        batches: of the run.
        make_batches: makes those of the held-out examples.
        loss: minimised in training, by `contrastive_step`, and measured on held-out questions.
        step: the step of training, if it is another than `contrastive_step`.
    """
    config: Any = model.config
    settings = encoder_settings(model) if model.bank is None else frozen_settings(model)
    if step is None:
        step = partial(
            contrastive_step, model, world=world, chunk_size=config.chunk_size, loss=loss
        )
    evaluate: Any = dict if held_out else None
    if held_out and world.is_main:
        evaluate = partial(HeldOutScores(config, held_out, make_batches, loss), model)
    return Method(
        model,
        MasterWeights(model, config.precision),
        batches,
        step,
        export=partial(_export, model, settings),
        card=encoder_card(config, settings),
        evaluate=evaluate,
        facts={
            **facts,
            "held-out questions": len(held_out),
            "questions per step": batches.batch_size,
        },
        shares=True,
        makes_ahead=True,
    )


def _export(model: BiEncoderModel, settings: EncoderSettings, weights: Weights) -> None:
    if model.bank is None:
        export_model(model.config.out / "encoder", model, weights, settings)
    else:
        export_frozen(model.bank, model, weights)


def encoder_card(start: BiEncoderConfig, settings: EncoderSettings) -> Card:
    """The model card of a bi-encoder that reads texts with these settings.

    Args:
        start: the `config` of its model.
    """
    values = {"encoder": settings, "is_pair": settings.layout == PAIR, "start": start}
    return Card("retrievers.training", "bi_encoder.md", values)


def export_frozen(index: Index, model: BiEncoderModel, weights: Mapping[str, Tensor]) -> None:
    """Write `encoder/`, and the index for it, whose vectors are those of `index`."""
    out = model.config.out
    folder = export_model(out / "encoder", model, weights, frozen_settings(model))
    shutil.rmtree(out / "index", ignore_errors=True)
    write_index(
        out / "index",
        None,
        settings=index.manifest.settings,
        encoder=BiEncoder.load(folder),
        start_from=index,
    )


def fixed_vectors(index: Index, examples: Iterable[Example]) -> dict[tuple[str, str], Tensor]:
    """The index's vectors of those passages in examples that it contains, by title and text."""
    texts = CorpusTexts(index.passages)
    found: set[int] = set()
    for example in examples:
        for passage in example.passages:
            found.update(texts.find(passage))
    rows = np.array(sorted(found), np.int64)
    vectors = torch.from_numpy(index.require_dense().embeddings.rows(rows))
    contents = [passage.content for passage in index.passages.get_many(rows)]
    return dict(zip(contents, vectors, strict=True))
