"""Question in, answers with evidence out: what stands behind the Python API, the command line and the server.

Example:
    Three lines from a list of texts to an answer::

        from rag import Pipeline
        texts = ["The Danube rises in the Black Forest.", "The Rhine ends in the North Sea."]
        pipeline = Pipeline.from_texts(texts)
        print(pipeline.ask("Where does the Danube rise?").answers[0].text)
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any, Literal, overload

from indexers.build import build_index
from indexers.index import Index
from indexers.presets import INDEX_KINDS, IndexKind
from indexers.protocols import EncoderIdentity
from indexers.settings import BuildSettings
from rag.config import load_config
from rag.core.errors import ConfigError, DataError
from rag.core.log import get_logger
from rag.core.progress import StageTimer
from rag.core.types import MAX_TOP_K, AnswerSet, Hit, Passage, Path
from rag.data.corpus import passages_of
from readers.follow_up import Turn, rephrase
from readers.paths import Steps, counts_scores, read_answers, with_paths
from readers.protocols import Reader
from retrievers.fusion import Fusion
from retrievers.protocols import PathRetriever, Retriever
from retrievers.rerank import RerankingRetriever

Found = list[tuple[Hit, Passage]]

_OWN = "its own question encoder"


class Pipeline:
    """Retrieve, read, answer with evidence.

    Args:
        index: an open index; its passages are what evidence is quoted from.
        retriever: question → hits.
        reader: question + passages → answer spans; None for retrieval only.

    Thread safety: one thread at a time; the server owns one worker thread per pipeline.
    """

    def __init__(self, index: Index, retriever: Retriever, reader: Reader | None) -> None:
        self.index, self.retriever, self.reader = index, retriever, reader

    @classmethod
    def open(
        cls,
        index_dir: str | FilePath,
        *,
        retriever: str = "auto",
        index_encoder: str | None = None,
        reader: str | Literal[False] | None = None,
        reads: bool = True,
        precision: str = "auto",
        fusion: str | Fusion | None = None,
        rerank: str | None = None,
        effort: str | None = None,
        verify: Literal["none", "size", "deep"] = "size",
    ) -> Pipeline:
        """Open an index directory; nothing else is needed.

        Args:
            index_dir: a directory written by `rag index`.
            retriever: a kind of `retrievers.open`, such as "hybrid" or "hybrid:depth=500"; "auto" takes the
                best the index has, or the question encoder that the reader brings with it.
            index_encoder: another folder or hub name for the index's encoder; its weight hash must be the
                manifest's.
            reader: folder or hub name of a reader; None for the one in the package, False for none.
            reads: False only searches, if need be with the question encoder that the reader brings with it.
            precision: "auto", "fp32" or "bf16".
            effort: how much is read: "full" or another of the reader's own efforts; None for its default.
            fusion: how hybrid retrieval puts its two lists together, as `Fusion.parse` reads it.
            rerank: folder of a ColBERT model or a cross-encoder that puts the first hits in order, as
                `retrievers.rerank.parse_rerank` reads it.
            verify: how thoroughly files are checked before use.

        Raises:
            ArtifactError: the index is unfinished, damaged, or belongs to another encoder.
            ConfigError: a setting is not known, or does not fit the index.
        """
        from retrievers.open import named_kind, open_retriever

        index = Index.open(index_dir, verify=verify)
        fused = Fusion.parse(fusion) if isinstance(fusion, str) else fusion
        said = _said(reader)
        known = said.get("retriever") or {}
        bound = None if "kind" in known else known or None
        if reader and bound is None and not reads:
            raise ConfigError(
                f"{reader} is to search and not to read, but there is no question encoder in it",
                hint="leave the reader out, or give the folder that `rag train rag` or `emdr2` wrote",
            )
        if retriever not in ("auto", "dense"):
            bound = None
        if bound is None:
            searcher = open_retriever(
                index, retriever, encoder=index_encoder, precision=precision, fusion=fused, rerank=rerank
            )
        else:
            from retrievers.bound import open_bound
            from retrievers.rerank import reranked

            if index_encoder is not None or fused is not None:
                raise ConfigError(
                    f"{reader} brings its own question encoder: index_encoder and fusion cannot be given",
                    hint="leave them out, or choose another --retriever",
                )
            searcher = open_bound(index, FilePath(str(reader)), bound, precision=precision)
            if rerank is not None:
                searcher = reranked(searcher, index, rerank, precision=precision)
        opened = _open_reader(reader if reads else False, precision, effort)
        if known and counts_scores(opened):
            searched = _OWN if bound else named_kind(retriever, index)
            _check_scores(str(reader), known, searched, index)
        return cls(index, searcher, opened)

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str | Passage | Mapping[str, Any]],
        *,
        titles: Iterable[str] | None = None,
        out: str | FilePath | None = None,
        retriever: IndexKind = "dense",
        encoder: str | None = None,
        reader: str | Literal[False] | None = None,
        overwrite: bool = False,
    ) -> Pipeline:
        """Index texts and open the result.

        Args:
            texts: passages as strings, `Passage` records, or mappings with the fields that `rag index` knows
                (id, title, text, and others); also a DataFrame, whose rows are such mappings.
            titles: one title a string, if known.
            out: where the index goes; a directory that lives as long as the pipeline by default.
            retriever: what to build.
            encoder: passage encoder; the one in the package by default.
            reader: as in `open`.
            overwrite: delete what is in `out` first.

        Raises:
            ConfigError: there is no such `retriever`.
            DataError: there are no texts, one is empty or no text, or titles and texts differ in number.
        """
        settings = load_config(BuildSettings, overrides={"retriever": retriever})
        passages = passages_of(texts, titles)
        holder = None
        if out is None:
            holder = tempfile.TemporaryDirectory(prefix="rag-index-")
            out = FilePath(holder.name) / "index"
        passage_encoder = None
        if "dense" in INDEX_KINDS[retriever]:
            from retrievers.encoders.open import load_encoder

            passage_encoder = load_encoder(encoder)
        build_index(passages, FilePath(out), encoder=passage_encoder, settings=settings, overwrite=overwrite)
        pipeline = cls.open(out, retriever=retriever, index_encoder=encoder, reader=reader)
        pipeline._holder = holder  # keeps a temporary index alive, and removes it with the pipeline
        return pipeline

    _holder: tempfile.TemporaryDirectory[str] | None = None
    _is_closed = False

    def _require_open(self) -> None:
        if self._is_closed:
            raise ConfigError("this pipeline is closed", hint="open it again with Pipeline.open")

    @property
    def _own_questions(self) -> str | None:
        """Hash of a question encoder that came with the reader."""
        encoder = getattr(self.retriever, "encoder", None)
        return getattr(encoder, "questions_sha256", None)

    @property
    def _effort(self) -> str:
        name = "path_effort" if isinstance(self.retriever, PathRetriever) else "effort"
        return str(getattr(getattr(self.reader, "settings", None), name, "full"))

    @property
    def index_version(self) -> str:
        """Short hash of the index's manifest."""
        return self.index.version

    @property
    def n_passages(self) -> int:
        """How many passages are indexed."""
        return len(self.index.passages)

    @property
    def identity(self) -> dict[str, Any]:
        """Who answers: retriever, encoder and reader with their weight hashes, for reports."""
        judging = self.retriever if isinstance(self.retriever, RerankingRetriever) else None
        first = self.retriever if judging is None else judging.first
        return {
            "retriever": type(first).__name__,
            **({"fusion": str(fusion)} if (fusion := getattr(first, "fusion", None)) else {}),
            **({} if judging is None else {"rerank": judging.identity}),
            "encoder": self.index.manifest.get("encoder"),
            **({"question_encoder": sha} if (sha := self._own_questions) else {}),
            "reader": None
            if self.reader is None
            else getattr(self.reader, "name", type(self.reader).__name__),
            **({"effort": effort} if (effort := self._effort) != "full" else {}),
            "index_version": self.index_version,
        }

    def passage(self, passage_id: str) -> Passage | None:
        """The passage with this id, or None."""
        self._require_open()
        return self.index.passages.find(passage_id)

    @overload
    def retrieve(  # type: ignore[overload-overlap]
        self, questions: str, top_k: int = 20, *, timer: StageTimer | None = None
    ) -> Found: ...
    @overload
    def retrieve(
        self, questions: Sequence[str], top_k: int = 20, *, timer: StageTimer | None = None
    ) -> list[Found]: ...

    def retrieve(
        self, questions: str | Sequence[str], top_k: int = 20, *, timer: StageTimer | None = None
    ) -> Found | list[Found]:
        """Best passages, best first: of one question, or of each question of a list.

        Raises:
            ConfigError: `top_k` is not in 1..1000, or the pipeline is closed.
            DataError: a question is empty.
        """
        if isinstance(questions, str):
            return self.retrieve_paths([questions], top_k, timer=timer)[0][0]
        return self.retrieve_paths(questions, top_k, timer=timer)[0]

    def retrieve_paths(
        self, questions: Sequence[str], top_k: int = 20, *, timer: StageTimer | None = None
    ) -> tuple[list[Found], list[list[Found]]]:
        """The result of `retrieve`, and the paths of each question, best first, if there are any."""
        self._require_open()
        check_questions(questions, top_k)
        return self._search(questions, top_k, timer or StageTimer())

    def _search(
        self, questions: Sequence[str], top_k: int, timer: StageTimer
    ) -> tuple[list[Found], list[list[Found]]]:
        paths: list[list[Path]] = [[] for _ in questions]
        if isinstance(self.retriever, PathRetriever):
            hit_lists, paths = self.retriever.search_both(questions, top_k, timer=timer)
        else:
            hit_lists = self.retriever.search(questions, top_k, timer=timer)
        with timer("fetch_passages"):
            return [self._fetch(hits) for hits in hit_lists], [
                [self._fetch(path.hits) for path in found] for found in paths
            ]

    def read(
        self,
        questions: Sequence[str],
        found: Sequence[Steps],
        n_best: int,
        paths: Sequence[Sequence[Steps]] = (),
    ) -> list[AnswerSet]:
        """Answers from passages that were found, or from paths of them; questions without any get none.

        Raises:
            ConfigError: the pipeline has no reader.
        """
        reader = self._require_reader()
        of_questions = paths or [()] * len(questions)
        return read_answers(reader, questions, found, of_questions, n_best, self.index_version)

    def _require_reader(self) -> Reader:
        if self.reader is None:
            raise ConfigError(
                "this pipeline was opened without a reader", hint="use retrieve(), or give a reader"
            )
        return self.reader

    def _fetch(self, hits: Sequence[Hit]) -> Found:
        return list(zip(hits, self.index.passages.get_many([hit.row for hit in hits]), strict=True))

    @overload
    def ask(  # type: ignore[overload-overlap]
        self, questions: str, *, top_k: int = 20, n_best: int = 5
    ) -> AnswerSet: ...
    @overload
    def ask(self, questions: Sequence[str], *, top_k: int = 20, n_best: int = 5) -> list[AnswerSet]: ...

    def ask(
        self, questions: str | Sequence[str], *, top_k: int = 20, n_best: int = 5
    ) -> AnswerSet | list[AnswerSet]:
        """Answer one question, or several as one batch.

        Args:
            top_k: passages to read.
            n_best: answers to return at most.

        Returns:
            One `AnswerSet`, or one a question in the order given. Timings are those of the whole batch.
        """
        batch = [questions] if isinstance(questions, str) else list(questions)
        self._require_open()
        self._require_reader()
        if not batch:
            return []
        check_questions(batch, top_k, n_best)
        timer = StageTimer()
        with timer("total"):
            found, paths = self._search(batch, top_k, timer)
            with timer("read"):
                read = self.read(batch, found, n_best, paths)
        results = [
            with_paths(replace(answers, timings_ms=dict(timer.timings_ms)), of_question)
            for answers, of_question in zip(read, paths, strict=True)
        ]
        return results[0] if isinstance(questions, str) else results

    def rephrase(self, question: str, turns: Sequence[Turn]) -> str:
        """A follow-up question as one that needs no conversation; see `readers.follow_up`."""
        return rephrase(self.reader, question, turns)

    def close(self) -> None:
        """Release what the index holds open; a temporary index is deleted."""
        self._is_closed = True
        self.index.close()
        if self._holder is not None:
            self._holder.cleanup()
            self._holder = None


