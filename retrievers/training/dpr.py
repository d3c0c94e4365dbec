"""Train a dense retriever with in-batch and hard negatives (DPR).

This is the recipe to read first; the others exchange its batches, its loss or its model.

settings (`config.py`) → examples → batches (`retrievers/examples/batches.py`)
    → model (`bi_encoder.py`) → step (`step.py`) and loss (`losses.py`)
    → the loop (`rag/training/fit.py`), with validation (`validation.py`) → `encoder/`
"""

from rag.training.distributed import World
from rag.training.fit import Method
from retrievers.examples.batches import BatchMaker, Epochs, RetrieverBatches, check_negatives
from retrievers.examples.data import ExampleTable, split_examples
from retrievers.training.bi_encoder import load_model
from retrievers.training.config import ContrastiveConfig, ExamplesConfig
from retrievers.training.losses import BatchLoss, in_batch_loss
from retrievers.training.recipe import bi_encoder_method


def contrastive_batches(
    config: ContrastiveConfig, data: ExampleTable, *, once: bool = False
) -> RetrieverBatches:
    """Batches of positives and hard negatives.

    Args:
        once: every example once, for validation, in place of the run's epochs.
    """
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
    """The method of `rag train dpr`, and of all bi-encoders that learn from training examples.

    Each question's positive is contrasted with the passages of all questions in its batch, and with
    the question's hard negatives.

    Args:
        loss: what is minimised in training, and measured on held-out questions.
        make_batches: makes the batches of the training examples, and those of the held-out ones.

    Source:
        Karpukhin et al. 2020, "Dense Passage Retrieval for Open-Domain Question Answering",
        section 3.

    Note:
        Unlike in the paper, a question's other positives are left out of its negatives
        (`mask_false_negatives`); passages that answer it are when negatives are mined.
    """
    # data
    split = split_examples(config, config.out / "data")
    batches = make_batches(config, split.training)
    check_negatives(batches)

    # model
    retriever = load_model(config, world.device, same_encoder=True)

    # step, validation, export
    return bi_encoder_method(
        config,
        retriever,
        world,
        batches,
        split.held_out,
        make_batches=make_batches,
        loss=loss,
        facts={"training questions": len(split.training)},
    )
