"""`rag index … --update INDEX`: bring an index up to date with its corpus, once or again and again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rag.core.errors import ConfigError, DataError, RagError, ResourceError

if TYPE_CHECKING:
    from indexers.protocols import EncoderIdentity, PassageEncoder
    from rag.core.types import Passage
    from rag.data.records import Document


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
    from rag.core.log import setup_logging

    if also_given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in also_given)
        raise ConfigError(
            f"{names} cannot be given with --update, which keeps the settings of the index",
            hint="leave it out, or build a new index with --out",
        )
    setup_logging("WARNING")
    updater = _Updater(list(corpus), place, reading, encoder, precision, max_deleted_share)
    seen = updater.signature() if watch else {}
    updater.update()
    if not watch:
        typer.echo(f'\nask it: rag ask "…" --index {place}')
        return
    typer.echo(f"watching {', '.join(corpus)}; Ctrl-C ends it", err=True)
    with suppress(KeyboardInterrupt):
        updater.watch(interval_s, seen)


class _Updater:
    """Updates one index from one corpus; the encoder is loaded once, when it is needed first."""

    def __init__(
        self,
        corpus: list[str],
        place: Path,
        given: Mapping[str, Any],
        encoder: str | None,
        precision: str,
        max_deleted_share: float,
    ) -> None:
        from indexers.index import Index
        from indexers.provenance import read_options_of_index

        with Index.open(place, verify="none") as index:
            identity = index.encoder_identity
        usual = {name: given[name] for name in ("strict", "max_bad_share")}
        self.reading = replace(read_options_of_index(place), **usual)
        self.identity = identity
        self.corpus, self.place, self.format = corpus, place, given["format"]
        self.encoder, self.precision, self.max_deleted_share = encoder, precision, max_deleted_share
        self._loaded: PassageEncoder | None = None

    @cached_property
    def _cut(self) -> Callable[[Document], list[Passage]]:
        from indexers.provenance import split_of_index
        from rag.data.split import split_documents
        from retrievers.encoders.open import passage_budget

        name, length = (self.identity.name, self.identity.max_length) if self.identity else (None, None)
        budget, count = passage_budget(self.encoder or name, length)
        split = split_of_index(self.place, budget)
        return lambda document: list(split_documents([document], split, count))

    def _open_encoder(self, identity: EncoderIdentity) -> PassageEncoder:
        from retrievers.encoders.open import load_like

        if self._loaded is None:
            self._loaded = load_like(identity, self.encoder, precision=self.precision)
        return self._loaded

    def update(self) -> None:
        """Update once."""
        from indexers.changes import corpus_changes
        from indexers.update import update_index
        from rag.data.corpus import ReadReport
        from rag.data.files.sources import find_sources

        report = ReadReport()
        sources = find_sources(self.corpus, self.format, report)
        if report.unread:
            raise DataError(
                f"{report.problems[0].source} may not be read, and its documents would be deleted",
                hint="change its permissions; nothing was changed",
            )
        if report.ignored:
            typer.echo(report.ignored_summary(), err=True)

        def cut(document: Document) -> list[Passage]:
            return self._cut(document)  # which is made when the first document has changed

        done = update_index(
            self.place,
            lambda known: corpus_changes(sources, self.reading, cut, report, known),
            self._open_encoder,
            max_deleted_share=self.max_deleted_share,
        )
        if report.bad:
            typer.echo(report.summary(), err=True)
        typer.echo(f"{self.place}: version {done.version}, {done}")

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
            for source in find_sources(self.corpus, self.format):
                with suppress(OSError):
                    state = os.stat(source.path)
                    found[source.path] = (state.st_size, state.st_mtime_ns)
        return found
