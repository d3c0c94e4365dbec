"""Passages and answers from an index folder or from a running server, the same way for every integration."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from rag.core.errors import ConfigError, ResourceError, RetrievalError
from rag.core.types import Location, Passage
from rag.core.unicode import check_header

_REFUSED = {400, 401, 403, 404, 413, 422}  # the request is wrong, not the server


class Source(Protocol):
    """Passages and answers for an integration; any thread may call its methods."""

    def retrieve(self, question: str, top_k: int) -> list[tuple[Passage, float]]:
        """Best passages with their scores, best first."""

    def ask(self, question: str) -> Mapping[str, Any]:
        """The answers as `rag.core.types.AnswerSet.to_json` gives them."""

    def passage(self, passage_id: str) -> Passage | None:
        """The passage with this id, or None."""

    def link(self, passage: Passage) -> str:
        """The web address of a passage, or ""."""


def open_source(index: str | Path, *, reads: bool = False, **options: Any) -> Source:
    """Open an index, or use a running server.

    Args:
        index: folder of an index, or address of a server such as `http://localhost:8000`.
        reads: whether `ask` will be used; without it no reader is loaded.
        options: of a folder, arguments of `Pipeline.open`; of a server, those of `ServerSource`.

    Raises:
        ConfigError: an option does not exist or does not fit.
        ArtifactError: the index is unfinished or damaged.
    """
    if str(index).startswith(("http://", "https://")):
        try:
            return ServerSource(str(index), **options)
        except TypeError:
            raise ConfigError(
                f"a server takes the options api_key, name and timeout_s, and not {', '.join(options)}",
                hint="choose retriever and reader where the server is started",
            ) from None
    if options.pop("api_key", None) is not None:
        raise ConfigError("an index folder needs no API key", hint="leave --api-key and RAG_API_KEY out")
    from rag.pipeline import Pipeline

    known = {*signature(Pipeline.open).parameters} - {"index_dir", "reads"}
    if unknown := [name for name in options if name not in known]:
        raise ConfigError(
            f"an index folder has no option {unknown[0]!r}",
            hint=f"there are {', '.join(sorted(known))}; name and timeout_s are options of a server",
        )
    return IndexSource(index, reads=reads, **options)


class IndexSource:
    """An index folder, opened in this process."""

    def __init__(self, index: str | Path, *, reads: bool, **options: Any) -> None:
        from rag.pipeline import Pipeline

        self._pipeline = Pipeline.open(index, reads=reads, **options)

    def retrieve(self, question: str, top_k: int) -> list[tuple[Passage, float]]:
        """Best passages with their scores, best first."""
        return [(passage, hit.score) for hit, passage in self._pipeline.retrieve(question, top_k)]

    def ask(self, question: str) -> Mapping[str, Any]:
        """The answers as JSON."""
        return self._pipeline.ask(question).to_json()

    def passage(self, passage_id: str) -> Passage | None:
        """The passage with this id, or None."""
        return self._pipeline.passage(passage_id)

    def link(self, passage: Passage) -> str:
        """The web address that the passage comes from, or ""."""
        return _web_address(passage)


class ServerSource:
    """A running server.

    Args:
        address: such as `http://localhost:8000`.
        api_key: one of the server's keys, if it has any.
        name: name of one of the server's indexes; its default otherwise.
        timeout_s: longest wait for a reply.
    """

    def __init__(
        self, address: str, *, api_key: str | None = None, name: str | None = None, timeout_s: float = 60.0
    ) -> None:
        hint = "a key read from a file may end with a line break"
        check_header(api_key or "", "the API key", hint=hint)
        self._address, self._timeout_s, self._key = address.rstrip("/"), timeout_s, api_key
        self._index = {} if name is None else {"index": name}

    def retrieve(self, question: str, top_k: int) -> list[tuple[Passage, float]]:
        """Best passages with their scores, best first."""
        reply = self._call("/v1/retrieve", {"question": question, "top_k": top_k, **self._index})
        return [(_passage(hit), float(hit["score"])) for hit in reply["hits"]]

    def ask(self, question: str) -> Mapping[str, Any]:
        """The answers as JSON."""
        return self._call("/v1/ask", {"question": question, **self._index})

    def passage(self, passage_id: str) -> Passage | None:
        """The passage with this id, or None."""
        try:
            return _passage(self._call(self._path(passage_id)))
        except _NotFoundError as error:
            if error.code == "passage_not_found":
                return None
            raise

    def link(self, passage: Passage) -> str:
        """The web address that the passage comes from, or its address on the server."""
        return _web_address(passage) or self._address + self._path(passage.id)

    def _path(self, passage_id: str) -> str:
        query = f"?{urlencode(self._index)}" if self._index else ""
        return f"/v1/passages/{quote(passage_id)}{query}"

    def _call(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The server's reply to GET, or to POST where there is a body."""
        headers = {"Content-Type": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._address + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            raise _server_error(error, self._address) from None
        except (OSError, http.client.HTTPException) as error:
            raise ResourceError(
                f"the server at {self._address} cannot be reached ({error})",
                hint="start it with `rag serve`, or correct the address",
            ) from error
        except ValueError as error:
            raise RetrievalError(
                f"{self._address} does not answer in JSON", hint="give the address of a `rag serve`"
            ) from error


class _NotFoundError(ConfigError):
    """The server has no such thing; `code` states of which kind."""

    code = ""


def _server_error(error: urllib.error.HTTPError, address: str) -> Exception:
    """The error that a server answered with, in its own words."""
    try:
        reply = json.load(error)["error"]
        message, hint = f"the server at {address} answered {error.code}: {reply['message']}", reply["hint"]
    except (ValueError, KeyError, TypeError):
        message, hint = f"{address} answered {error.code}", "give the address of a `rag serve`"
        reply = {}
    if error.code == 404:
        missing = _NotFoundError(message, hint=hint)
        missing.code = reply.get("code", "")
        return missing
    return (ConfigError if error.code in _REFUSED else RetrievalError)(message, hint=hint)


def _passage(shown: Mapping[str, Any]) -> Passage:
    place = shown.get("location")
    location = None
    if place:
        location = Location(place["path"], place.get("page", ""), tuple(place.get("headings", ())))
    return Passage(shown["passage_id"], shown["title"], shown["text"], location)


def _web_address(passage: Passage) -> str:
    path = passage.location.path if passage.location else ""
    return path if path.startswith(("http://", "https://")) else ""


def metadata_of(passage: Passage, score: float | None = None) -> dict[str, Any]:
    """Metadata of a passage for other systems: title, score, and file, page and headings if known."""
    shown: dict[str, Any] = {"title": passage.title}
    if score is not None:
        shown["score"] = score
    return {**shown, **(passage.location.to_json() if passage.location else {})}
