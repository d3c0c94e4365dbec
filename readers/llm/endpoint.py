"""A model behind an OpenAI-compatible address: Ollama, vLLM, llama.cpp, a hosted service."""

import os
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from rag.config import load_config, parse_overrides
from rag.core.errors import ConfigError, ReaderError
from rag.core.optional import require
from rag.core.unicode import check_header
from readers.llm.limits import reply_limits
from readers.llm.prompt import Completion
from readers.llm.reader import LanguageModelReader, LanguageModelSettings

SCHEME = "openai:"
KEY_VARIABLE = "RAG_READER_API_KEY"
_CONNECT_S = 10.0


def open_endpoint(
    source: str, *, precision: str = "auto", device: str = "auto", **settings: Any
) -> LanguageModelReader:
    """The reader that `openai:BASE_URL#MODEL` names; settings may follow: `#MODEL,timeout_s=120,passages=5`.

    Nothing is sent before the first question. The key, if one is needed, is taken from the environment
    variable RAG_READER_API_KEY, never from the command line, and never logged.

    Args:
        source: such as "openai:http://localhost:11434/v1#qwen3:8b".

    Raises:
        ConfigError: the source names no address or no model, or a setting is wrong.
        MissingDependencyError: the package `openai` is not installed.
    """
    base_url, _, named = source.removeprefix(SCHEME).partition("#")
    model, *assignments = named.split(",")
    try:
        address = urlsplit(base_url)
        is_address = address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
    except ValueError:  # the port is no number, or an IPv6 address is incomplete
        is_address = False
    if not is_address or not model:
        raise ConfigError(
            f"reader {source!r}: expected openai:BASE_URL#MODEL",
            hint="for example openai:http://localhost:11434/v1#qwen3:8b",
        )
    if address.username or address.password:
        raise ConfigError(
            "a reader's address holds a user name or password, which would end up in logs and reports",
            hint=f"put the key into the environment variable {KEY_VARIABLE}",
        )
    checked = load_config(LanguageModelSettings, overrides={**parse_overrides(assignments), **settings})
    if checked.quote or checked.beams > 1:
        raise ConfigError(
            f"reader {source!r}: quote and beams are for a model in a local folder, found an address",
            hint="leave them out: an endpoint replies as it likes, and its citations are checked",
        )
    return LanguageModelReader(Endpoint(base_url, model, checked), checked)


