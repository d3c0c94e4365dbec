"""Open-domain question answering that retrieves: build an index, ask with evidence, train,
evaluate.

Names are imported when first used, so `import rag` costs nothing.

Example:
    >>> import rag
    >>> "Pipeline" in dir(rag)
    True
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rag.adaptation.adapt import adapt
    from rag.commands import index, retrieve, train_rounds, update
    from rag.core.errors import RagError
    from rag.core.types import (
        Answer,
        AnswerSet,
        Evidence,
        EvidencePath,
        Hit,
        Passage,
        Question,
        Verdict,
    )
    from rag.eval.api import compare, evaluate
    from rag.pipeline import Pipeline
    from rag.recipes import train
    from readers.llm.specs import LanguageModel, ServedModel
    from readers.verifying.open import load_verifier
    from retrievers.hybrid import Fusion
    from retrievers.multihop import MultiHop
    from retrievers.negatives.mine import mine
    from retrievers.rerank import Rerank

__version__ = "0.1.0"
__all__ = [
    "Answer",
    "AnswerSet",
    "Evidence",
    "EvidencePath",
    "Fusion",
    "Hit",
    "LanguageModel",
    "MultiHop",
    "Passage",
    "Pipeline",
    "Question",
    "RagError",
    "Rerank",
    "ServedModel",
    "Verdict",
    "__version__",
    "adapt",
    "compare",
    "evaluate",
    "index",
    "load_verifier",
    "mine",
    "retrieve",
    "train",
    "train_rounds",
    "update",
]
_HOMES = {
    **dict.fromkeys(("index", "retrieve", "train_rounds", "update"), "rag.commands"),
    **dict.fromkeys(("compare", "evaluate"), "rag.eval.api"),
    **dict.fromkeys(("LanguageModel", "ServedModel"), "readers.llm.specs"),
    "Fusion": "retrievers.hybrid",
    "MultiHop": "retrievers.multihop",
    "Pipeline": "rag.pipeline",
    "RagError": "rag.core.errors",
    "Rerank": "retrievers.rerank",
    "load_verifier": "readers.verifying.open",
    "adapt": "rag.adaptation.adapt",
    "mine": "retrievers.negatives.mine",
    "train": "rag.recipes",
}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module(_HOMES.get(name, "rag.core.types")), name)
    raise AttributeError(f"module 'rag' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
