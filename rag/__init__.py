"""Open-domain question answering that retrieves: build an index, ask with evidence, train, evaluate.

Names are imported when first used, so `import rag` costs nothing.

Example:
    >>> import rag
    >>> "Pipeline" in dir(rag)
    True
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rag.commands import adapt as adapt
    from rag.commands import index as index
    from rag.commands import mine as mine
    from rag.commands import retrieve as retrieve
    from rag.commands import train_rounds as train_rounds
    from rag.commands import update as update
    from rag.core.errors import RagError as RagError
    from rag.core.types import Answer as Answer
    from rag.core.types import AnswerSet as AnswerSet
    from rag.core.types import Evidence as Evidence
    from rag.core.types import Hit as Hit
    from rag.core.types import Passage as Passage
    from rag.core.types import Path as Path
    from rag.core.types import Question as Question
    from rag.eval.api import compare as compare
    from rag.eval.api import evaluate as evaluate
    from rag.pipeline import Pipeline as Pipeline
    from rag.recipes import train as train

__version__ = "0.1.0"

_NAMES = {
    "rag.core.errors": ("RagError",),
    "rag.core.types": ("Answer", "AnswerSet", "Evidence", "Hit", "Passage", "Path", "Question"),
    "rag.eval.api": ("compare", "evaluate"),
    "rag.commands": ("adapt", "index", "mine", "retrieve", "train_rounds", "update"),
    "rag.pipeline": ("Pipeline",),
    "rag.recipes": ("train",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'rag' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