class Endpoint:
    """Completes chats over HTTP, with a time limit and repeated tries; safe for several threads.

    Attributes:
        name: the model and where it runs.
        parallel: requests at a time.
    """

    is_remote = True

    def __init__(self, base_url: str, model: str, settings: LanguageModelSettings) -> None:
        self._openai = require("openai", extra="llm")
        key = os.environ.get(KEY_VARIABLE, "").strip()  # without the line break of the file it was read from
        check_header(key, KEY_VARIABLE, hint="set it to the key alone")
        self._client = self._openai.OpenAI(
            base_url=base_url,
            api_key=key or "none",
            max_retries=0,  # one time limit holds for all attempts
            http_client=self._openai.DefaultHttpxClient(event_hooks=reply_limits()),
        )
        self._base_url, self._model, self._settings = base_url, model, settings
        self._tells_probability = True
        self.name, self.parallel = f"{model} at {base_url}", settings.parallel

    def fits(self, messages: Sequence[dict[str, str]], max_tokens: int) -> bool:
        """True: only the endpoint knows its context window, and it refuses longer prompts."""
        return True

    def complete(
        self, messages: Sequence[dict[str, str]], max_tokens: int, *, timeout_s: float | None = None
    ) -> Completion:
        """The reply to the messages, at temperature 0.

        After temporary failures (no connection, too many requests, an error of the server) it tries again
        while there is time.

        Raises:
            ReaderError: the request was refused or timed out, or the reply has no text; states what to do.
        """
        limit_s = self._settings.timeout_s if timeout_s is None else timeout_s
        ends, tries = time.monotonic() + limit_s, 0
        while True:
            tries += 1
            try:
                return self._completion(self._request(messages, max_tokens, ends - time.monotonic()))
            except self._openai.OpenAIError as error:
                if self._tells_probability and "logprob" in str(error) and time.monotonic() < ends:
                    self._tells_probability = False  # the endpoint refuses this parameter
                else:
                    self._pause(error, tries, ends)
            except (ValueError, AttributeError, IndexError, TypeError) as error:
                raise self._explained(error) from error

    def echoed(self, text: str) -> list[tuple[int, float | None]]:
        """The start of each token in a text, and its log-probability, which is None for the first.

        Raises:
            ReaderError: the request was refused, or the reply has no log-probabilities.
        """
        ends, tries = time.monotonic() + self._settings.timeout_s, 0
        while True:
            tries += 1
            try:
                reply = self._client.completions.create(
                    model=self._model, prompt=text, max_tokens=1, temperature=0, echo=True, logprobs=1,
                    timeout=max(ends - time.monotonic(), 0.001),
                )  # fmt: skip
                known = reply.choices[0].logprobs
                return list(zip(known.text_offset or (), known.token_logprobs or (), strict=True))
            except self._openai.OpenAIError as error:
                self._pause(error, tries, ends)
            except (ValueError, AttributeError, IndexError, TypeError):
                return []

    def _request(self, messages: Sequence[dict[str, str]], max_tokens: int, left_s: float) -> Any:
        left_s = max(left_s, 0.001)
        return self._client.chat.completions.create(
            model=self._model,
            messages=list(messages),
            max_tokens=max_tokens,
            temperature=0,
            timeout=self._openai.Timeout(left_s, connect=min(left_s, _CONNECT_S)),
            **({"logprobs": True} if self._tells_probability else {}),
        )

    def _pause(self, error: Exception, tries: int, ends: float) -> None:
        """Wait before the next try.

        Raises:
            ReaderError: none would help, or there is no time left for one.
        """
        pause_s = _pause_s(error, tries)
        is_last = tries > self._settings.retries or time.monotonic() + pause_s >= ends
        if is_last or not self._passes(error):
            raise self._explained(error) from error
        time.sleep(pause_s)

    def _passes(self, error: Exception) -> bool:
        """Whether another try may help."""
        if isinstance(error, self._openai.APITimeoutError):
            return False
        status = getattr(error, "status_code", None)
        return isinstance(error, self._openai.APIConnectionError) or (
            status is not None and (status in (408, 409, 429) or status >= 500)
        )

    def _explained(self, error: Exception) -> ReaderError:
        openai, status = self._openai, getattr(error, "status_code", 0)
        refused = f"{self.name}: HTTP {status}: {str(getattr(error, 'message', ''))[:200]}"
        if isinstance(error, openai.APITimeoutError):
            return ReaderError(
                f"{self.name}: no reply within {self._settings.timeout_s:g} s",
                hint="a slow model needs more time: write the limit behind the model's name, as in "
                f"#{self._model},timeout_s={2 * self._settings.timeout_s:g}",
            )
        if isinstance(error, openai.APIConnectionError):
            return ReaderError(
                f"{self._base_url} cannot be reached ({error.__cause__ or error})",
                hint="is the model server running, and is the address right (most end in /v1)?",
            )
        if status in (401, 403):
            return ReaderError(
                f"{self.name}: refused (HTTP {status})",
                hint=f"put the right key into the environment variable {KEY_VARIABLE}",
            )
        if status == 404:
            hint = "check the model's name, and that the address is right (most end in /v1)"
        elif status == 429:
            hint = "it limits requests or has no credit left: wait, or ask fewer at a time, as in "
            hint += f"#{self._model},parallel=1"
        elif status >= 500:
            hint = "the model server failed: its log has the reason; the question may work later"
        elif status:
            hint = (
                f"question and passages may not fit its window: show fewer, as in #{self._model},passages=5"
            )
        else:
            return ReaderError(
                f"{self.name}: the reply is not one of the chat protocol ({error})",
                hint="the address must be that of an OpenAI-compatible server, most end in /v1",
            )
        return ReaderError(refused, hint=hint)

    def _completion(self, reply: Any) -> Completion:
        choice = reply.choices[0]
        text = choice.message.content
        known = getattr(choice, "logprobs", None)
        tokens = tuple((str(t.token), float(t.logprob)) for t in (known.content or ())) if known else ()
        if not isinstance(text, str):
            raise ReaderError(f"{self.name}: the reply holds no text", hint="choose a chat model")
        return Completion(text, tokens)


def _pause_s(error: Exception, tries: int) -> float:
    """Before the next try: what the server asks for, else 0.5 s, 1 s, 2 s, …"""
    response = getattr(error, "response", None)
    wanted = response.headers.get("retry-after", "") if response is not None else ""
    return float(wanted) if wanted.isdecimal() else 0.5 * 2 ** (tries - 1)
