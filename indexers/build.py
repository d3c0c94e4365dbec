"""Build an index: passages → embeddings → FAISS (token vectors) → Lucene → manifest, each stage alone or all.

The directory is locked during the build. Every stage is resumable: finished shards are kept, an interrupted
stage continues behind them, and the manifest is written last. All files have the same bytes however often the
build was interrupted, except Lucene's files and the manifest's entries for these.
"""

import itertools
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

from indexers.documents import DOCUMENTS_NAME, DocumentList
from indexers.embedding_shards import EmbeddingShards
from indexers.embeddings import encode_corpus
from indexers.faiss_index import build_faiss
from indexers.ledger import StageLedger
from indexers.lucene import build_bm25
from indexers.passage_writer import PassageStoreWriter, passages_digest
from indexers.passages import PassageStore
from indexers.presets import PLAID
from indexers.probes import read_probes, save_probes
from indexers.protocols import EncodesCorpus, PassageEncoder
from indexers.settings import STAGES, BuildSettings, Stage
from indexers.token_build import TokenEncoder, build_tokens
from indexers.token_index import TokenIndex
from rag.core.errors import ConfigError, DataError, MismatchedArtifactError
from rag.core.files import directory_lock, disk_errors, fingerprint, is_temporary, remove_temporaries
from rag.core.manifest import LEDGER_NAME, MANIFEST_NAME, file_table, read_manifest, write_manifest
from rag.core.progress import Progress
from rag.core.types import Passage

PASSAGES_DIR, EMBEDDINGS_DIR, DENSE_DIR, TOKENS_DIR, BM25_DIR = STAGES
SEGMENTS_DIR, VERSIONS_DIR = "segments", "versions"  # in an index that was updated
INDEX_KIND = "index"
_KNOWN = {
    *STAGES, LEDGER_NAME, MANIFEST_NAME, ".lock", SEGMENTS_DIR, VERSIONS_DIR,
    *("build_log.json", "encoder", "reader", "pipeline.json"),  # of older versions and of saved pipelines
}  # fmt: skip


def build_index(
    passages: Iterable[Passage],
    out: str | Path,
    *,
    encoder: PassageEncoder | TokenEncoder | None = None,
    settings: BuildSettings | None = None,
    source: Mapping[str, Any] | None = None,
    documents: DocumentList | None = None,
    overwrite: bool = False,
    until: Stage | None = None,
    encode: EncodesCorpus = encode_corpus,
) -> Path:
    """Build an index directory, or continue one that was interrupted.

    Args:
        passages: what to index, already split; read lazily, and not at all if `source` says they are stored.
        source: identifies the passages (paths, sizes, split settings). Without it a rerun reads the
            passages again and compares their checksum.
        documents: list that is filled with the documents while the passages are read (`cut_and_listed`).
        until: stop after this stage; a later call continues from there. All stages if None.
        encode: encodes the passages, in this process or elsewhere.

    Returns:
        `out`; with a manifest, unless stopped by `until`. A finished index is extended if `settings` ask for
        a retriever it lacks.

    Raises:
        ConfigError: no encoder for a dense index, or `out` holds something that is not an index.
        DataError: no passages, duplicate ids, vectors that are not finite.
        MismatchedArtifactError: `out` holds a build with other inputs, settings or kind of vectors.
        ResourceError: disk full, or another process writes into `out`.

    Example:
        >>> import tempfile
        >>> from indexers.index import Index
        >>> settings = BuildSettings(retriever="bm25")
        >>> passages = [Passage("a", "Vienna", "Vienna lies on the Danube.")]
        >>> with Index.open(build_index(passages, tempfile.mkdtemp(), settings=settings)) as index:
        ...     index.lucene.search(["danube"], 3)[0][0][0]
        0
    """
    settings, place = settings or BuildSettings(), Path(out)
    wanted = ["passages", *["embeddings", "dense"] * settings.has_dense, *["tokens"] * settings.has_tokens]
    wanted += ["bm25"] * settings.has_bm25
    if until is not None:
        if until not in wanted:
            raise ConfigError(
                f"a {settings.retriever} index has no stage {until!r}", hint=f"one of: {', '.join(wanted)}"
            )
        wanted = wanted[: wanted.index(until) + 1]
    if {"embeddings", "tokens"} & set(wanted) and encoder is None:
        raise ConfigError(
            f"retriever {settings.retriever!r} needs an encoder", hint="pass one, or choose retriever bm25"
        )
    if place.is_dir():
        _refuse_others_files(place)  # first, because the lock adds a file
    with directory_lock(place):
        if overwrite:  # without passages, the old index stays
            passages = _refuse_empty(passages)
        _prepare(place, overwrite)
        ledger = StageLedger(place)
        _refuse_second_vectors(place, ledger, settings)
        store = build_passages(passages, place, ledger, source, documents)
        if "embeddings" in wanted:
            build_embeddings(store, place, ledger, cast("PassageEncoder", encoder), settings, encode)
        if "dense" in wanted:
            build_dense(place, ledger, settings)
        if "tokens" in wanted:
            build_token_stage(store, place, ledger, cast("TokenEncoder", encoder), settings)
        if "bm25" in wanted:
            build_lucene(store, place, ledger, settings)
        if until is None and not (place / MANIFEST_NAME).exists():
            write_index_manifest(place, ledger)
    return place


