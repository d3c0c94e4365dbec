"""Models in memory that are given in place of a folder: written to one, and then read like any other.

The weights' checksum is then that of the weights in memory, so that an index knows its encoder again.
"""

import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rag.core.errors import ConfigError
from rag.core.files import atomic_path

Loaded = TypeVar("Loaded")


def is_source(model: Any) -> bool:
    """Whether this is None, a name or a folder, and not a model in memory."""
    return model is None or isinstance(model, str | Path)


def describe_model(model: Any) -> str:
    """A name for a model in memory, for messages and manifests.

    Example:
        >>> describe_model((3, "tokenizer"))
        'int (given in memory)'
    """
    first = model[0] if isinstance(model, tuple) and model else model
    return f"{type(first).__name__} (given in memory)"


def write_model(model: Any, folder: Path) -> None:
    """Write a model in memory to `folder`, which appears when all of it is there.

    Args:
        model: a SentenceTransformer, a pipeline of transformers, or a model of transformers and its
            tokenizer as a tuple.

    Raises:
        ConfigError: it is something else, such as a model without its tokenizer.
    """
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        if type(model).__module__.startswith("sentence_transformers"):
            model.save(str(temporary), create_model_card=False)
            return
        parts = model if isinstance(model, tuple) else (model,)
        has_tokenizer = len(parts) == 2 or getattr(model, "tokenizer", None) is not None
        if not has_tokenizer or not all(hasattr(part, "save_pretrained") for part in parts):
            raise ConfigError(
                f"cannot use a {type(parts[0]).__name__} as a model"
                + (": its tokenizer is missing" if hasattr(parts[0], "save_pretrained") else ""),
                hint="give a folder, a name, a SentenceTransformer, or (model, tokenizer) of transformers",
            )
        for part in parts:
            part.save_pretrained(temporary)


def load_live(model: Any, load: Callable[[Path], Loaded]) -> Loaded:
    """The result of `load` on a folder with the model; the folder lives as long as the result."""
    holder = Path(tempfile.mkdtemp(prefix="rag-model-"))
    try:
        write_model(model, holder / "model")
        loaded = load(holder / "model")
    except BaseException:
        shutil.rmtree(holder, ignore_errors=True)
        raise
    weakref.finalize(loaded, shutil.rmtree, holder, True)
    return loaded
