"""Build an index: passages → embeddings → FAISS (token vectors) → Lucene → manifest, each stage
alone or all.

The directory is locked during the build. Every stage is resumable: finished shards are kept, an
interrupted stage continues behind them, and the manifest is written last. All files have the same
bytes however often the build was interrupted, except Lucene's files and the manifest's entries for
these.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np

from indexers.documents import DOCUMENTS_NAME, Put, writing_documents
from indexers.embeddings import HEADER_NAME, EmbeddingShards, Header, encode_corpus
from indexers.faiss_index import build_faiss, create_faiss, preset_for
from indexers.ledger import DATA_PREFIX, UPDATING_DIR, BuildLedger, remove_unused
from indexers.lucene import build_bm25
from indexers.passage_writer import PassageStoreWriter, passages_digest
from indexers.passages import PassageStore
from indexers.protocols import EncoderIdentity, EncodesCorpus, PassageEncoder
from indexers.settings import INDEX_KINDS, PLAID, STAGES, BuildSettings, Stage
from indexers.token_build import TokenEncoder, build_tokens
from indexers.token_codec import BITS
from rag.core.arrays import Float32, load_npy, save_npy
from rag.core.errors import ConfigError, DataError, MismatchedArtifactError
from rag.core.files import TEMPORARY_MARK, directory_lock, disk_errors, fingerprint
from rag.core.log import Progress
from rag.core.manifest import BUILDING_DIR, MANIFEST_NAME
from rag.core.types import Passage

PROBES_NAME = "probes.npy"  # queries on which recall is measured, beside the embeddings
_PROBE_WORDS = 10
_OWN = {MANIFEST_NAME, ".lock", BUILDING_DIR, UPDATING_DIR}


def build_index(
    content: Iterable[Passage | Put],
    out: str | Path,
    *,
    encoder: PassageEncoder | TokenEncoder | None = None,
    settings: BuildSettings | None = None,
    source: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    encode: EncodesCorpus = encode_corpus,
) -> Path:
    """Build an index directory, or continue one that was interrupted.

    Args:
        content: passages, or documents cut into passages; read lazily, and not at all if `source`
            says that they are stored.
        source: identifies the passages (paths, sizes, split settings). Without it a rerun reads the
            passages again and compares their checksum.
        encode: encodes the passages, in this process or elsewhere.

    Returns:
        `out`. A finished index is extended if `settings` ask for a retriever it lacks.

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
    if settings.has_encoder and encoder is None:
        raise ConfigError(
            f"retriever {settings.retriever!r} needs an encoder",
            hint="pass one, or choose retriever bm25",
        )
    if place.is_dir():
        _refuse_others_files(place)  # first, because the lock adds a file
    with directory_lock(place):
        if overwrite:  # without passages, the old index stays
            content = _refuse_empty(content)
        with disk_errors(place):
            ledger = BuildLedger(place, overwrites=overwrite)
        if settings.has_encoder and encoder is not None:
            _check_encoder(place, ledger, settings, encoder.identity)
        store = build_passages(content, ledger, source)
        build_stages(settings.stages, store, ledger, encoder, settings, encode)
        if ledger.folder.exists():
            ledger.commit([stage for stage in STAGES if ledger.stage(stage).get("finished")])
            remove_unused(place)
    return place


def build_stages(
    stages: Iterable[str],
    store: PassageStore,
    ledger: BuildLedger,
    encoder: PassageEncoder | TokenEncoder | None,
    settings: BuildSettings,
    encode: EncodesCorpus = encode_corpus,
) -> None:
    """The stages after the passages, those that are named."""
    inputs: dict[str, Any] = {"passages": ledger.stage("passages")["output"]}
    if "embeddings" in stages:
        _build_embeddings(store, ledger, cast("PassageEncoder", encoder), settings, encode)
    if "dense" in stages:
        _build_dense(ledger, settings)
    if "tokens" in stages:
        model = cast("TokenEncoder", encoder)
        shards = {"shard_rows": settings.shard_rows, "seed": settings.seed}
        if ledger.begin(
            "tokens", {**inputs, **shards, "encoder": model.identity.comparable(), "bits": BITS}
        ):
            ledger.finish("tokens", build_tokens(store, ledger.path("tokens"), model, **shards))
    if "bm25" in stages:
        weights, threads = (
            {"k1": settings.k1, "b": settings.b},
            settings.threads or os.cpu_count() or 1,
        )
        if ledger.begin("bm25", {**inputs, **weights}):
            heap_mib, place = settings.java_heap_mib, ledger.path("bm25")
            ledger.finish(
                "bm25", build_bm25(store, place, **weights, threads=threads, heap_mib=heap_mib)
            )