def _refuse_empty(passages: Iterable[Passage]) -> Iterator[Passage]:
    iterator = iter(passages)
    first = next(iterator, None)
    if first is None:
        raise _nothing_to_index()
    return itertools.chain([first], iterator)


def _nothing_to_index() -> DataError:
    return DataError("there are no passages to index", hint="check the corpus and the split settings")


def _refuse_second_vectors(place: Path, ledger: StageLedger, settings: BuildSettings) -> None:
    """An index has one encoder: vectors of passages or of tokens."""
    if settings.has_dense and ledger.begun("tokens"):
        raise MismatchedArtifactError(
            f"{place} holds token vectors, index type {settings.index_type} needs one vector per passage",
            hint=f"add --index-type {PLAID} to continue it, or choose another directory",
        )
    if settings.has_tokens and ledger.begun("embeddings"):
        raise MismatchedArtifactError(
            f"{place} holds one vector per passage, index type {PLAID} needs token vectors",
            hint="choose another directory for them",
        )


def _refuse_others_files(place: Path) -> None:
    with disk_errors(place):
        foreign = sorted(e.name for e in place.iterdir() if e.name not in _KNOWN and not is_temporary(e))
    if foreign:
        raise ConfigError(
            f"{place} holds other files ({', '.join(foreign[:3])}), not an index",
            hint="choose an empty or a new directory",
        )


def _prepare(place: Path, overwrite: bool) -> None:
    with disk_errors(place):
        remove_temporaries(place)
        is_finished = (place / MANIFEST_NAME).is_file()
        if is_finished and not overwrite and "folders" in read_manifest(place):
            raise MismatchedArtifactError(
                f"{place} was updated since it was built",
                hint=f"update it again with --update {place}, or add --overwrite to build it anew",
            )
        if overwrite:
            # The manifest first: from here on nothing looks complete.
            for name in (MANIFEST_NAME, *sorted(_KNOWN - {MANIFEST_NAME, ".lock"})):
                path = place / name
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)


def build_passages(
    passages: Iterable[Passage],
    place: Path,
    ledger: StageLedger,
    source: Mapping[str, Any] | None,
    documents: DocumentList | None = None,
) -> PassageStore:
    """Stage 1: store the passages."""
    directory = place / PASSAGES_DIR
    if source is not None:
        wanted = json.loads(json.dumps(source, sort_keys=True, default=str))
        if not ledger.begin("passages", {"source": wanted}):
            return PassageStore.open(directory)
    elif ledger.finished("passages"):
        # No description of the source: the passages themselves are compared.
        count, sha256 = passages_digest(passages)
        if ledger.output("passages") != {"count": count, "sha256": sha256}:
            raise MismatchedArtifactError(
                f"{place} holds {ledger.output('passages')['count']} other passages, now {count} came",
                hint="choose another --out, or add --overwrite",
            )
        return PassageStore.open(directory)
    else:
        ledger.begin("passages", {"source": None})
    iterator = iter(passages)
    with (
        PassageStoreWriter(directory) as writer,
        documents.writing(directory / DOCUMENTS_NAME) if documents is not None else nullcontext(),
        Progress(None, "passages", "store") as progress,
    ):
        while batch := list(itertools.islice(iterator, 1024)):
            writer.add_many(batch)
            progress.update(len(batch))
        if not len(writer):
            raise _nothing_to_index()
    if documents is None:  # a list may be left from an interrupted build
        (directory / DOCUMENTS_NAME).unlink(missing_ok=True)
    ledger.finish("passages", {"count": len(writer), "sha256": writer.digest})
    return PassageStore.open(directory)


