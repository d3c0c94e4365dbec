"""Give an index a new question encoder without encoding its passages again.

An index states which encoder made it, both towers together. If only the question tower was trained further,
its vectors remain valid, and encoding the corpus again would give equal numbers. This module writes a new
manifest instead, with hard links to the old files.
"""

import json
from pathlib import Path
from typing import Any

from indexers.build import EMBEDDINGS_DIR, manifest_checksum, write_index_manifest
from indexers.embedding_shards import HEADER_NAME
from indexers.embedding_shards import LEDGER_NAME as SHARDS_NAME
from indexers.index import Index
from indexers.ledger import StageLedger
from indexers.protocols import EncoderIdentity, PassageEncoder
from indexers.reuse import check_passage_vectors
from rag.core.files import (
    atomic_path,
    atomic_write_json,
    atomic_write_text,
    check_target,
    fingerprint,
    link_or_copy,
    read_json,
)
from rag.core.manifest import LEDGER_NAME, file_table, write_manifest

_CHANGED = (HEADER_NAME, SHARDS_NAME, LEDGER_NAME)  # files that state the encoder


def reissue_index(source: str | Path, out: str | Path, encoder: PassageEncoder, *, seed: int = 0) -> Path:
    """Write an index with the vectors of `source` that states `encoder`.

    Args:
        out: new directory; it shares the large files with `source` where the file system allows it.
        encoder: its passage tower must be the one `source` was built with; a sample of passages is encoded
            as a check.

    Raises:
        ConfigError: `source` has no vectors, or `out` exists.
        MismatchedArtifactError: the encoder gives passages other vectors.
    """
    origin, target = Path(source), Path(out)
    check_target(target, folder=True, is_new=True)
    with Index.open(origin) as index:
        check_passage_vectors(origin, index.passages, index.require_dense().embeddings, encoder, seed=seed)
        manifest = index.manifest
    with atomic_path(target) as temporary:
        for name in manifest["files"]:
            copy = temporary / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(origin / name, copy)
        if "folders" in manifest:
            _restate_segments(temporary, encoder.identity, manifest)
        else:
            _restate(temporary, encoder.identity)
            write_index_manifest(temporary, StageLedger(temporary))
    return target


def _restate_segments(place: Path, identity: EncoderIdentity, manifest: dict[str, Any]) -> None:
    """Write the new identity into every segment of an index that was updated, and into its manifest."""
    for segment in manifest["folders"]["segments"]:
        _restate(place / segment, identity)
        if segment != ".":
            write_index_manifest(place / segment, StageLedger(place / segment))
    if "." not in manifest["folders"]["segments"]:  # the ledger of the first build has the settings
        _restate_ledger(place, identity)
    changed = [name for name in manifest["files"] if Path(name).name in _CHANGED]
    files = dict(sorted({**manifest["files"], **file_table(place, changed)}.items()))
    renewed = {**manifest, "encoder": identity.to_json(), "files": files}
    write_manifest(place, {**renewed, "checksum": manifest_checksum(renewed)})


def _restate(place: Path, identity: EncoderIdentity) -> None:
    """Write the new identity over the old one; the changed files are copies, no longer links."""
    header = place / EMBEDDINGS_DIR / HEADER_NAME
    atomic_write_json(header, {**read_json(header), "encoder": identity.to_json()})
    shards = place / EMBEDDINGS_DIR / SHARDS_NAME
    lines: list[dict[str, Any]] = [json.loads(line) for line in shards.read_text("utf-8").splitlines()]
    renewed = [{**line, "encoder": identity.fingerprint()} for line in lines]
    atomic_write_text(shards, "".join(json.dumps(line, sort_keys=True) + "\n" for line in renewed))
    _restate_ledger(place, identity)


def _restate_ledger(place: Path, identity: EncoderIdentity) -> None:
    ledger = read_json(place / LEDGER_NAME)
    ledger["embeddings"]["inputs"]["encoder"] = identity.comparable()
    if "dense" in ledger:
        ledger["dense"]["inputs"]["embeddings"] = fingerprint(ledger["embeddings"]["inputs"])[:16]
    atomic_write_json(place / LEDGER_NAME, ledger)
