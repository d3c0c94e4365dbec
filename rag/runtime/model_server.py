"""A model behind an OpenAI-compatible address (Ollama, vLLM, llama.cpp, TEI, a hosted service): what
names it, the client that asks it, and what its errors mean.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import wait
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from rag.config import parse_overrides
from rag.core.errors import ConfigError
from rag.core.optional import require
from rag.core.wanted import check_wanted

Result = TypeVar("Result")
SCHEME = "openai:"
"""How the name of such a model begins."""

_CONNECT_S = 10.0
_LOOK_S = 0.2  # between two looks whether a reply is still wanted
_FAILED = "the model server failed: its log has the reason; the question may work later"


@dataclass(frozen=True, slots=True)
class ServedKind:
    """What models of a kind are called, and what to do about their errors.

    Attributes:
        role: who asks, as in "a reader's address".
        what: such a model, as in "a language model".
        example: a source that names one.
        key_variable: environment variable of the key.
        protocol: the part of OpenAI's protocol that is spoken.
        too_long: what to do if a request is refused, as it may be too long.
    """

    role: str
    what: str
    example: str
    key_variable: str
    protocol: str
    too_long: str


def is_served(source: str) -> bool:
    """Whether a source begins with `openai:`; a ConfigError for a bare address."""
    if source.startswith(("http://", "https://")):
        raise ConfigError(
            f"{source} does not say which protocol it speaks", hint=f"give openai:{source}"
        )
    return source.startswith(SCHEME)


@dataclass(frozen=True, slots=True)
class ModelAddress:
    """What `openai:BASE_URL#MODEL,setting=value` names.

    Attributes:
        settings: those behind the model.
    """

    base_url: str
    model: str
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, source: str, kind: ServedKind) -> ModelAddress:
        """Take a source apart.

        Raises:
            ConfigError: it names no address or no model, or holds a password.
        """
        base_url, _, options = source.removeprefix(SCHEME).partition("#")
        model, *assignments = options.split(",")
        address = _address(base_url)
        if address is None or not model:
            raise ConfigError(
                f"{source!r} names no {kind.what}, expected openai:BASE_URL#MODEL",
                hint=f"for example {kind.example}",
            )
        if address.username or address.password:
            raise ConfigError(
                f"{kind.role}'s address holds a user name or password, which would end up in logs "
                "and reports",
                hint=f"put the key into the environment variable {kind.key_variable}",
            )
        return cls(base_url, model, parse_overrides(assignments))


def _address(base_url: str) -> SplitResult | None:
    """The parts of an address over HTTP; None if it is none."""
    try:
        address = urlsplit(base_url)
        is_complete = bool(address.hostname) and address.port != 0
    except ValueError:  # the port is no number, or an IPv6 address is incomplete
        return None
    return address if is_complete and address.scheme in ("http", "https") else None


class ModelServer:
    """The client of a served model, by the package `openai`, which repeats failed requests.

    Nothing is sent before the first question. The key, if one is needed, is taken from the
    environment, never from the command line, and never logged.

    Attributes:
        api: the package `openai`.
        client: its client for `run`.
        name: the model and its address, for messages.

    Raises:
        ConfigError: the key cannot stand in a header.
        MissingDependencyError: the package `openai` is not installed.
    """

    def __init__(
        self, address: ModelAddress, kind: ServedKind, *, timeout_s: float, retries: int
    ) -> None:
        self.api = require("openai", extra="llm")
        # Without the line break of the file that it was read from.
        key = os.environ.get(kind.key_variable, "").strip()
        if not (key.isascii() and key.isprintable()):
            raise ConfigError(
                f"{kind.key_variable} cannot stand in a header", hint="set it to the key alone"
            )
        self.client = self.api.AsyncOpenAI(
            base_url=address.base_url,
            api_key=key or "none",
            max_retries=retries,
            # The package's usual one closes itself in whichever loop runs when it is deleted.
            http_client=self.api.DefaultAsyncHttpxClient(),
            timeout=self.api.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_S)),
        )
        self.name = f"{address.model} at {address.base_url}"
        self._address = address
        self._kind = kind
        self._limit_s = timeout_s
        self._loop = _running_loop()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of work with the client.

        Raises:
            CancelledError: nobody waits for it any more, see `rag.core.wanted`; the connection is
                closed, by which servers know that they may stop.
        """
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            while not wait([running], _LOOK_S).done:
                check_wanted()
            return running.result()
        finally:
            running.cancel()

    def explain(self, error: Exception) -> tuple[int, str, str]:
        """HTTP status (0: none), reason and hint, from an error of the package or of an odd
        reply.
        """
        status: int = getattr(error, "status_code", 0)
        if status:
            # The message of a refused key may repeat it.
            message = "" if status in (401, 403) else f": {getattr(error, 'message', ''):.200}"
            return status, f"{self.name}: HTTP {status}{message}", self._hint(status)
        if isinstance(error, self.api.APITimeoutError):
            reason = f"no reply within {self._limit_s:g} s"
            longer = f"#{self._address.model},timeout_s={2 * self._limit_s:g}"
            hint = f"a slow model needs more time, as in {longer}"
        elif isinstance(error, self.api.APIConnectionError):
            reason = f"it cannot be reached ({error.__cause__ or error})"
            hint = "is the model server running, and is the address right (most end in /v1)?"
        else:
            reason = f"the reply is not one of the {self._kind.protocol} protocol ({error})"
            hint = "the address must be that of an OpenAI-compatible server, most end in /v1"
        return 0, f"{self.name}: {reason}", hint

    def _hint(self, status: int) -> str:
        if status in (401, 403):
            return f"put the right key into the environment variable {self._kind.key_variable}"
        if status == 404:
            return "check the model's name, and that the address is right (most end in /v1)"
        if status == 429:
            return "it limits requests: wait, or ask fewer at a time, as in #MODEL,parallel=1"
        return self._kind.too_long if status < 500 else _FAILED


@cache
def _running_loop() -> asyncio.AbstractEventLoop:
    """A loop on a thread of this process: a caller's thread may have one at work already, as that
    of a notebook has.
    """
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop
