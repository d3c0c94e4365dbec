"""How an index was built: its documents, how they were split, and the settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexers.build import PASSAGES_DIR
from indexers.documents import DOCUMENTS_NAME, DocumentTable, grouped
from indexers.filtering import Naming
from indexers.ledger import StageLedger
from indexers.presets import IndexKind
from indexers.settings import STAGES, BuildSettings, Stage
from rag.core.errors import ConfigError
from rag.data.documents.limits import Limits
from rag.data.files.sources import ReadOptions
from rag.data.split import SplitOptions, document_of

if TYPE_CHECKING:
    from indexers.index import Index


def documents_of_index(index: Index) -> DocumentTable:
    """The documents of an index; those of an index without a table have no digests."""
    folders = index.manifest.get("folders", {})
    path = index.directory / folders.get("version", PASSAGES_DIR) / DOCUMENTS_NAME
    if path.exists():
        return DocumentTable.read(path)
    ids = (passage.id for passage in index.passages)
    is_cut = _source(index.directory).get("split", {}).get("mode", "none") != "none"
    return grouped(ids, document_of if is_cut else lambda id: id)


def split_of_index(place: Path, max_tokens: int | None = None) -> SplitOptions:
    """How the documents of an index were split; the default if it was built from passages.

    Args:
        max_tokens: the encoder's limit, for an index that had no files so far.
    """
    limit = {} if max_tokens is None else {"max_tokens": max_tokens}
    return SplitOptions(**{**limit, **_source(place).get("split", {})})


def naming_of_index(place: Path) -> Naming:
    """How the passages of an index are named after their documents."""
    split = _source(place).get("split")
    if split is None:
        return "unknown"
    options = SplitOptions(**split)
    if options.ids == "integer":
        return "numbers"
    return "whole" if options.mode == "none" else "pieces"


def read_options_of_index(place: Path) -> ReadOptions:
    """How the corpus of an index was read.

    Raises:
        ConfigError: it was built from standard input or from Python, without such options.
    """
    source = _source(place)
    if "read" not in source:
        raise ConfigError(
            f"{place} was not built from files, so it has no corpus to be updated from",
            hint="build it with `rag index FOLDER --out DIR`; documents can also be sent to its server",
        )
    return ReadOptions(**{**source["read"], "limits": Limits(**source["read"]["limits"])})


def _source(place: Path) -> dict[str, Any]:
    source: dict[str, Any] = StageLedger(place).inputs("passages").get("source") or {}
    return source


def settings_of_index(place: Path, stages: Sequence[str]) -> BuildSettings:
    """The settings that an index was built with."""
    ledger = StageLedger(place)
    inputs = {name: ledger.inputs(name) for name in STAGES}
    names: dict[Stage, tuple[str, ...]] = {
        "embeddings": ("dtype", "shard_rows", "probes"),
        "dense": ("index_type", "recall_target", "seed", "reproducible"),
        "bm25": ("k1", "b"),
    }
    values = {name: inputs[stage][name] for stage in names if stage in stages for name in names[stage]}
    has_bm25 = "bm25" in stages
    kind: IndexKind = "bm25" if "dense" not in stages else "hybrid" if has_bm25 else "dense"
    return BuildSettings(retriever=kind, **values)
