"""What the recipes of bi-encoders share: step, validation, export and model card of a run."""

import shutil
from collections.abc import Mapping, Sequence
from functools import partial

from indexers.index_writer import write_index
from rag.data.examples import Example
from rag.training.card import Card
from rag.training.distributed import World
from rag.training.fit import LossFunction, Method, Weights
from rag.training.precision import MasterWeights
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.examples.batches import BatchMaker, EpochBatches, Epochs
from retrievers.training.bi_encoder import FixedVectors, TrainedRetriever, export_model
from retrievers.training.config import EncodedConfig
from retrievers.training.losses import BatchLoss, in_batch_loss
from retrievers.training.step import contrastive_step
from retrievers.training.validation import HeldOutScores


def bi_encoder_method(
    config: EncodedConfig,
    retriever: TrainedRetriever,
    world: World,
    batches: EpochBatches | Epochs,
    held_out: Sequence[Example],
    *,
    make_batches: BatchMaker,
    loss: BatchLoss = in_batch_loss,
    step: LossFunction | None = None,
    facts: Mapping[str, object],
) -> Method:
    """The method of a recipe that makes a bi-encoder.

    A retriever with a `passage_index` takes the vectors of that index for the passages.

    Args:
        batches: of the run.
        make_batches: makes those of the held-out examples.
        loss: minimised in training, by `contrastive_step`, and measured on held-out questions.
        step: the step of training, if it is another than `contrastive_step`; it takes vectors from
            the index itself.
    """
    model = retriever.model
    fixed = None
    if step is None and retriever.passage_index is not None:
        fixed = FixedVectors(model, retriever.passage_index)
    contrast = partial(
        contrastive_step, model, chunk_size=config.chunk_size, loss=loss, fixed=fixed
    )
    evaluate = None
    if held_out:
        evaluate = partial(HeldOutScores(config, held_out, make_batches, contrast), retriever)
    return Method(
        model,
        MasterWeights(model, config.precision),
        batches,
        step or partial(contrast, world=world),
        export=partial(export_retriever, retriever),
        card=encoder_card(retriever),
        evaluate=evaluate,
        facts={
            **facts,
            "held-out questions": len(held_out),
            "questions per step": batches.batch_size,
        },
        shares=True,
        makes_ahead=True,
    )


def export_retriever(retriever: TrainedRetriever, weights: Weights) -> None:
    """Write `encoder/` into the run's folder.

    Where passage vectors are an index's also `index/`, the index for the trained encoder, without a
    copy of the vectors where the file system allows it.
    """
    out = retriever.config.out
    folder = export_model(out / "encoder", retriever.model, weights, retriever.encoder_settings)
    index = retriever.passage_index
    if index is None:
        return
    shutil.rmtree(out / "index", ignore_errors=True)
    write_index(
        out / "index",
        None,
        settings=index.manifest.settings,
        encoder=BiEncoder.load(folder),
        start_from=index,
    )


def encoder_card(retriever: TrainedRetriever) -> Card:
    """The model card of a bi-encoder."""
    values = {"encoder": retriever.encoder_settings, "start": retriever.config}
    return Card("retrievers.training", "bi_encoder.md", values)