def _said(reader: str | Literal[False] | None) -> Mapping[str, Any]:
    """The `reader.json` of a reader's folder, if it has one."""
    from readers.manifest import READER_FILE, read_reader_file

    if not reader or not (FilePath(reader) / READER_FILE).exists():
        return {}
    return read_reader_file(FilePath(reader))


def _check_scores(reader: str, known: Mapping[str, Any], searched: str, index: Index) -> None:
    """Warn where a reader that counts scores in gets those of another kind of search or another encoder."""
    trained, log = known.get("kind", _OWN), get_logger(__name__)
    if trained.partition(":")[0] != searched.partition(":")[0]:
        log.warning(
            "%s was trained with the scores of %s; those of %s are not comparable, so expect worse answers",
            *(reader, trained, searched),
        )
    elif "encoder" in known and index.encoder_identity is not None:
        encoder = EncoderIdentity.from_json(known["encoder"])
        if differences := index.encoder_identity.differences(encoder):
            log.warning(
                "%s was trained with scores of the encoder %s; those of %s are not comparable (%s)",
                *(reader, encoder.name, index.directory, "; ".join(differences)),
            )


def _open_reader(reader: str | Literal[False] | None, precision: str, effort: str | None) -> Reader | None:
    if reader is False:
        return None
    from readers.open import open_reader

    return open_reader(reader, precision=precision, **({"effort": effort} if effort else {}))


def check_questions(questions: Sequence[str], top_k: int, n_best: int = 1) -> None:
    """Refuse questions that are empty or not valid text.

    Raises:
        ConfigError: `top_k` or `n_best` is out of range.
        DataError: a question is empty, or is no valid Unicode.
    """
    if isinstance(questions, str):
        raise DataError(f"the questions are one string ({questions!r:.40}), expected a list of strings")
    if n_best < 1:
        raise ConfigError(f"n_best is {n_best}, expected at least 1")
    if not 1 <= top_k <= MAX_TOP_K:
        raise ConfigError(f"top_k is {top_k}, expected 1 to {MAX_TOP_K}")
    for number, question in enumerate(questions):
        which = f"question {number}" if len(questions) > 1 else "the question"
        if not isinstance(question, str) or not question.strip():
            raise DataError(f"{which} is empty", hint="ask something")
        bad = next((at for at, char in enumerate(question) if "\ud800" <= char <= "\udfff"), None)
        if bad is not None:  # what Python makes of a byte that is not UTF-8
            raise DataError(f"{which} is not valid Unicode at character {bad}", hint="give it in UTF-8")
