"""From questions to answers with evidence: the core of Python API, command line and server."""

from __future__ import annotations

import copy
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from indexers.index import Index
from indexers.index_writer import Content, write_index
from indexers.rights import Readable
from indexers.settings import BuildSettings, IndexKind
from rag.answering import AnswerOptions, AskOptions, Outcome, answer_questions
from rag.config import load_config
from rag.core.arrays import Float32
from rag.core.errors import ConfigError
from rag.core.log import Timer, stage
from rag.core.manifest import PROMISE_NAME, VERDICT_PROMISE_NAME
from rag.core.types import (
    AnswerSet,
    Groups,
    Hit,
    Passage,
    Query,
    RankedPassages,
    SearchResult,
    Verdict,
)
from rag.data.claims import check_claims, why_not_judged
from rag.data.corpus import passages_of
from rag.data.filters import Filter, parse_filter
from rag.data.languages import AUTO, ENGLISH, detect_language
from rag.data.records import CorpusOptions, check_questions
from rag.opening import OpenSettings, open_models, relevance_of, resolve_verifier
from rag.options import OpenOptions
from rag.promises import PromiseKeeper
from readers.protocols import Reader, check_lengths, reader_name
from retrievers.encoders.open import load_encoder
from retrievers.protocols import (
    PairScorer,
    Retriever,
    Selected,
    TextEncoder,
    check_lists,
    check_results,
)

if TYPE_CHECKING:
    from rag.opening import ReaderLike, VerifierLike

FilterLike = Mapping[str, Any] | Filter | None


