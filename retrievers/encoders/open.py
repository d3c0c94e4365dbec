"""From a name to an encoder, whatever its kind: a bi-encoder's networks, or a static encoder's
vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from indexers.protocols import EncoderIdentity
from rag.core.errors import ConfigError
from rag.runtime.model_files import (
    EMBEDDED_ENCODER_NAMES,
    QA_ENCODER,
    TOWER_SEPARATOR,
    model_folder,
    tower_folders,
)
from rag.runtime.model_server import is_served
from retrievers.encoders.base import Encoder
from retrievers.encoders.folders import read_settings
from retrievers.encoders.settings import (
    SERVED,
    SERVED_LENGTH,
    STATIC,
    TCT_COLBERT,
    TCT_MARKER_TOKENS,
    EncoderSettings,
)
from retrievers.encoders.static import StaticEncoder

_SPECIAL_TOKENS = 3  # around a pair of title and text


def load_encoder(source: Any = None, **options: Any) -> Encoder:
    """Load an encoder; None is `minilm-qa`, the one for indexes, "static" the static one of the
    package.

    Args:
        source: a folder or a name, or `openai:BASE_URL#MODEL` for a model behind an address; an
            encoder that is loaded already is returned as it is.
        options: see `BiEncoder.load` and `EncoderOptions`; a static encoder has no precision,
            device or pooling to choose, nor has a model behind an address.

    Raises:
        ConfigError: a pooling was given for a static encoder or an address.
        ArtifactError: `source` is no encoder.
    """
    if isinstance(getattr(source, "identity", None), EncoderIdentity):
        loaded: Encoder = source
        return loaded
    if not isinstance(source, str | Path | None):
        raise ConfigError(
            f"cannot encode with a {type(source).__name__}",
            hint="give a folder (as a SentenceTransformer's save writes it), a name, or an encoder with an "
            "identity as in indexers.protocols",
        )
    name = str(source or QA_ENCODER)
    pooling = "" if TOWER_SEPARATOR in name else _of_passages(name).pooling
    if pooling not in (STATIC, SERVED):
        from retrievers.encoders.bi_encoder import BiEncoder

        return BiEncoder.load(name, **options)
    for option in ("precision", "device", "batch_size"):
        options.pop(option, None)
    if pooling == SERVED:
        from retrievers.encoders.endpoint import EndpointEncoder

        return EndpointEncoder.load(name, **options)
    return StaticEncoder.load(name, **options)


def tokenizer_folder(name_or_path: str | Path) -> Path:
    """The folder with the tokenizer of an encoder, of two towers that of the passage tower."""
    return _of_passages(name_or_path).weights_dir


def _of_passages(name_or_path: str | Path) -> EncoderSettings:
    """The settings of an encoder, of two towers those of the passage tower; of a model behind an
    address, whose tokenizer nobody sees, with that of the embedded encoder.
    """
    name = str(name_or_path)
    if is_served(name):
        return EncoderSettings(
            kind=SERVED,
            weights_dir=tokenizer_folder(EMBEDDED_ENCODER_NAMES[0]),
            pooling=SERVED,
            normalize=True,
            max_length=SERVED_LENGTH,
        )
    return read_settings(tower_folders(model_folder(name.partition(TOWER_SEPARATOR)[0]))[0])


def passage_budget(
    name_or_path: str | Path | None = None, **changes: Any
) -> tuple[int, Callable[[str], int]]:
    """Maximum tokens of title and text of a passage, and a function that counts tokens; loads no
    weights.

    Passages for a static encoder, which may have no such limit, and for a model behind an address,
    whose tokens nobody sees, are measured by the embedded encoder.

    Args:
        name_or_path: as for `load_encoder`; of two towers the passage tower counts.
        changes: of the folder's settings, as for `load_encoder`.
    """
    from retrievers.encoders.tokenization import counting_tokens

    settings = _of_passages(name_or_path or EMBEDDED_ENCODER_NAMES[0]).override(**changes)
    longest = settings.max_length
    measuring = settings
    if settings.pooling == STATIC:
        measuring = _of_passages(EMBEDDED_ENCODER_NAMES[0])
        longest = min(longest, measuring.max_length)
    count = counting_tokens(measuring.weights_dir)
    is_tct = settings.pooling == TCT_COLBERT
    special_tokens = TCT_MARKER_TOKENS if is_tct else _SPECIAL_TOKENS
    return longest - special_tokens - count(settings.passage_prefix), count


def load_like(
    identity: EncoderIdentity, source: Any = None, *, precision: str = "auto", device: str = "auto"
) -> Encoder:
    """Load the encoder an artefact was made with, from another `source` if given, with the same
    settings.

    The caller compares identities: the weights may be others, or the encoder of another kind.
    """
    options = identity.options()
    if isinstance(source, str | Path):
        pooling = _of_passages(source).pooling
        # Networks, static encoders and servers pool differently.
        if not {STATIC, SERVED}.isdisjoint((pooling, identity.pooling)):
            options["pooling"] = pooling
    if source is None:
        source = identity.name
    return load_encoder(source, precision=precision, device=device, **options)
