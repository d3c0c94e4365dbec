"""Several shelves, asked like a single shelf: their passages are fused by rank."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import zip_longest
from operator import itemgetter
from typing import Any

from rag.core.errors import ArtifactError, RetrievalError
from rag.core.files import fingerprint
from rag.core.log import Timer, get_logger
from rag.core.types import FirstStage, SearchResult
from rag.data.filters import Filter, FilterError, parse_filter
from rag.pipeline import FilterLike, Pipeline
from retrievers.protocols import Selected
from serve.errors import ApiError, refused
from serve.shelves import Scope, Shelf

log = get_logger(__name__)
_RANK_OFFSET = 60


def fuse_by_rank(results: Sequence[SearchResult], top_k: int) -> SearchResult:
    """The passages of one question from several shelves, by their ranks.

    The n-th passage of each shelf scores 1 / (60 + n), so scores of different shelves need not be
    comparable. Among equal ranks, the larger score on the shelf goes first, then the earlier shelf.
    `first_stage` has rank and score of a passage on its shelf: those before re-ranking, by which
    readers are calibrated, where it was re-ranked there.

    Source: Cormack, Clarke and Büttcher, SIGIR 2009; no passage is on two shelves.
    """
    ranked = []
    for result in results:
        for rank, (hit, passage) in enumerate(result.passages, start=1):
            first = hit.first_stage or FirstStage(rank, hit.score)
            fused = replace(hit, score=1 / (_RANK_OFFSET + rank), first_stage=first)
            ranked.append((rank, -hit.score, (fused, passage)))
    # Equal passages stay in the order of the shelves.
    ranked.sort(key=itemgetter(0, 1))
    paths = list[Any]()
    for of_rank in zip_longest(*(result.paths for result in results)):
        paths += [path for path in of_rank if path is not None]
    return SearchResult(results[0].query, [pair for *_, pair in ranked[:top_k]], paths[:top_k])


class Together(Pipeline):
    """A pipeline over several shelves for a batch of questions. The shelves are searched in turn,
    so that no more of them are open than the server allows.

    Args:
        leases: holds the shelf whose models read.
        scope: of the questions; unless it states the shelves, those that cannot be searched are
            left out.

    Attributes:
        unavailable: names of the shelves that were left out.
    """

    def __init__(self, shelves: Sequence[Shelf], leases: ExitStack, scope: Scope) -> None:
        self.unavailable = list[str]()
        self._shelves = shelves
        self._scope = scope
        self._versions = dict[str, str]()
        self._filter: Filter | None = None
        first = self._first(leases)
        super().__init__(
            first.index,
            first.retriever,
            first.reader,
            shares_models_with=first,
            # A promise holds for a single index.
            keeps_promises=False,
        )
        # The first shelf closes its index.
        self._is_view = True

    def _first(self, leases: ExitStack) -> Pipeline:
        """The pipeline of the first shelf that can be opened."""
        for shelf in self._shelves:
            try:
                return leases.enter_context(shelf.lease())
            except ApiError as error:
                self._leave_out(shelf, error)
        raise _closed()

    @property
    def index_version(self) -> str:
        """Short hash of the versions of all indexes that were searched; known after a search."""
        return fingerprint(self._versions)[:12]

    def _select(self, filter: FilterLike, timer: Timer) -> Selected:
        # A shelf selects among its passages.
        self._filter = parse_filter(filter)
        return None

    def _search(
        self, queries: Sequence[str], top_k: int, timer: Timer, selected: Selected
    ) -> list[SearchResult]:
        """Search all shelves. On a shelf whose passages lack a field of the filter, no passage
        meets it.

        Raises:
            ApiError: 503: a shelf that the questions name cannot be searched, or none can.
            FilterError: no shelf has a field of the filter.
        """
        found = list[list[SearchResult]]()
        lacking: FilterError | None = None
        for shelf in self._shelves:
            try:
                with shelf.lease() as pipeline:
                    person = pipeline.for_groups(self._scope.groups)
                    results = person.search(queries, top_k, filter=self._filter, timer=timer)
                    self._versions[shelf.name] = pipeline.index_version
            except FilterError as error:
                lacking = lacking or error
            except (ApiError, ArtifactError, RetrievalError) as error:
                self._leave_out(shelf, error)
            else:
                found.append(results)
        if not found:
            raise lacking or _closed()
        return [fuse_by_rank(results, top_k) for results in zip(*found, strict=True)]

    def _leave_out(self, shelf: Shelf, error: Exception) -> None:
        if self._scope.is_stated:
            raise error
        if shelf.name not in self.unavailable:
            log.warning("the shelf %s is left out: %s", shelf.name, error)
            self.unavailable.append(shelf.name)


def _closed() -> ApiError:
    return refused("shelf_unavailable", "no shelf can be searched", 10)