class Pipeline:
    """Retrieve, read, answer with evidence.

    Args:
        index: an open index, from whose passages evidence is quoted.
        retriever: question → hits.
        reader: question + passages → answer spans; None for retrieval only.
        verifier: judges claims; a folder, or None for the one in the package, is opened when the
            first claim comes.
        shares_models_with: a pipeline with the same reader, whose verifier this one uses, and with
            which it takes turns.
        keeps_promises: what is promised in the folder of the index holds.

    Attributes:
        shelf: what the passages name as their shelf; "" for none.

    Thread safety: any thread may call any method. Questions of several threads are answered one
    after another, since one question already uses all cores (but not where a model elsewhere
    reads); give a list to answer them as one batch.
    """

    def __init__(
        self,
        index: Index,
        retriever: Retriever,
        reader: Reader | None,
        verifier: VerifierLike = None,
        *,
        shares_models_with: Pipeline | None = None,
        keeps_promises: bool = True,
    ) -> None:
        self.index = index
        self.retriever = retriever
        self.reader = reader
        self.verifier = verifier
        self.shelf = ""
        self._open_verifier = cache(partial(resolve_verifier, verifier))
        self._lock = threading.RLock()
        if shares_models_with is not None:
            self.verifier = shares_models_with.verifier
            self._open_verifier = shares_models_with._open_verifier
            self._lock = shares_models_with._lock
        # A model in another process needs no core here: it may read for several threads.
        is_remote = reader is not None and reader.max_concurrent > 0
        self._reading: AbstractContextManager[object] = nullcontext() if is_remote else self._lock
        self._temporary_directory: tempfile.TemporaryDirectory[str] | None = None
        # Shared with the views of this pipeline, which close nothing.
        self._closed = threading.Event()
        self._is_view = False
        self._groups: Groups | None = None
        self._promise: PromiseKeeper | None = None
        self._verdict_promise: PromiseKeeper | None = None
        if keeps_promises:
            self._open_promises()

    @classmethod
    def open(
        cls, index: str | Path | Index, *, reads: bool = True, **options: Unpack[OpenOptions]
    ) -> Pipeline:
        """Open an index directory; nothing else is needed.

        Args:
            index: a directory written by `rag index`, or an open index, which the pipeline then
                owns; if a model cannot be opened, it stays open.
            reads: False only searches, if need be with the question encoder that the reader brings
                with it.
            **options: fields of `OpenSettings`; `reader=False` opens none.

        Raises:
            ArtifactError: the index is unfinished, damaged, or belongs to another encoder.
            ConfigError: a setting is not known, or does not fit the index.
        """
        settings = load_config(OpenSettings, overrides=options)
        with ExitStack() as unfinished:
            if not isinstance(index, Index):
                index = unfinished.enter_context(Index.open(index))
            retriever, reader = open_models(index, settings, reads=reads)
            pipeline = cls(index, retriever, reader, settings.verifier)
            # Whoever gets the pipeline closes the index.
            unfinished.pop_all()
        return pipeline

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str | Passage | Mapping[str, Any]],
        *,
        out: str | Path | None = None,
        retriever: IndexKind = "dense",
        encoder: str | Path | TextEncoder | None = None,
        reader: ReaderLike = None,
        language: str = ENGLISH,
    ) -> Pipeline:
        """Index texts and open the result.

        Args:
            texts: passages as strings, `Passage` records, or mappings with the fields that `rag
                index` knows (id, title, text, and others) and `metadata` for filters, from a list,
                a generator, or a data set; also a DataFrame or an Arrow table of such rows. They
                are kept whole: `rag.index` cuts.
            out: where the index goes; a directory that lives as long as the pipeline by default.
            encoder: encoder of the passages, as `index_encoder` of `open`; by default `minilm-qa`.
            language: of the texts, as for `rag.index`: a code such as "de", or "auto".

        Raises:
            DataError: there are no texts, or one is empty or no text.
        """
        settings = load_config(BuildSettings, overrides={"retriever": retriever})
        if encoder is not None and not settings.has_encoder:
            raise ConfigError(
                f"retriever {retriever} uses no encoder",
                hint="leave it out, or choose dense or hybrid",
            )
        language = load_config(CorpusOptions, overrides={"language": language}).language
        passages = passages_of(texts)
        if language == AUTO:
            language = detect_language(passage.text for passage in passages)
        if reader is not False:
            check_lengths(passages)
        temporary = None
        with ExitStack() as unfinished:
            if out is None:
                temporary = tempfile.TemporaryDirectory(prefix="rag-index-")
                out = Path(unfinished.enter_context(temporary)) / "index"
            loaded = load_encoder(encoder) if settings.has_encoder else None
            content = Content(passages, language=language)
            write_index(out, content, encoder=loaded, settings=settings)
            pipeline = cls.open(out, retriever=retriever, index_encoder=loaded, reader=reader)
            # The index is deleted with the pipeline.
            pipeline._temporary_directory = temporary
            unfinished.pop_all()
        return pipeline

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._closed.is_set():
            return "Pipeline(closed)"
        reader = "no reader" if self.reader is None else reader_name(self.reader)
        models = f"{type(self.retriever).__name__}, {reader}"
        return f"Pipeline({str(self.index.directory)!r}, {len(self.index.passages):,} passages, {models})"

    def _require_open(self) -> None:
        if self._closed.is_set():
            raise ConfigError("this pipeline is closed", hint="open it again with Pipeline.open")

    @property
    def index_version(self) -> str:
        """Short hash of the index's manifest."""
        return self.index.version

    @property
    def identity(self) -> dict[str, object]:
        """Description of retriever, encoder and reader with their weight hashes, for reports."""
        reader = self.reader
        identity = {**self._models, "reader": reader and reader_name(reader)}
        # Passages of paths are all read, whatever the effort.
        effort = "" if reader is None or self.retriever.finds_paths else reader.effort
        if effort not in ("", "full"):
            identity["effort"] = effort
        return identity

    @property
    def _models(self) -> dict[str, object]:
        encoder = self.index.encoder_identity
        return {
            **self.retriever.identity,
            "encoder": encoder and encoder.to_json(),
            "index_version": self.index_version,
        }

    def with_index(self, index: Index) -> Self:
        """This pipeline over another index, which it then owns: with the same models, which both take
        turns in using, for the same groups.

        Raises:
            MismatchedArtifactError: the index has another encoder, or the retriever cannot move.
        """
        if self.index.encoder_identity is not None:
            index.check_encoder(self.index.encoder_identity)
        moved = copy.copy(self)
        moved.index = index
        moved.retriever = self.retriever.with_index(index)
        moved._closed = threading.Event()
        moved._is_view = False
        moved._temporary_directory = None
        moved._open_promises()
        return moved

    def for_groups(self, groups: Groups) -> Self:
        """This pipeline for a person of these groups: no other passage is searched, read or shown.

        It shares index, models and locks, and closing it closes nothing. For a person of several
        calls, only the groups that all of them name count. The rights of the index are looked at in
        each call, so a change of them holds at once; a call raises a RightsError where they cannot
        be read.

        Example:
            >>> with Pipeline.from_texts(["Rivers flow."], retriever="bm25", reader=False) as pipeline:
            ...     len(pipeline.for_groups(frozenset({"staff"})).retrieve("rivers"))
            1
        """
        restricted = self._view()
        restricted._groups = groups if self._groups is None else groups & self._groups
        return restricted

    def without_promises(self) -> Self:
        """This pipeline without the promises that are stored beside its index, to fit new ones."""
        plain = self._view()
        plain._promise = None
        plain._verdict_promise = None
        return plain

    def _view(self) -> Self:
        """A copy that shares the index of this pipeline, which alone closes it."""
        view = copy.copy(self)
        view._is_view = True
        return view

    def _open_promises(self) -> None:
        self._promise = PromiseKeeper.open(self.index.directory / PROMISE_NAME)
        self._verdict_promise = PromiseKeeper.open(self.index.directory / VERDICT_PROMISE_NAME)

    @property
    def readable(self) -> Readable | None:
        """What may be read of the index; None: everything."""
        return None if self._groups is None else self.index.rights.readable(self._groups)

    def conditions(self, options: AnswerOptions, *, filter: FilterLike = None) -> dict[str, object]:
        """All that the confidence of an answer depends on, beside the question: models, index and
        options.

        A promise holds for the conditions that it was fitted under.
        """
        reader = self._require_reader()
        top_k = options.top_k if options.read is None else min(options.read, options.top_k)
        return {
            **self._search_conditions(top_k, filter),
            "reader": [reader_name(reader), reader.version],
            "policy": options.policy_for(reader).identity,
            "has_context": bool(options.context),
        }

    def verdict_conditions(self, top_k: int, *, filter: FilterLike = None) -> dict[str, object]:
        """The same for the confidence of a verdict.

        Raises:
            ArtifactError: there is no verifier.
        """
        verifier = self._open_verifier()
        return {
            **self._search_conditions(top_k, filter),
            # The name of a verifier is its folder, which may move.
            "verifier": verifier.version or verifier.name,
        }

    def _search_conditions(self, top_k: int, filter: FilterLike) -> dict[str, object]:
        """What decides which passages are found for a text."""
        return {
            **self._models,
            "top_k": top_k,
            "has_filter": parse_filter(filter) is not None,
            "has_groups": self.readable is not None,
        }

    @property
    def n_passages(self) -> int:
        """The number of passages that may be read."""
        readable = self.readable
        return len(self.index.passages if readable is None else readable.rows)

    @property
    def folders(self) -> list[str]:
        """The folders of what may be read; see `Index.folders`."""
        return self.index.folders(self.readable)

    def passage(self, passage_id: str) -> Passage | None:
        """The passage with this id; None if there is none, or if it may not be read."""
        self._require_open()
        row = self.index.passages.row_of(passage_id)
        readable = self.readable
        if row is None or (readable is not None and not readable.rows.mask[row]):
            return None
        return replace(self.index.passages[row], shelf=self.shelf)

    def search(
        self,
        queries: Sequence[str],
        top_k: int = 20,
        *,
        filter: FilterLike = None,
        timer: Timer = None,
    ) -> list[SearchResult]:
        """Search for several queries as one batch.

        Args:
            top_k: passages per query, at most 1000.
            filter: which passages may be returned, such as `{"path": "guide/*"}`; see
                `parse_filter`.
            timer: gets the time of each stage.

        Returns:
            For each query its passages, best first, and its paths, if the retriever finds such.

        Raises:
            ConfigError: `top_k` is not in 1..1000, a filter's field is unknown, or the pipeline is
                closed.
            DataError: a query is empty.
        """
        texts = check_questions(queries, top_k)
        return self._search(texts, int(top_k), timer, self._select(filter, timer))

    def retrieve(
        self, question: str, top_k: int = 20, *, filter: FilterLike = None
    ) -> RankedPassages:
        """Best passages of one question, best first, as pairs of hit and passage; see `search`."""
        return self.search([question], top_k, filter=filter)[0].passages

    def retrieve_many(
        self, questions: Sequence[str], top_k: int = 20, *, filter: FilterLike = None
    ) -> list[RankedPassages]:
        """Best passages of each question; see `search`."""
        return [result.passages for result in self.search(questions, top_k, filter=filter)]

    def _select(self, filter: FilterLike, timer: Timer) -> Selected:
        with self._lock:
            self._require_open()
            conditions = parse_filter(filter)
            readable = self.readable
            if conditions is None:
                return None if readable is None else readable.rows
            with stage(timer, "filter"):
                return self.index.select(conditions, readable)

    def _search(
        self, queries: Sequence[str], top_k: int, timer: Timer, selected: Selected
    ) -> list[SearchResult]:
        with self._lock:
            self._require_open()
            hit_lists, path_lists = self.retriever.search_paths(
                queries, top_k, timer=timer, selected=selected
            )
            check_lists(queries, hit_lists, path_lists, selected)
            results = []
            with stage(timer, "fetch_passages"):
                for query, hits, paths in zip(queries, hit_lists, path_lists, strict=True):
                    fetched = [self._fetch(path.hits) for path in paths]
                    results.append(SearchResult(query, self._fetch(hits), fetched))
        check_results(queries, results)
        return results

    def _fetch(self, hits: Sequence[Hit]) -> RankedPassages:
        passages = self.index.passages.get_many([hit.row for hit in hits])
        if self.shelf:
            passages = [replace(passage, shelf=self.shelf) for passage in passages]
        return list(zip(hits, passages, strict=True))

    def answer(
        self,
        questions: Sequence[str],
        options: AnswerOptions | None = None,
        *,
        filter: FilterLike = None,
    ) -> list[Outcome]:
        """Answer questions as one batch, and say how each answer came about.

        `ask` returns what people see of it; an evaluation scores all of it.

        Args:
            filter: which passages may be read, see `search`; if it selects none, `notice` says so.

        Raises:
            ConfigError: the pipeline has no reader, a setting is out of range, or the policy comes
                to no end.
            DataError: a question is empty.
        """
        options = options or AnswerOptions()
        if self._promise is not None:
            # Words that were shown as they came could not be withheld any more.
            options = replace(options, on_text=None)
        texts = check_questions(questions, options.top_k, options.n_best)
        timer: dict[str, float] = {}
        with self._reading:
            selected = self._select(filter, timer)
            reader = self._require_reader()
            search = partial(self._search, selected=selected)
            outcomes = answer_questions(texts, options, search=search, reader=reader, timer=timer)
        reason = "no passage has a word of it"
        if filter:
            reason = "no passage that meets the filter has a word of it"
            if selected is not None and not len(selected):
                reason = "no passage meets the filter"
        explained = [outcome.explained(reason) for outcome in outcomes]
        if self._promise is None:
            return explained
        conditions = self.conditions(options, filter=filter)
        return [self._promise.keep(outcome, conditions) for outcome in explained]

    def ask(
        self, question: str, *, filter: FilterLike = None, **options: Unpack[AskOptions]
    ) -> AnswerSet:
        """Answer one question.

        Args:
            filter: which passages may be read, see `search`; if it selects none, `notice` says so.
            **options: `top_k` passages to read, `n_best` answers at most, the `policy`, the
                `context`, and `on_text`, which gets the words of a language model as they come; see
                `AnswerOptions`.
        """
        return self.ask_many([question], filter=filter, **options)[0]

    def ask_many(
        self, questions: Sequence[str], *, filter: FilterLike = None, **options: Unpack[AskOptions]
    ) -> list[AnswerSet]:
        """Answer several questions as one batch; timings are those of the whole batch.

        See `ask`.
        """
        outcomes = self.answer(questions, AnswerOptions(**options), filter=filter)
        version = self.index_version
        # All of them have answers: `answer` needs a reader.
        presented = [outcome.presented for outcome in outcomes if outcome.presented is not None]
        return [replace(answers, index_version=version) for answers in presented]

    def verify(
        self,
        claims: Sequence[str],
        top_k: int = 5,
        *,
        filter: FilterLike = None,
        in_text: bool = False,
    ) -> list[Verdict]:
        """Judge claims by the passages that are found for them, as one batch.

        A multi-hop retriever's best path is judged as one text. A question in place of a claim is
        "not_judged", and its `notice` says so.

        Args:
            top_k: passages to judge each claim by.
            filter: which passages may be read, see `search`.
            in_text: the claims are the sentences of a text: one that hangs on the sentence before
                it ("However, it …") is not judged either.

        Raises:
            ArtifactError: there is no verifier.
            ConfigError: `top_k` is not in 1..1000, or a filter's field is unknown.
            QuestionError: a claim is empty, or has more than 200 words.
        """
        texts = check_claims(claims, top_k, in_text=in_text)
        notices = [why_not_judged(text, in_text=in_text) for text in texts]
        verdicts = [
            Verdict(text, "not_judged", notice=notice)
            for text, notice in zip(texts, notices, strict=True)
        ]
        judged = [number for number, notice in enumerate(notices) if not notice]
        timer: dict[str, float] = {}
        with self._lock, stage(timer, "total"):
            self._require_open()
            if judged:
                verifier = self._open_verifier()
                selected = self._select(filter, timer)
                with stage(timer, "retrieve"):
                    found = self._search(
                        [texts[number] for number in judged], top_k, timer, selected
                    )
                with stage(timer, "judge"):
                    for number, verdict in zip(judged, verifier.judge_found(found), strict=True):
                        verdicts[number] = verdict
        verdicts = [
            replace(verdict, index_version=self.index_version, timings_ms=timer)
            for verdict in verdicts
        ]
        if self._verdict_promise is None or not judged:
            return verdicts
        conditions = self.verdict_conditions(top_k, filter=filter)
        return [self._verdict_promise.keep_verdict(verdict, conditions) for verdict in verdicts]

    def _require_reader(self) -> Reader:
        if self.reader is None:
            raise ConfigError(
                "this pipeline is without a reader", hint="use retrieve(), or give a reader"
            )
        return self.reader

    def embed(self, texts: Sequence[str], side: Literal["query", "passage"]) -> Float32:
        """Vectors (n, D) float32 of questions, or of passages without titles, by the retriever's
        encoder.

        Raises:
            ConfigError: the retriever has no encoder, or one without such vectors.
        """
        encoder = self.retriever.encoder
        if encoder is None:
            raise ConfigError(
                "this pipeline searches without an encoder", hint="open an index with vectors"
            )
        with self._lock:
            self._require_open()
            if side == "query":
                return encoder.encode_queries([Query(text) for text in texts])
            return encoder.encode_passages([""] * len(texts), texts)

    @property
    def scorer(self) -> PairScorer:
        """The model that scores texts for `relevance`: the re-ranker, or else an extractive reader.

        Raises:
            ConfigError: there is neither.
        """
        if self.retriever.scorer is not None:
            return self.retriever.scorer
        return relevance_of(self._require_reader())

    def relevance(self, question: str, texts: Sequence[str]) -> Float32:
        """Scores (n,) float32 of texts without titles for a question, by `scorer`; larger is
        better.
        """
        passages = [Passage(str(number), "", text) for number, text in enumerate(texts)]
        with self._lock:
            self._require_open()
            return self.scorer.score([question] * len(texts), passages)

    def close(self) -> None:
        """Release what the index holds open once running questions are answered; delete a temporary
        index. Closing what `for_groups` returned closes nothing.
        """
        if self._is_view:
            return
        with self._lock:
            self._closed.set()
            self.index.close()
            if self._temporary_directory is not None:
                self._temporary_directory.cleanup()
