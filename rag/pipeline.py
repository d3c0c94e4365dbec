"""From questions to answers with evidence: the core of Python API, command line and server."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any, Literal

from indexers.index import Index
from indexers.index_writer import write_index
from indexers.settings import BuildSettings, IndexKind
from rag.config import load_config
from rag.core.arrays import Float32
from rag.core.errors import ConfigError
from rag.core.log import Timer, stage
from rag.core.types import AnswerSet, Hit, Passage, Path, Paths, Query, RankedPassages
from rag.data.corpus import passages_of
from rag.data.filters import Filter, parse_filter
from rag.data.records import check_questions
from rag.opening import OpenSettings, open_models
from rag.policies import Policy, SearchOnce, run
from readers.answer_kinds import count_candidates, present
from readers.answers import read_answers
from readers.paths import with_paths
from readers.protocols import Reader, check_lengths
from retrievers.encoders.open import load_encoder
from retrievers.open import encoder_of
from retrievers.protocols import PathRetriever, Retriever
from retrievers.rerank import RerankingRetriever

Questions = str | Sequence[str]  # one, or several as one batch
FilterLike = Mapping[str, Any] | Filter | None


class Pipeline:
    """Retrieve, read, answer with evidence.

    Args:
        index: an open index, from whose passages evidence is quoted.
        retriever: question → hits.
        reader: question + passages → answer spans; None for retrieval only.

    Attributes:
        reads_at_once: questions that a reader elsewhere takes at a time; 0: it runs in this
            process.

    Thread safety: any thread may call any method. Questions of several threads are answered one
    after another, since one question already uses all cores (but not where a model elsewhere
    reads); give a list to answer them as one batch.
    """

    def __init__(self, index: Index, retriever: Retriever, reader: Reader | None) -> None:
        self.index, self.retriever, self.reader = index, retriever, reader
        self._lock = threading.RLock()
        self.reads_at_once = int(getattr(reader, "reads_at_once", 0))
        self._reading: AbstractContextManager[object] = (
            nullcontext() if self.reads_at_once else self._lock
        )
        self._holder: tempfile.TemporaryDirectory[str] | None = None
        self._is_closed = False

    @classmethod
    def open(cls, index: str | FilePath | Index, *, reads: bool = True, **options: Any) -> Pipeline:
        """Open an index directory; nothing else is needed.

        Args:
            index: a directory written by `rag index`, or an open index, which the pipeline then
                owns.
            reads: False only searches, if need be with the question encoder that the reader brings
                with it.
            **options: fields of `OpenSettings`; `reader=False` opens none.

        Raises:
            ArtifactError: the index is unfinished, damaged, or belongs to another encoder.
            ConfigError: a setting is not known, or does not fit the index.
        """
        settings = load_config(OpenSettings, overrides=options)
        opened = index if isinstance(index, Index) else Index.open(index)
        return cls(opened, *open_models(opened, settings, reads=reads))

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str | Passage | Mapping[str, Any]],
        *,
        out: str | FilePath | None = None,
        retriever: IndexKind = "dense",
        encoder: Any = None,
        reader: Any = None,
    ) -> Pipeline:
        """Index texts and open the result.

        Args:
            texts: passages as strings, `Passage` records, or mappings with the fields that `rag
                index` knows (id, title, text, and others) and `metadata` for filters, from a list,
                a generator, or a data set; also a DataFrame or an Arrow table of such rows. They
                are kept whole: `rag.index` cuts.
            out: where the index goes; a directory that lives as long as the pipeline by default.
            encoder: encoder of the passages, as `index_encoder` of `open`; by default `minilm-qa`.

        Raises:
            DataError: there are no texts, or one is empty or no text.
        """
        settings = load_config(BuildSettings, overrides={"retriever": retriever})
        if encoder is not None and not settings.has_encoder:
            hint = "leave it out, or choose dense or hybrid"
            raise ConfigError(f"retriever {retriever} uses no encoder", hint=hint)
        passages = passages_of(texts)
        if reader is not False:
            check_lengths(passages)
        holder = None
        if out is None:
            holder = tempfile.TemporaryDirectory(prefix="rag-index-")
            out = FilePath(holder.name) / "index"
        loaded = load_encoder(encoder) if settings.has_encoder else None
        write_index(out, passages, encoder=loaded, settings=settings)
        pipeline = cls.open(out, retriever=retriever, index_encoder=loaded, reader=reader)
        pipeline._holder = holder  # keeps a temporary index alive, and removes it with the pipeline
        return pipeline

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._is_closed:
            return "Pipeline(closed)"
        named = f"{type(self.retriever).__name__}, {self.identity['reader'] or 'no reader'}"
        return f"Pipeline({str(self.index.directory)!r}, {len(self.index.passages):,} passages, {named})"

    def _require_open(self) -> None:
        if self._is_closed:
            raise ConfigError("this pipeline is closed", hint="open it again with Pipeline.open")

    @property
    def index_version(self) -> str:
        """Short hash of the index's manifest."""
        return self.index.version

    @property
    def identity(self) -> dict[str, Any]:
        """Description of retriever, encoder and reader with their weight hashes, for reports."""
        judging = self.retriever if isinstance(self.retriever, RerankingRetriever) else None
        first: Any = self.retriever if judging is None else judging.first
        fusion, effort = getattr(first, "fusion", None), None
        if not isinstance(self.retriever, PathRetriever):  # of paths everything is read
            effort = getattr(getattr(self.reader, "settings", None), "effort", None)
        encoder = self.index.encoder_identity
        optional = {
            "fusion": str(fusion) if fusion else None,
            "matching": bool(getattr(first, "matching", None)),
            "rerank": None if judging is None else judging.identity,
            "question_encoder": getattr(
                getattr(self.retriever, "encoder", None), "questions_sha256", None
            ),
            "effort": effort if effort != "full" else None,
        }
        return {
            "retriever": type(first).__name__,
            "encoder": encoder and encoder.to_json(),
            "reader": self.reader and getattr(self.reader, "name", type(self.reader).__name__),
            **{name: value for name, value in optional.items() if value},
            "index_version": self.index_version,
        }

    def passage(self, passage_id: str) -> Passage | None:
        """The passage with this id, or None."""
        self._require_open()
        return self.index.passages.find(passage_id)

    def retrieve(
        self,
        questions: Questions,
        top_k: int = 20,
        *,
        filter: FilterLike = None,
        timer: Timer = None,
    ) -> Any:
        """Best passages, best first: of one question, or of each question of a list.

        Args:
            filter: which passages may be returned, such as `{"path": "guide/*"}`; see
                `parse_filter`.

        Returns:
            `RankedPassages`, pairs of hit and passage; of a list of questions a list of them.

        Raises:
            ConfigError: `top_k` is not in 1..1000, a filter's field is unknown, or the pipeline is
                closed.
            DataError: a question is empty.
        """
        batch = [questions] if isinstance(questions, str) else questions
        lists, _ = self.retrieve_paths(batch, top_k, filter=filter, timer=timer)
        return lists[0] if isinstance(questions, str) else lists

    def retrieve_paths(
        self,
        questions: Sequence[str],
        top_k: int = 20,
        *,
        filter: FilterLike = None,
        timer: Timer = None,
    ) -> tuple[list[RankedPassages], list[Paths]]:
        """The result of `retrieve`, and the paths of each question, best first, if there are
        any.
        """
        texts = check_questions(questions, top_k)
        paths: list[list[Path]] = [[] for _ in texts]
        within: dict[str, Any] = {}
        with self._lock:
            self._require_open()
            if (conditions := parse_filter(filter)) is not None:
                with stage(timer, "filter"):
                    within["selected"] = self.index.select(conditions)
            if isinstance(self.retriever, PathRetriever):
                hit_lists, paths = self.retriever.search_both(
                    texts, int(top_k), timer=timer, **within
                )
            else:
                hit_lists = self.retriever.search(texts, int(top_k), timer=timer, **within)
            with stage(timer, "fetch_passages"):
                fetched = [self._fetch(hits) for hits in hit_lists]
                return fetched, [[self._fetch(path.hits) for path in own] for own in paths]

    def read(
        self,
        questions: Sequence[str],
        ranked: Sequence[RankedPassages],
        n_best: int,
        paths: Sequence[Paths],
    ) -> list[AnswerSet]:
        """Answers from the passages and paths of `retrieve_paths`; questions without passages get
        none.

        Raises:
            ConfigError: the pipeline has no reader.
        """
        reader = self._require_reader()
        with self._reading:
            return read_answers(reader, questions, ranked, paths, n_best, self.index_version)

    def _require_reader(self) -> Reader:
        if self.reader is None:
            raise ConfigError(
                "this pipeline is without a reader", hint="use retrieve(), or give a reader"
            )
        return self.reader

    def _fetch(self, hits: Sequence[Hit]) -> RankedPassages:
        return list(zip(hits, self.index.passages.get_many([hit.row for hit in hits]), strict=True))

    def ask(
        self,
        questions: Questions,
        *,
        top_k: int = 20,
        n_best: int = 5,
        filter: FilterLike = None,
        policy: Policy | None = None,
        context: str = "",
    ) -> Any:
        """Answer one question, or several as one batch.

        Args:
            top_k: passages to read.
            n_best: answers to return at most.
            filter: which passages may be read, see `retrieve`; if it selects none, `notice` says
                so.
            policy: decides when to search and read, see `rag.policies`; None: search once, and
                read.
            context: the question before, if these follow up on it ("When was it published?"):
                passages are searched for with both, and read for the question alone.

        Returns:
            One `AnswerSet`, or one per question in the order given. Timings are those of the whole
            batch.
        """
        batch = check_questions(
            [questions] if isinstance(questions, str) else questions, top_k, n_best
        )
        timer: dict[str, float] = {}

        def search(queries: Sequence[str]) -> tuple[list[RankedPassages], list[Paths]]:
            return self.retrieve_paths(queries, top_k, filter=filter, timer=timer)

        def read(texts: Sequence[str], lists: Any, paths: Sequence[Paths]) -> list[AnswerSet]:
            with stage(timer, "read"):
                answers = self.read(
                    texts, lists, count_candidates(self.reader, texts, n_best), paths
                )
            if any(paths):
                answers = list(map(with_paths, answers, paths))
            return [present(self.reader, each, n_best) for each in answers]

        with self._reading, stage(timer, "total"):
            self._require_open()
            self._require_reader()
            results = run(policy or SearchOnce(), batch, search, read, context=context)
            reason = "no passage has a word of it"
            with self._lock:
                if filter and not len(self.index.select(parse_filter(filter) or ())):
                    reason = "no passage meets the filter"
        answers = []
        for state, answer in results:
            is_empty = state.searches and not any(search.passages for search in state.searches)
            notice = answer.notice or (reason if is_empty else "")
            answers.append(replace(answer, notice=notice, timings_ms=timer))
        return answers[0] if isinstance(questions, str) else answers

    def embed(self, texts: Sequence[str], side: Literal["query", "passage"]) -> Float32:
        """Vectors (n, D) float32 of questions, or of passages without titles, by the retriever's
        encoder.

        Raises:
            ConfigError: the retriever has no encoder, or one without such vectors.
        """
        encoder = encoder_of(self.retriever)
        if encoder is None:
            raise ConfigError(
                "this pipeline searches without an encoder", hint="open an index with vectors"
            )
        with self._lock:
            self._require_open()
            if side == "query":
                return encoder.encode_queries([Query(text) for text in texts])
            return encoder.encode_passages([""] * len(texts), texts)

    def close(self) -> None:
        """Release what the index holds open once running questions are answered; delete a temporary
        index.
        """
        with self._lock:
            self._is_closed = True
            self.index.close()
            if self._holder is not None:
                self._holder.cleanup()
