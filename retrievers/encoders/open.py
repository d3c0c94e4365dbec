"""From a name to an encoder, whatever its kind: a bi-encoder's networks, or a static encoder's vectors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexers.protocols import EncoderIdentity
from rag.core.errors import ConfigError
from rag.runtime.model_files import TOWER_SEPARATOR, model_folder, tower_folders
from retrievers.encoders.static import POOLING, StaticEncoder, is_static

if TYPE_CHECKING:
    from retrievers.encoders.bi_encoder import BiEncoder

_SPECIAL_TOKENS = 3  # around a pair of title and text


def load_encoder(name_or_path: str | Path | None = None, **options: Any) -> BiEncoder | StaticEncoder:
    """Load an encoder by folder or name; None is the embedded all-MiniLM-L6-v2.

    Args:
        options: see `BiEncoder.load`; a static encoder has no precision, device or pooling to choose.

    Raises:
        ConfigError: a static encoder was given a pooling or a question encoder of its own.
        ArtifactError: nothing there is an encoder.
    """
    is_two = TOWER_SEPARATOR in str(name_or_path)
    folder = None if name_or_path is None or is_two else model_folder(name_or_path)
    if name_or_path is None or folder is None or not is_static(folder):
        from retrievers.encoders.bi_encoder import BiEncoder

        return BiEncoder.load(name_or_path, **options)
    if options.get("query_encoder") is not None:
        raise ConfigError(f"{name_or_path} is a static encoder: it reads questions too")
    if options.get("pooling", "auto") not in ("auto", POOLING):
        raise ConfigError(f"pooling is {options['pooling']!r}: a static encoder takes the mean of its tokens")
    known = ("normalize", "max_length", "query_prefix", "passage_prefix", "layout")
    return StaticEncoder.load(name_or_path, **{name: options[name] for name in known if name in options})


def passage_budget(
    name_or_path: str | Path | None = None, max_length: int | None = None
) -> tuple[int, Callable[[str], int]]:
    """Tokens that title and text of a passage may have together, and what counts them; loads no weights.

    Passages for a static encoder, which has no such limit, are measured by the embedded encoder.

    Args:
        name_or_path: as for `load_encoder`; of two towers the passages' is meant.
        max_length: the encoder's limit, if it is not to be the folder's.
    """
    from retrievers.encoders.settings import read_settings
    from retrievers.encoders.tokenization import counting_tokens

    name = str(name_or_path or "").partition(TOWER_SEPARATOR)[0] or None
    folder = tower_folders(model_folder(name))[0]
    if is_static(folder):
        folder = model_folder(None)
    settings = read_settings(folder).override(max_length=max_length)
    count = counting_tokens(folder)
    return settings.max_length - _SPECIAL_TOKENS - count(settings.passage_prefix), count


def load_like(
    identity: EncoderIdentity,
    name_or_path: str | Path | None = None,
    *,
    precision: str = "auto",
    device: str = "auto",
) -> BiEncoder | StaticEncoder:
    """Load the encoder an artefact was made with, from another place if given, with the same settings.

    The caller compares identities: the weights may be others.
    """
    return load_encoder(
        name_or_path if name_or_path is not None else identity.name,
        precision=precision,
        device=device,
        **identity.options(),
    )
