"""Interfaces of this package: passage encoders, their identity, vector search, and the rows it may
return.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import PlainSerializer, PlainValidator

from rag.core.arrays import Bool, Float32, Int64
from rag.core.errors import ArtifactError, MismatchedArtifactError

_CHECKSUM = re.compile("([0-9a-f]{8})[0-9a-f]{56}")
# Fields of an encoder's identity that may be absent.
_OPTIONAL = ("interaction", "tokenizer_sha256", "probe")
# Least cosine of the probes of one model: servers round differently from call to call.
_SAME_PROBE = 0.99
IdentityValue = str | int | bool
# Limits of a cache of masks.
_MOST_MASKS = 64
_MASK_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class EncoderIdentity:
    """Everything that decides which vector a text gets; two encoders that agree on it are
    interchangeable.

    Attributes:
        name: hub name or folder, for people; compared only when a weight hash is missing.
        weights_sha256: hex sha256 over the weights of all towers.
        pooling: "cls", "mean", "tokens", …
        similarity: "dot" or "cosine"; both are searched as inner products.
        layout: how title and text are joined: "pair", or a template such as "{title} {text}".
        interaction: for encoders with one vector per token, a description of how they read texts;
            else "".
        tokenizer_sha256: hex sha256 over the tokenizers of all towers; "", as in older indexes,
            fits any.
        probe: for a model behind an address, whose weights nobody sees, the first numbers that it
            gives a fixed text, separated by spaces; its name is an address, "#", and the model.

    Example:
        >>> a = EncoderIdentity("tiny", "ab12", dim=4)
        >>> b = EncoderIdentity("/models/tiny", "ab12", dim=4, pooling="cls")
        >>> a.differences(b)
        ("pooling: 'mean' != 'cls'",)
        >>> EncoderIdentity.from_json(a.to_json()) == a
        True
    """

    name: str
    weights_sha256: str
    dim: int
    pooling: str = "mean"
    normalize: bool = True
    query_prefix: str = ""
    passage_prefix: str = ""
    max_length: int = 256
    similarity: str = "dot"
    layout: str = "{title} {text}"
    interaction: str = ""
    tokenizer_sha256: str = ""
    probe: str = ""

    def to_json(self) -> dict[str, IdentityValue]:
        """A dict ready for `json.dumps`; what is optional and empty is left out."""
        fields = asdict(self).items()
        return {name: value for name, value in fields if value or name not in _OPTIONAL}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> EncoderIdentity:
        """Inverse of `to_json`.

        Raises:
            ArtifactError: a field is missing or unknown.
        """
        odd_names = sorted({*value, *_OPTIONAL} ^ {field.name for field in fields(cls)})
        if odd_names:
            raise ArtifactError(
                f"the encoder identity has missing or unknown fields: {', '.join(odd_names)}",
                hint="rebuild the index",
            )
        return cls(**value)

    def differences(self, other: EncoderIdentity) -> tuple[str, ...]:
        """One readable line for each field that matters and differs; empty if vectors are
        comparable.
        """
        skipped = set()
        if self.weights_sha256 and other.weights_sha256:
            skipped.add("name")
        if not self.tokenizer_sha256 or not other.tokenizer_sha256:
            skipped.add("tokenizer_sha256")
        if self.probe and other.probe:
            skipped.add("probe")
            if self._model == other._model:
                skipped.add("name")
        others = asdict(other)
        lines = [
            f"{name}: {value!r} != {others[name]!r}"
            for name, value in asdict(self).items()
            if name not in skipped and value != others[name]
        ]
        if "probe" in skipped and not is_same_probe(self.probe, other.probe):
            lines.append("probe: the model now gives a text another vector")
        return tuple(lines)

    @property
    def _model(self) -> str:
        """The name of a model behind an address, which may move."""
        return self.name.rpartition("#")[2]

    def check(self, directory: Path, other: EncoderIdentity) -> None:
        """Refuse another encoder than this, with which the index in `directory` was built.

        Raises:
            MismatchedArtifactError: names both, and every field that differs.
        """
        differences = self.differences(other)
        if not differences:
            return
        other_name = "as it is now" if self.name == other.name else repr(other.name)
        how = _CHECKSUM.sub(r"\1…", "; ".join(differences))
        raise MismatchedArtifactError(
            f"{directory} was built with the encoder {self.name!r}, not {other_name} ({how})",
            hint="use that encoder, or build another index with this one",
        )

    def comparable(self) -> dict[str, IdentityValue]:
        """The fields that must not change when a build continues; the name may, if the weights are
        known.
        """
        fields = self.to_json()
        if self.weights_sha256:
            fields["name"] = ""
        if fields.pop("probe", None):
            fields["name"] = self._model
        return fields

    def describe(self) -> str:
        """One line about how texts become vectors."""
        prefixes = (
            f"questions begin with {self.query_prefix!r}, passages with {self.passage_prefix!r}"
        )
        return (
            f"{self.pooling} pooling, {self.similarity}, {self.dim} dimensions, "
            f"{self.max_length:,} tokens, layout {self.layout!r}, {prefixes}"
        )

    def options(self) -> dict[str, IdentityValue]:
        """The settings to load an encoder with so that it makes these vectors."""
        names = ("pooling", "normalize", "max_length", "query_prefix", "passage_prefix", "layout")
        return {name: getattr(self, name) for name in names}


def is_same_probe(a: str, b: str) -> bool:
    """Whether two probes are of the same model, up to rounding.

    Example:
        >>> is_same_probe("0.6 0.8", "0.61 0.79"), is_same_probe("0.6 0.8", "0.8 0.6")
        (True, False)
    """
    first = np.array(a.split(), np.float64)
    second = np.array(b.split(), np.float64)
    if first.shape != second.shape:
        return False
    norms = np.linalg.norm(first) * np.linalg.norm(second)
    return bool(first @ second >= _SAME_PROBE * norms)


def _as_identity(value: Any) -> EncoderIdentity:
    return value if isinstance(value, EncoderIdentity) else EncoderIdentity.from_json(value)


# An identity in a model that is stored as JSON.
Identity = Annotated[
    EncoderIdentity, PlainValidator(_as_identity), PlainSerializer(EncoderIdentity.to_json)
]


class PassageEncoder(Protocol):
    """Turns passages into vectors. It gets whole shards, so it may sort them by length.

    If it is also a `ReportsProgress`, progress is shown within a shard.
    """

    @property
    def identity(self) -> EncoderIdentity:
        """The identity of the encoder, stored with every artefact of its vectors."""

    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Float32:
        """Vectors (n, D) float32, in the order of the arguments.

        The vector of a passage must depend on the arguments of this one call only: equal calls
        give equal bytes, in another process too.
        """


@runtime_checkable
class ReportsProgress(Protocol):
    """A passage encoder that can say how far it is."""

    def reporting(self, done: Callable[[int], None]) -> PassageEncoder:
        """The same encoder, calling `done` with the number of texts after every batch."""


class TokenVectors(Protocol):
    """Vectors of several texts, concatenated.

    Attributes:
        values: (T, D) float32.
        lengths: (n,) number of vectors of each text; None: one vector for each text.
    """

    @property
    def values(self) -> ArrayLike:
        """All vectors, end to end."""

    @property
    def lengths(self) -> ArrayLike | None:
        """The number of each text's vectors."""


