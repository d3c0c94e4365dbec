"""What refreshing needs of a folder of generations; `indexers.generations.Generations` is one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

__all__ = ["Published", "Shelf"]


class Published(Protocol):
    """A finished generation."""

    @property
    def path(self) -> Path:
        """Its folder."""
        ...

    @property
    def step(self) -> int:
        """Step of the model that it was built with."""
        ...

    @property
    def version(self) -> str:
        """Hash of its content."""
        ...

    @property
    def meta(self) -> Mapping[str, Any]:
        """What its builder said about it."""
        ...


PublishedT = TypeVar("PublishedT", bound=Published)


class Shelf(Protocol[PublishedT]):
    """A folder of generations, with one publisher and any number of readers, in any process."""

    @property
    def pinned(self) -> frozenset[str]:
        """Versions that `prune` spares."""
        ...

    def publish(
        self,
        build: Callable[[Path], None],
        *,
        step: int,
        meta: Mapping[str, Any] | None = None,
        resume: bool = False,
    ) -> PublishedT:
        """Build the next generation and make it the newest."""
        ...

    def newest(self) -> PublishedT | None:
        """The latest finished generation."""
        ...

    def all(self) -> Sequence[PublishedT]:
        """Every finished generation, oldest first."""
        ...

    def find(self, version: str) -> PublishedT | None:
        """The latest generation of this version."""
        ...

    def hold(self, generation: PublishedT | None = None) -> AbstractContextManager[PublishedT]:
        """Keep a generation from being pruned while it is read."""
        ...

    def pin(self, versions: Collection[str]) -> None:
        """Let `prune` spare these versions from now on, and no others."""
        ...

    def prune(self, keep: int = 2) -> Sequence[int]:
        """Delete all but the newest, those held and those pinned."""
        ...
