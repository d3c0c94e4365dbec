"""The commands as functions, which the command line calls: `rag.index`, `rag.update`,
`rag.retrieve`, …

All raise a ConfigError for a setting that is unknown or does not fit, and a DataError for a file
that cannot be read, before any work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

from pydantic import BaseModel

from indexers.settings import PLAID, BuildSettings, IndexKind
from rag.config import Setting, load_config
from rag.core.errors import ConfigError
from rag.core.files import check_target
from rag.core.log import get_logger
from rag.data.filters import Filter, parse_filter
from rag.data.formats import CorpusFormat
from rag.data.languages import AUTO, detect_language
from rag.data.records import CorpusOptions, ReadReport
from rag.options import IndexOptions, OpenOptions, UpdateOptions
from retrievers.encoders.options import EncoderOptions

if TYPE_CHECKING:
    from indexers.index_writer import WriteReport
    from indexers.protocols import EncoderIdentity, EncodesCorpus, PassageEncoder
    from rag.rounds.config import RoundsOptions
    from rag.rounds.rounds import Round
    from rag.updates import Corpus

_log = get_logger(__name__)
Inputs = str | Path | Sequence[str | Path]
"""Files, folders, "hf:owner/name" or "irds:name", or "sample"."""


def index(
    corpus: Inputs,
    out: str | Path,
    *,
    retriever: IndexKind = "hybrid",
    encoder: str | Path | PassageEncoder | None = None,
    precision: str = "auto",
    reuse: str | Path | None = None,
    overwrite: bool = False,
    ray: str | None = None,
    format: Literal["auto", CorpusFormat] = "auto",
    report: ReadReport | None = None,
    **settings: Unpack[IndexOptions],
) -> Path:
    """Build an index from a corpus, or continue a build that was interrupted.

    Args:
        corpus: files, folders, "hf:owner/name", "irds:name", or "sample".
        retriever: what it can be searched by: hybrid (vectors and BM25), dense (vectors alone) or
            bm25.
        encoder: hub name, folder, all-MiniLM-L6-v2, static, "PASSAGES + QUESTIONS",
            openai:BASE_URL#MODEL; default: minilm-qa. In Python also an object, see
            `indexers.protocols.PassageEncoder`.
        precision: number format in which the encoder computes.
        reuse: an earlier index of this encoder: only passages that it lacks are encoded.
        overwrite: delete what is in `out` first.
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
    from retrievers.encoders.open import load_encoder

    report = report or ReadReport()
    given: dict[str, object] = {"retriever": retriever, **settings}
    reading = _fields_of(CorpusOptions, given)
    fields = _fields_of(EncoderOptions, given)
    encoder_options = load_config(EncoderOptions, overrides=fields).arguments
    build = load_config(BuildSettings, overrides=given)
    _check_encoding(build, encoder, encoder_options, ray, reuse, out)
    documents = _open_corpus(corpus, format, reading, encoder, encoder_options, report)
    loaded = None
    if build.has_encoder:
        loaded = load_encoder(encoder, precision=precision, **encoder_options)
        _check_encoder(loaded.identity, build, documents.cutter.reading)
    with ExitStack() as opened:
        start = opened.enter_context(Index.open(reuse, verify="deep")) if reuse else None
        encode: EncodesCorpus = encode_corpus
        if ray is not None:
            from rag.scale.encoding import encoding_at

            encode = opened.enter_context(encoding_at(ray))["encode"]
        written = write_index(
            out,
            documents.content(),
            settings=build,
            encoder=loaded,
            start_from=start,
            overwrite=overwrite,
            encode=encode,
        )
    for line in written.notes:
        _log.warning("%s", line)
    if reuse:
        report.notes.insert(0, f"{written.reused:,} vectors taken over")
    return written.directory


def _check_encoding(
    build: BuildSettings,
    encoder: object,
    encoder_options: Mapping[str, object],
    ray: str | None,
    reuse: str | Path | None,
    out: str | Path,
) -> None:
    """Refuse settings of the encoding that do not fit together."""
    is_named = encoder is None or isinstance(encoder, str | Path)
    if encoder_options and not is_named:
        raise ConfigError(
            f"{', '.join(encoder_options)} cannot be given for an encoder that is an object",
            hint="set it when the encoder is made, such as BiEncoder.load(FOLDER, pooling=…)",
        )
    if ray is not None and (reuse or not build.has_dense or not is_named):
        raise ConfigError(
            "{ray} encodes one vector per passage by an encoder that every node can load, and "
            "reuses none",
            hint="name a folder on a shared disk, without {reuse}; BM25 and token vectors are "
            "built here",
            arguments=("ray", "reuse"),
        )
    if not reuse:
        return
    if not build.has_dense:
        raise ConfigError(
            "{reuse} takes over one vector per passage, and this build makes none",
            hint="leave it out, or build an index with such vectors",
            arguments=("reuse",),
        )
    if Path(out).resolve() == Path(reuse).resolve():
        raise ConfigError(
            f"{{reuse}} and {{out}} are both {out}",
            hint="build into a new directory",
            arguments=("reuse", "out"),
        )


