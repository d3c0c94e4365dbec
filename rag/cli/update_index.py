"""`rag index … --update INDEX`: bring an index up to date with its corpus, once or again and again."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rag.core.errors import ConfigError, RagError, ResourceError

if TYPE_CHECKING:
    from indexers.updater import IndexUpdater


def run_updates(
    corpus: Sequence[str],
    place: Path,
    reading: Mapping[str, Any],
    *,
    also_given: Sequence[str],
    encoder: str | None,
    precision: str,
    watch: bool,
    interval_s: float,
    max_deleted_share: float,
) -> None:
    """Update an index once, or whenever the files change until Ctrl-C; prints what was done.

    Args:
        reading: values of the options in `rag.cli.options.CORPUS`.
        also_given: names of options that an update takes from the index.

    Raises:
        ConfigError: an option that an update takes from the index, or an index that cannot be updated.
    """
    from rag.commands import index_updater
    from rag.core.log import setup_logging

    if also_given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in also_given)
        raise ConfigError(
            f"{names} cannot be given with --update, which keeps the settings of the index",
            hint="leave it out, or build a new index with --out",
        )
    setup_logging("WARNING")
    options = {name: reading[name] for name in ("format", "strict", "max_bad_share")}
    updater = index_updater(place, encoder, precision)
    follower = _Follower(list(corpus), updater, {**options, "max_deleted_share": max_deleted_share})
    seen = follower.signature() if watch else {}
    follower.update()
    if not watch:
        typer.echo(f'\nask it: rag ask "…" --index {place}')
        return
    typer.echo(f"watching {', '.join(corpus)}; Ctrl-C ends it", err=True)
    with suppress(KeyboardInterrupt):
        follower.watch(interval_s, seen)


class _Follower:
    """Keeps one index up to date with its corpus, and prints what was done."""

    def __init__(self, corpus: Sequence[str], updater: IndexUpdater, options: Mapping[str, Any]) -> None:
        self.corpus, self.updater, self.options = corpus, updater, options

    def update(self) -> None:
        """Update once."""
        from rag.data.records import ReadReport

        report = ReadReport()
        done = self.updater.follow(self.corpus, report=report, **self.options)
        if report.ignored:
            typer.echo(report.ignored_summary(), err=True)
        if report.bad:
            typer.echo(report.summary(), err=True)
        typer.echo(f"{self.updater.place}: version {done.version}, {done}")

    def watch(self, interval_s: float, updated: dict[str, tuple[int, int]]) -> None:
        """Update whenever a file is another one than before, and none changes any more.

        Args:
            updated: the files' signature before the last update.
        """
        while True:
            time.sleep(interval_s)
            if (seen := self.signature()) == updated:
                continue
            while (later := self._after(interval_s)) != seen:
                seen = later
            try:
                self.update()
                updated = seen
            except ResourceError as error:  # another writer, or a full disk: tried again
                typer.echo(f"{error}; tried again in {interval_s:g} s", err=True)
            except RagError as error:  # the corpus, as it is now: another look when it has changed
                typer.echo(f"not updated: {error}", err=True)
                updated = seen

    def _after(self, interval_s: float) -> dict[str, tuple[int, int]]:
        time.sleep(interval_s)
        return self.signature()

    def signature(self) -> dict[str, tuple[int, int]]:
        """Size and time of the last change of each file."""
        from rag.data.files.sources import find_sources

        found = {}
        with suppress(RagError):  # a folder that is gone is a change, and reading says what is wrong
            for source in find_sources(self.corpus, self.options["format"]):
                with suppress(OSError):
                    state = os.stat(source.path)
                    found[source.path] = (state.st_size, state.st_mtime_ns)
        return found
