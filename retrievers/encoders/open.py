"""From a name to an encoder, whatever its kind: a bi-encoder's networks, or a static encoder's vectors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexers.protocols import EncoderIdentity
from rag.core.errors import ConfigError
from rag.runtime.model_files import QA_ENCODER, TOWER_SEPARATOR, model_folder, tokenizer_file, tower_folders
from retrievers.encoders.static import (
    POOLING,
    StaticEncoder,
    is_shipped,
    is_static,
    shipped_folder,
    static_parts,
)

if TYPE_CHECKING:
    from retrievers.encoders.bi_encoder import BiEncoder

_SPECIAL_TOKENS = 3  # around a pair of title and text


def load_encoder(source: Any = None, **options: Any) -> BiEncoder | StaticEncoder:
    """Load an encoder; None is `minilm-qa`, the one for indexes, "static" the static one of the package.

    Args:
        source: a folder or a name; an encoder that is loaded already is returned as it is.
        options: see `BiEncoder.load`; a static encoder has no precision, device or pooling to choose.

    Raises:
        ConfigError: a pooling or a separate question encoder was given for a static encoder.
        ArtifactError: `source` is no encoder.
    """
    if isinstance(getattr(source, "identity", None), EncoderIdentity):
        return source
    if source is not None and not isinstance(source, str | Path):
        raise ConfigError(
            f"cannot encode with a {type(source).__name__}",
            hint="give a folder (as a SentenceTransformer's save writes it), a name, or an encoder with an "
            "identity as in indexers.protocols",
        )
    name_or_path: str | Path = QA_ENCODER if source is None else source
    if not is_static_name(name_or_path):
        from retrievers.encoders.bi_encoder import BiEncoder

        return BiEncoder.load(name_or_path, **options)
    if options.get("query_encoder") is not None:
        raise ConfigError(f"{name_or_path} is a static encoder: it reads questions too")
    if options.get("pooling", "auto") not in ("auto", POOLING):
        raise ConfigError(f"pooling is {options['pooling']!r}: a static encoder takes the mean of its tokens")
    known = ("normalize", "max_length", "query_prefix", "passage_prefix", "layout")
    return StaticEncoder.load(name_or_path, **{name: options[name] for name in known if name in options})


def is_static_name(name_or_path: str | Path) -> bool:
    """Whether this names a static encoder: the one in the package, or a folder or hub name that holds one."""
    if is_shipped(name_or_path):
        return True
    return TOWER_SEPARATOR not in str(name_or_path) and is_static(model_folder(name_or_path))


def tokenizer_folder(name_or_path: str | Path) -> Path:
    """The folder with the tokenizer of an encoder, of two towers that of the passage tower.

    Raises:
        ArtifactError: it has no tokenizer.json.
    """
    if is_shipped(name_or_path):
        return shipped_folder()
    folder = tower_folders(model_folder(str(name_or_path).partition(TOWER_SEPARATOR)[0]))[0]
    if is_static(folder):
        folder = static_parts(folder)[0]
    else:
        from retrievers.encoders.settings import read_settings

        folder = read_settings(folder).weights_dir
    return tokenizer_file(folder).parent


def passage_budget(
    name_or_path: str | Path | None = None, max_length: int | None = None
) -> tuple[int, Callable[[str], int]]:
    """Maximum tokens of title and text of a passage, and a function that counts tokens; loads no weights.

    Passages for a static encoder, which has no such limit, are measured by the embedded encoder.

    Args:
        name_or_path: as for `load_encoder`; of two towers the passage tower counts.
        max_length: replaces the limit in the encoder's folder.
    """
    from retrievers.encoders.settings import read_settings
    from retrievers.encoders.tokenization import counting_tokens

    name = str(name_or_path or "").partition(TOWER_SEPARATOR)[0] or None
    if name is not None and is_static_name(name):
        name = None
    settings = read_settings(tower_folders(model_folder(name))[0]).override(max_length=max_length)
    count = counting_tokens(settings.weights_dir)
    return settings.max_length - _SPECIAL_TOKENS - count(settings.passage_prefix), count


def load_like(
    identity: EncoderIdentity, source: Any = None, *, precision: str = "auto", device: str = "auto"
) -> BiEncoder | StaticEncoder:
    """Load the encoder an artefact was made with, from another `source` if given, with the same settings.

    The caller compares identities: the weights may be others.
    """
    place = identity.name if source is None else source
    return load_encoder(place, precision=precision, device=device, **identity.options())