def _open_corpus(
    corpus: Inputs,
    format: str,
    reading: dict[str, object],
    encoder: object,
    encoder_options: Mapping[str, object],
    report: ReadReport,
) -> Corpus:
    """The corpus, cut to the measure of the encoder.

    Args:
        reading: fields of `CorpusOptions`; gets the language, if that is to be detected.
    """
    from rag.updates import Corpus, Cutter
    from retrievers.encoders.open import passage_budget

    inputs, is_sample = resolve_corpus(corpus)
    if is_sample and reading.get("split", "auto") == "auto":
        reading["split"] = "none"
    # The tokenizer of an encoder that is an object is not known: the default one counts.
    named = encoder if isinstance(encoder, str | Path) else None
    budget = partial(passage_budget, named, **encoder_options)
    documents = Corpus(inputs, format, Cutter(reading, budget), report)
    if reading.get("language") == AUTO:
        reading["language"] = detect_language(documents.texts())
        documents.cutter = Cutter(reading, budget)
        report.notes.append(f"language: {reading['language']}, by the first texts")
    return documents


def _check_encoder(encoder: EncoderIdentity, build: BuildSettings, reading: CorpusOptions) -> None:
    """Refuse an encoder that cannot make the vectors, or reads less than the longest passage that
    was asked for.
    """
    from retrievers.encoders.settings import SERVED, STATIC

    if build.has_tokens and encoder.pooling in (STATIC, SERVED):
        raise ConfigError(
            f"{encoder.name} makes one vector per text, {{index_type}} {PLAID} needs one per token",
            hint="give a ColBERT model, or another {index_type}",
            arguments=["index_type"],
        )
    max_tokens = reading.max_tokens
    if "max_tokens" in reading.model_fields_set and max_tokens > encoder.max_length:
        raise ConfigError(
            f"{{max_tokens}} is {max_tokens:,}, but the encoder reads {encoder.max_length:,} tokens of "
            "a passage",
            hint=f"give at most {encoder.max_length:,}, or a larger {{max_length}} if the encoder "
            "was made for it",
            arguments=("max_tokens", "max_length"),
        )


def _fields_of(kind: type[BaseModel], settings: dict[str, object]) -> dict[str, object]:
    """Take the fields of one configuration out of the settings of several."""
    return {name: settings.pop(name) for name in kind.model_fields if name in settings}


def resolve_corpus(corpus: Inputs) -> tuple[list[str], bool]:
    """The inputs, and whether they are the sample corpus, for which the word "sample" stands."""
    inputs = [str(item) for item in ([corpus] if isinstance(corpus, str | Path) else corpus)]
    if inputs == ["sample"] and not Path("sample").exists():
        from rag.sample import corpus_path

        return [str(corpus_path())], True
    return inputs, False


def update(
    index: str | Path,
    corpus: Inputs,
    *,
    encoder: str | Path | PassageEncoder | None = None,
    precision: str = "auto",
    **options: Unpack[UpdateOptions],
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
    top_k: int = 100,
    limit: int | None = None,
    filter: Mapping[str, Setting] | Filter | None = None,
    **opening: Unpack[OpenOptions],
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
    # Refused before anything is opened.
    extension_of(target)
    check_target(target)
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise ConfigError(
            f"limit is {limit!r}, expected at least 1", hint="None takes all questions"
        )
    conditions = parse_filter(filter)
    asked = list(islice(read_questions(questions), limit))
    with Pipeline.open(index, reads=False, **opening) as pipeline:
        write_results(pipeline, asked, target, top_k, filter=conditions)
    return len(asked)


def train_rounds(
    recipe: Literal["distill", "colbert"],
    index: str | Path,
    questions: str | Path,
    out: str | Path,
    *,
    config: str | Path | None = None,
    training: Mapping[str, Setting] | None = None,
    **settings: Unpack[RoundsOptions],
) -> list[Round]:
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
    from rag.rounds.rounds import run_rounds
    from retrievers.training.config import BiEncoderConfig

    folder = Path(out)
    config_class = recipe_class(recipe)
    # Both recipes train retrievers.
    assert issubclass(config_class, BiEncoderConfig)
    # Each round sets its own training files; the first ones' names make the settings complete.
    train_files = [str(folder / "round-1")]
    overrides = {**(training or {}), "out": str(folder), "train_files": train_files}
    training_config = read_config(config_class, config or f"{recipe}-small", overrides)
    fields = {
        **settings,
        "method": recipe,
        "out": folder,
        "index": index,
        "questions": str(questions),
    }
    return run_rounds(read_config(RoundsConfig, None, fields), training_config)
