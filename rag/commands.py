"""The commands as functions, which the command line calls: `rag.index`, `rag.update`,
`rag.retrieve`, …

All raise a ConfigError for a setting that is unknown or does not fit, and a DataError for a file
that cannot be read, before any work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge

from indexers.settings import BuildSettings, IndexKind
from rag.config import load_config
from rag.core.errors import ConfigError
from rag.core.files import check_target
from rag.data.filters import Filter, parse_filter
from rag.data.formats import CorpusFormat
from rag.data.records import CorpusOptions, ReadReport
from retrievers.encoders.options import EncoderOptions

if TYPE_CHECKING:
    from indexers.index_writer import WriteReport


def index(
    corpus: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    retriever: IndexKind = "hybrid",
    encoder: Any = None,
    precision: str = "auto",
    reuse: str | Path | None = None,
    overwrite: bool = False,
    ray: str | None = None,
    format: Literal["auto", CorpusFormat] = "auto",
    report: ReadReport | None = None,
    **settings: Any,
) -> Path:
    """Build an index from a corpus, or continue a build that was interrupted.

    Args:
        corpus: files, folders, "hf:owner/name", or "sample".
        retriever: what it can be searched by: hybrid (vectors and BM25), dense (vectors alone) or
            bm25.
        encoder: hub name, folder, all-MiniLM-L6-v2, static, "PASSAGES + QUESTIONS"; default:
            minilm-qa. In Python also an object, see `indexers.protocols.PassageEncoder`.
        precision: number format in which it computes.
        reuse: an earlier index of this encoder: only passages that it lacks are encoded.
        overwrite: delete what is in --out first.
        ray: address of a Ray cluster that encodes the passages (HOST:PORT, or auto).
        format: format of the corpus; auto looks at names and first bytes.
        report: counts what was read, bad records included.
        **settings: fields of `BuildSettings` (index_type, …), of `CorpusOptions` (text_field,
            split, …): how documents are read and cut, and of `EncoderOptions` (pooling,
            query_prefix, …).

    Returns:
        `out`.

    Raises:
        DataError: the corpus cannot be read, or has too many bad records.
        MismatchedArtifactError: `out` holds a build of other inputs or settings.
    """
    from indexers.embeddings import encode_corpus
    from indexers.index import Index
    from indexers.index_writer import write_index
    from rag.scale.encoding import encoding_at
    from rag.updates import Corpus, Cutter
    from retrievers.encoders.open import load_encoder, passage_budget

    report = ReadReport() if report is None else report
    inputs, is_sample = resolve_corpus(corpus)
    reading = {name: settings.pop(name) for name in CorpusOptions.model_fields if name in settings}
    if is_sample and reading.get("split", "auto") == "auto":
        reading["split"] = "none"
    given = {name: settings.pop(name) for name in EncoderOptions.model_fields if name in settings}
    stated = load_config(EncoderOptions, overrides=given).stated
    build = load_config(BuildSettings, overrides={"retriever": retriever, **settings})
    is_named = encoder is None or isinstance(encoder, str | Path)
    if stated and not is_named:
        raise ConfigError(
            f"{', '.join(stated)} cannot be given for an encoder that is an object",
            hint="set it when the encoder is made, such as BiEncoder.load(FOLDER, pooling=…)",
        )
    if ray is not None and (reuse or not build.has_dense or not is_named):
        raise ConfigError(
            "--ray encodes one vector per passage by an encoder that every node can load, and reuses none",
            hint="name a folder on a shared disk, without --reuse; BM25 and token vectors are built here",
        )
    if reuse and not build.has_dense:
        raise ConfigError("--reuse takes over one vector per passage, and this build makes none")
    if reuse and Path(out).resolve() == Path(reuse).resolve():
        raise ConfigError(f"--reuse and --out are both {out}", hint="build into a new directory")
    # An encoder of one's own is measured by the embedded one.
    measured = encoder if is_named else None
    cutter = Cutter(reading, partial(passage_budget, measured, **stated))
    documents = Corpus(inputs, format, cutter, report)
    loaded = None
    if build.has_encoder:
        loaded = load_encoder(encoder, precision=precision, **stated)
    reused = Index.open(reuse, verify="deep") if reuse else nullcontext()
    with encoding_at(ray) as encoding, reused as start:
        written = write_index(
            out,
            documents.changes(),
            settings=build,
            encoder=loaded,
            start_from=start,
            source=documents.describe(),
            overwrite=overwrite,
            encode=encoding.get("encode", encode_corpus),
        )
    if reuse:
        report.notes.insert(0, f"{written.reused:,} vectors taken over")
    return written.directory


def resolve_corpus(corpus: str | Path | Sequence[str | Path]) -> tuple[list[str], bool]:
    """The inputs, and whether they are the sample corpus, for which the word "sample" stands."""
    inputs = [str(item) for item in ([corpus] if isinstance(corpus, str | Path) else corpus)]
    if inputs == ["sample"] and not Path("sample").exists():
        from rag.sample import corpus_path

        return [str(corpus_path())], True
    return inputs, False


def update(
    index: str | Path,
    corpus: str | Path | Sequence[str | Path],
    *,
    encoder: Any = None,
    precision: str = "auto",
    **options: Any,
) -> WriteReport:
    """Bring an index up to date with its corpus as it is now; only new passages are encoded.

    Open readers keep their version; a crash leaves the old one or the new. Documents by themselves
    are put and deleted by `rag.updates.IndexUpdater`, whose arguments and errors these are.

    Args:
        corpus: what the index was built from; documents that are gone from it, and were not put,
            are deleted.
        **options: those of `IndexUpdater.follow` (max_deleted_share, …).
    """
    from rag.updates import IndexUpdater

    return IndexUpdater(index, encoder, precision).follow(resolve_corpus(corpus)[0], **options)


def retrieve(
    index: str | Path,
    questions: str | Path,
    out: str | Path,
    *,
    top_k: Annotated[int, Ge(1)] = 100,
    limit: Annotated[int, Ge(1)] | None = None,
    filter: Mapping[str, Any] | Filter | None = None,
    **opening: Any,
) -> int:
    """Search for all questions of a file, and write what is retrieved.

    Args:
        out: *.json: DPR results; *.run or *.trec: a TREC run; *.jsonl: paths of multi-hop search.
        top_k: hits per question.
        limit: number of questions, from the beginning of the file; None means all.
        filter: which passages may be returned, see `parse_filter`.
        **opening: fields of `OpenSettings` (retriever, fusion, rerank, reader, …).

    Returns:
        The number of questions.
    """
    from rag.data.questions import read_questions
    from rag.eval.runs import extension_of, write_results
    from rag.pipeline import Pipeline

    target = Path(out)
    extension_of(target)  # refused before anything is opened
    check_target(target)
    if limit is not None and (not isinstance(limit, Integral) or limit < 1):
        raise ConfigError(f"limit is {limit!r}, expected at least 1, or None for all questions")
    chosen = parse_filter(filter)
    listed = list(islice(read_questions(questions), limit))
    with Pipeline.open(index, reads=False, **opening) as pipeline:
        write_results(pipeline, listed, target, top_k, filter=chosen)
    return len(listed)


def train_rounds(
    recipe: Literal["distill", "colbert"],
    index: str | Path,
    questions: str | Path,
    out: str | Path,
    *,
    config: str | Path | None = None,
    training: Mapping[str, Any] | None = None,
    **settings: Any,
) -> list[dict[str, Any]]:
    """Train a retriever in rounds of searching, labelling and training: the function of `rag
    rounds`.

    Args:
        recipe: distill: a dense retriever learns a reader's scores (DKRR and its kin); colbert: a
            ColBERT model learns which passages hold an answer.
        index: index that the first round searches.
        questions: questions with answers; gold passages are not needed.
        out: folder of the run; an unfinished one is resumed.
        config: training settings, a file or preset; default: distill-small or colbert-small, by
            recipe.
        training: settings of `rag.train` with this recipe, which override `config`.
        **settings: fields of `RoundsConfig` (rounds, top_k, reader, …).

    Returns:
        A row for each round, see `run_rounds`; `out / "rounds.json"` names the best round's
        encoder.
    """
    from rag.recipes import read_config, recipe_class
    from rag.rounds.config import RoundsConfig

    place = Path(out)
    # each round sets its own training files
    paths = {"out": str(place), "train_files": [str(place / "round-1")]}
    trained = read_config(
        recipe_class(recipe), config or f"{recipe}-small", {**(training or {}), **paths}
    )
    named = {"method": recipe, "out": place, "index": index, "questions": str(questions)}
    checked = read_config(RoundsConfig, None, {**settings, **named})
    from rag.rounds.rounds import run_rounds

    return run_rounds(checked, trained)