def _build_embeddings(
    passages: PassageStore,
    ledger: BuildLedger,
    encoder: PassageEncoder,
    settings: BuildSettings,
    encode: EncodesCorpus,
) -> None:
    """Encode the passages, one shard per call, so that the encoder can sort them by length."""
    identity = encoder.identity
    if identity.pooling == "tokens":
        raise ConfigError(
            f"{identity.name} makes one vector per token, type {settings.index_type} needs one per passage",
            hint="build it with `rag index … --index-type plaid`",
        )
    if settings.index_type != "flat":  # refused before hours of encoding
        create_faiss(preset_for(settings.index_type, len(passages), identity.dim), identity.dim)
    inputs = {
        "passages": ledger.stage("passages")["output"],
        "encoder": identity.comparable(),
        "dtype": settings.stored_dtype,
        "shard_rows": settings.shard_rows,
        "probes": settings.probes,
        "seed": settings.seed,
    }
    if not ledger.begin("embeddings", inputs):
        return
    directory = ledger.path("embeddings")
    shards = encode(
        directory, passages, encoder, settings.stored_dtype, shard_rows=settings.shard_rows
    )
    if not (directory / PROBES_NAME).exists():
        save_probes(directory, passages, encoder, settings.probes, settings.seed)
    (directory / HEADER_NAME).unlink()  # the manifest says it
    ledger.finish("embeddings", shards.header.to_json())


def save_probes(
    directory: Path, passages: PassageStore, encoder: PassageEncoder, count: int, seed: int
) -> None:
    """Store vectors of pieces of ten words from random passages beside the embeddings.

    They are as long as questions, and not in the index as such. With them the FAISS stage needs no
    encoder.
    """
    generator = np.random.default_rng(seed)
    rows = np.sort(generator.choice(len(passages), min(count, len(passages)), replace=False))
    texts = []
    for passage in passages.get_many(rows):
        words = passage.text.split() or passage.title.split() or [passage.id]
        start = int(generator.integers(0, max(len(words) - _PROBE_WORDS, 0) + 1))
        texts.append(" ".join(words[start : start + _PROBE_WORDS]))
    vectors = encoder.encode_passages([""] * len(texts), texts)
    save_npy(directory / PROBES_NAME, np.asarray(vectors, dtype=np.float32))


def read_probes(embeddings: EmbeddingShards) -> Float32:
    """Probes (n, D) stored beside the embeddings."""
    return load_npy(embeddings.directory / PROBES_NAME, dtype=np.float32)


def _build_dense(ledger: BuildLedger, settings: BuildSettings) -> None:
    """The FAISS index over finished embeddings, measured on the probes; it needs no encoder."""
    choice: dict[str, Any] = {
        "index_type": settings.index_type,
        "recall_target": settings.tuned_recall,
        "seed": settings.seed,
    }
    inputs = {"embeddings": fingerprint(ledger.stage("embeddings")["inputs"])[:16], **choice}
    if ledger.begin("dense", inputs):
        header = Header.of(ledger.stage("embeddings")["output"])
        embeddings = EmbeddingShards.open(ledger.path("embeddings"), header)
        probes, threads = read_probes(embeddings), settings.threads
        info = build_faiss(
            embeddings, ledger.path("dense"), probes=probes, threads=threads, **choice
        )
        ledger.finish("dense", info)


def _refuse_empty(content: Iterable[Passage | Put]) -> Iterator[Passage | Put]:
    iterator = iter(content)
    first = next(iterator, None)
    if first is None:
        raise _nothing_to_index()
    return chain([first], iterator)