def build_embeddings(
    passages: PassageStore,
    place: Path,
    ledger: StageLedger,
    encoder: PassageEncoder,
    settings: BuildSettings,
    encode: EncodesCorpus = encode_corpus,
) -> None:
    """Stage 2: encode the passages, one shard per call, so that the encoder can sort them by length."""
    identity = encoder.identity
    if identity.pooling == "tokens":
        raise ConfigError(
            f"{identity.name} makes one vector per token, type {settings.index_type} needs one per passage",
            hint="build it with `rag index … --index-type plaid`",
        )
    if identity.dim != encoder.dim:
        raise ConfigError(
            f"the encoder's vectors have {encoder.dim} dimensions, but its identity states {identity.dim}"
        )
    inputs = {
        "passages": ledger.output("passages"),
        "encoder": identity.comparable(),
        "dtype": settings.stored_dtype,
        "shard_rows": settings.shard_rows,
        "probes": settings.probes,
        "seed": settings.seed,
    }
    if not ledger.begin("embeddings", inputs):
        return
    directory = place / EMBEDDINGS_DIR
    encode(directory, passages, encoder, settings.stored_dtype, shard_rows=settings.shard_rows)
    save_probes(directory, passages, encoder, settings.probes, settings.seed)
    output = {"rows": len(passages), "dim": encoder.dim, "dtype": settings.stored_dtype}
    ledger.finish("embeddings", {**output, "shard_rows": settings.shard_rows})


def build_dense(place: Path, ledger: StageLedger, settings: BuildSettings) -> None:
    """Stage 3: the FAISS index over finished embeddings, tuned and measured on the probes."""
    inputs = {
        "embeddings": ledger.fingerprint("embeddings"),
        "index_type": settings.index_type,
        "recall_target": settings.tuned_recall,
        "seed": settings.seed,
        "reproducible": settings.reproducible,
    }
    if not ledger.begin("dense", inputs):
        return
    embeddings = EmbeddingShards.open(place / EMBEDDINGS_DIR)
    info = build_faiss(
        embeddings, place / DENSE_DIR, index_type=settings.index_type, probes=read_probes(embeddings),
        recall_target=settings.tuned_recall, seed=settings.seed, threads=settings.threads,
        reproducible=settings.reproducible,
    )  # fmt: skip
    ledger.finish("dense", info)


def build_token_stage(
    passages: PassageStore, place: Path, ledger: StageLedger, encoder: TokenEncoder, settings: BuildSettings
) -> None:
    """Stage 4: token vectors, compressed."""
    inputs = {
        "passages": ledger.output("passages"),
        "encoder": encoder.identity.comparable(),
        "bits": settings.token_bits,
        "shard_rows": settings.shard_rows,
        "seed": settings.seed,
    }
    if not ledger.begin("tokens", inputs):
        return
    info = build_tokens(
        passages, place / TOKENS_DIR, encoder, bits=settings.token_bits, shard_rows=settings.shard_rows,
        seed=settings.seed,
    )  # fmt: skip
    ledger.finish("tokens", info)


def build_lucene(passages: PassageStore, place: Path, ledger: StageLedger, settings: BuildSettings) -> None:
    """Stage 5: the BM25 index."""
    inputs = {"passages": ledger.output("passages"), "k1": settings.k1, "b": settings.b}
    if not ledger.begin("bm25", inputs):
        return
    info = build_bm25(
        passages, place / BM25_DIR, k1=settings.k1, b=settings.b,
        threads=settings.threads or os.cpu_count() or 1, heap_mib=settings.java_heap_mib,
    )  # fmt: skip
    ledger.finish("bm25", info)


def write_index_manifest(place: Path, ledger: StageLedger) -> None:
    """Last stage: the manifest, with all checksums; those of embedding shards come from the ledger."""
    stages = [stage for stage in STAGES if ledger.finished(stage)]
    present = {
        path.relative_to(place).as_posix()
        for stage in stages
        for path in (place / stage).rglob("*")
        if path.is_file()
    }
    known: dict[str, dict[str, Any]] = {}
    manifest: dict[str, Any] = {"kind": INDEX_KIND, "stages": stages, "metric": "inner_product"}
    manifest.update({stage: ledger.output(stage) for stage in stages})
    if "embeddings" in stages:
        embeddings = EmbeddingShards.open(place / EMBEDDINGS_DIR)
        known = {f"{EMBEDDINGS_DIR}/{name}": entry for name, entry in embeddings.checksums().items()}
        manifest["encoder"] = embeddings.encoder.to_json()
    if "tokens" in stages:
        manifest["encoder"] = TokenIndex.open(place / TOKENS_DIR).encoder.to_json()
    table = {**known, **file_table(place, (present | {LEDGER_NAME}) - set(known))}
    manifest["files"] = dict(sorted(table.items()))
    write_manifest(place, {**manifest, "checksum": manifest_checksum(manifest)})


def manifest_checksum(manifest: Mapping[str, Any]) -> str:
    """Hex sha256 of an index manifest without its own checksum and format version."""
    content = {key: value for key, value in manifest.items() if key not in ("checksum", "format_version")}
    return fingerprint(content)