class TokenEncoder(Protocol):
    """Turns passages into one vector per token."""

    @property
    def identity(self) -> EncoderIdentity:
        """The identity of the encoder."""

    def passage_tokens(self, titles: Sequence[str], texts: Sequence[str]) -> TokenVectors:
        """Vectors of passages, in order. Equal calls give equal bytes."""


# Encodes all passages, in this process (`encode_corpus`, which has the arguments) or elsewhere
# (`rag.scale`).
EncodesCorpus = Callable[..., Any]


def most_masks(rows: int) -> int:
    """How many masks of so many rows, a byte for each, are kept in memory."""
    return max(2, min(_MOST_MASKS, _MASK_BYTES // max(1, rows)))


class Selection:
    """Rows of an index that a search may return; all statistics stay those of the whole index.

    Args:
        mask: (N,) bool, one entry per row.

    Example:
        >>> chosen = Selection(np.array([True, False, True, True]))
        >>> len(chosen), chosen.rows.tolist(), chosen.runs.tolist()
        (3, [0, 2, 3], [[0, 1], [2, 4]])
    """

    def __init__(self, mask: Bool) -> None:
        self.mask = np.ascontiguousarray(mask, dtype=bool)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def total(self) -> int:
        """Number of rows N of the index."""
        return len(self.mask)

    @cached_property
    def rows(self) -> Int64:
        """Selected rows in order."""
        return np.flatnonzero(self.mask)

    @cached_property
    def runs(self) -> Int64:
        """(R, 2): first row and row after the last of each run of selected rows."""
        edges = np.flatnonzero(np.diff(self.mask.astype(np.int8), prepend=0, append=0))
        return edges.reshape(-1, 2)

    @cached_property
    def bits(self) -> NDArray[np.uint8]:
        """The mask with eight rows per byte, the first in the lowest bit."""
        return np.packbits(self.mask, bitorder="little")


class VectorIndex(Protocol):
    """Maximum-inner-product search over rows of an index."""

    @property
    def dim(self) -> int:
        """Vector size D."""

    def __len__(self) -> int:
        """Number of rows."""

    def search(
        self, queries: Float32, top_k: int, selected: Selection | None = None
    ) -> tuple[Float32, Int64]:
        """Best rows for each query.

        Args:
            queries: (n, D) float32.
            top_k: results wanted per query; may exceed the number of rows.
            selected: the rows that may be returned; None: all. Scores do not depend on it.

        Returns:
            Scores (n, top_k) float32 and rows (n, top_k) int64, best first, ties by row. Where
            there are fewer results, the last places have row -1 and score -inf.
        """
