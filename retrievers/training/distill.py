"""Train a retriever towards a reader's scores of retrieved passages (distillation)."""

from functools import partial

from rag.training.distributed import World
from rag.training.fit import Method
from retrievers.examples.batches import Epochs, TargetBatches
from retrievers.examples.data import ExampleTable
from retrievers.training.config import DistillTrainConfig
from retrievers.training.dpr import learn_from_examples
from retrievers.training.losses import kl_loss, margin_loss

_LOSSES = {"kl": kl_loss, "margin": margin_loss}


def build(config: DistillTrainConfig, world: World) -> Method:
    """The method of `rag train distill`.

    Each question comes with its passages and their targets; no passage has to be labelled.
    Questions whose targets are all alike teach nothing and are left out.

    Source:
        Izacard and Grave 2021, "Distilling Knowledge from Reader to Retriever for Question
        Answering", section 3; Izacard et al. 2022, "Atlas", section 2.2, for other signals and
        temperatures.
    """
    loss = partial(_LOSSES[config.loss], target_temperature=config.target_temperature)
    return learn_from_examples(config, world, loss=loss, make_batches=target_batches)


def target_batches(
    config: DistillTrainConfig, data: ExampleTable, *, once: bool = False
) -> TargetBatches:
    """Batches of questions with their lists of `config.per_question` passages."""
    epochs = Epochs.of(config, len(data), once=once)
    return TargetBatches(data, epochs, per_question=config.per_question)
