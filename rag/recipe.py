"""What a training recipe is written with: settings, model, batches, loss, and the run.

Names are imported when first used.

Example:
    >>> from rag import recipe
    >>> recipe.Epochs(7, 2, epochs=2)[0].shape
    (2,)
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rag.runtime.seeds import generator
    from rag.training.card import Card
    from rag.training.config import TrainConfig
    from rag.training.distributed import World
    from rag.training.fit import FitHooks, Loss, Method, Weights
    from rag.training.precision import MasterWeights, part
    from rag.training.run import train
    from retrievers.encoders.tokenization import mask_id, open_tokenizer
    from retrievers.examples.batches import IGNORED, NEGATIVE, OTHER, POSITIVE, Epochs
    from retrievers.examples.corpus import open_corpus
    from retrievers.training.bi_encoder import export_model, load_model
    from retrievers.training.config import (
        BiEncoderConfig,
        ContrastiveConfig,
        CorpusConfig,
        DistillTrainConfig,
    )
    from retrievers.training.distill import target_batches
    from retrievers.training.dpr import learn_from_examples
    from retrievers.training.recipe import encoder_card

__all__ = [
    "IGNORED",
    "NEGATIVE",
    "OTHER",
    "POSITIVE",
    "BiEncoderConfig",
    "Card",
    "ContrastiveConfig",
    "CorpusConfig",
    "DistillTrainConfig",
    "Epochs",
    "FitHooks",
    "Loss",
    "MasterWeights",
    "Method",
    "TrainConfig",
    "Weights",
    "World",
    "encoder_card",
    "export_model",
    "generator",
    "learn_from_examples",
    "load_model",
    "mask_id",
    "open_corpus",
    "open_tokenizer",
    "part",
    "target_batches",
    "train",
]
# Names by the module that has them.
_NAMES = {
    "rag.runtime.seeds": ["generator"],
    "rag.training.card": ["Card"],
    "rag.training.config": ["TrainConfig"],
    "rag.training.distributed": ["World"],
    "rag.training.fit": ["FitHooks", "Loss", "Method", "Weights"],
    "rag.training.precision": ["MasterWeights", "part"],
    "rag.training.run": ["train"],
    "retrievers.encoders.tokenization": ["mask_id", "open_tokenizer"],
    "retrievers.examples.batches": ["IGNORED", "NEGATIVE", "OTHER", "POSITIVE", "Epochs"],
    "retrievers.examples.corpus": ["open_corpus"],
    "retrievers.training.bi_encoder": ["export_model", "load_model"],
    "retrievers.training.config": [
        "BiEncoderConfig",
        "ContrastiveConfig",
        "CorpusConfig",
        "DistillTrainConfig",
    ],
    "retrievers.training.distill": ["target_batches"],
    "retrievers.training.dpr": ["learn_from_examples"],
    "retrievers.training.recipe": ["encoder_card"],
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'rag.recipe' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