def _nothing_to_index() -> DataError:
    return DataError(
        "there are no passages to index", hint="check the corpus and the split settings"
    )


def _check_encoder(
    place: Path, ledger: BuildLedger, settings: BuildSettings, new: EncoderIdentity
) -> None:
    """An index has one encoder, and vectors of passages or of tokens."""
    kinds: dict[Stage, str] = {"embeddings": "one vector per passage", "tokens": "token vectors"}
    for stage, vectors in kinds.items():
        stored = ledger.stage(stage)
        if stored and stage not in settings.stages:
            raise MismatchedArtifactError(
                f"{place} holds {vectors}, which are not those of index type {settings.index_type}",
                hint=f"{PLAID} is the type of token vectors; continue with it, or choose another directory",
            )
        folder = ledger.path(stage)
        if (folder / HEADER_NAME).is_file():  # beside the shards of a build that was interrupted
            Header.read(folder).encoder.check(place, new)
        if identity := stored.get("output", {}).get("encoder"):
            EncoderIdentity.from_json(identity).check(place, new)


def _refuse_others_files(place: Path) -> None:
    def is_own(entry: Path) -> bool:
        return (
            entry.name in _OWN or entry.name.startswith(DATA_PREFIX) or TEMPORARY_MARK in entry.name
        )

    with disk_errors(place):
        foreign = sorted(entry.name for entry in place.iterdir() if not is_own(entry))
    if foreign:
        raise ConfigError(
            f"{place} holds other files ({', '.join(foreign[:3])}), not an index",
            hint="choose an empty or a new directory",
        )


def build_passages(
    content: Iterable[Passage | Put], ledger: BuildLedger, source: Mapping[str, Any] | None
) -> PassageStore:
    """Store the passages, and the list of documents if these came; always, if the build replaces an
    index.
    """
    described = (
        None if source is None else json.loads(json.dumps(source, sort_keys=True, default=str))
    )
    if source is None and not ledger.replaces and ledger.stage("passages").get("finished"):
        _compare_passages(content, ledger)  # which say themselves whether they are others
    elif ledger.begin("passages", {"source": described}, anew=ledger.replaces):
        ledger.finish("passages", _store_passages(content, ledger.path("passages")))
    return PassageStore.open(ledger.path("passages"))


def _compare_passages(content: Iterable[Passage | Put], ledger: BuildLedger) -> None:
    count, sha256 = passages_digest(chain.from_iterable(map(_passages_of, content)))
    if (stored := ledger.stage("passages")["output"]) != {"count": count, "sha256": sha256}:
        raise MismatchedArtifactError(
            f"{ledger.place} holds {stored['count']} other passages, now {count} came",
            hint="choose another --out, or add --overwrite",
        )


def _store_passages(content: Iterable[Passage | Put], directory: Path) -> dict[str, Any]:
    has_documents = False
    with (
        PassageStoreWriter(directory) as writer,
        writing_documents(directory / DOCUMENTS_NAME) as list_document,
        Progress(None, "passages", "store") as progress,
    ):
        for item in content:
            passages = _passages_of(item)
            writer.add_many(passages)
            progress.update(len(passages))
            if isinstance(item, Put):
                list_document(item)
                has_documents = True
        if not len(writer):
            raise _nothing_to_index()
    if not has_documents:
        (directory / DOCUMENTS_NAME).unlink()
    return {"count": len(writer), "sha256": writer.digest}


def _passages_of(item: Passage | Put) -> list[Passage]:
    return item.passages if isinstance(item, Put) else [item]


def settings_of_stages(manifest: Mapping[str, Any]) -> BuildSettings:
    """The settings that a finished index was built with, from what its stages were made from."""
    names = {
        "embeddings": ("shard_rows", "probes"),
        "dense": ("index_type", "recall_target", "seed"),
        "bm25": ("k1", "b"),
    }
    inputs = manifest["inputs"]
    values = {
        name: inputs[stage][name] for stage in names if stage in inputs for name in names[stage]
    }
    parts = tuple(part for part in ("dense", "bm25") if part in inputs)
    kind = next(kind for kind, needed in INDEX_KINDS.items() if needed == parts)
    return BuildSettings(retriever=kind, **values)
