"""A model behind an OpenAI-compatible address: Ollama, vLLM, llama.cpp, a hosted service."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import SplitResult, urlsplit

from rag.config import load_config, parse_overrides
from rag.core.errors import ConfigError, EndpointError, ReaderError
from rag.core.optional import require
from readers.llm.prompt import Completion
from readers.llm.reader import LanguageModelReader, LanguageModelSettings

KEY_VARIABLE = "RAG_READER_API_KEY"
_CONNECT_S = 10.0
_KEY_HINT = f"put the right key into the environment variable {KEY_VARIABLE}"
_HINTS = {  # HTTP status → what to do
    401: _KEY_HINT,
    403: _KEY_HINT,
    404: "check the model's name, and that the address is right (most end in /v1)",
    429: "it limits requests: wait, or ask fewer at a time, as in #MODEL,parallel=1",
}
_REFUSED = (400, 413, 422)  # one request is refused, others may not be
_LONG = "question and passages may not fit its window: show fewer, as in #MODEL,passages=5"
_FAILED = "the model server failed: its log has the reason; the question may work later"


def open_endpoint(
    source: str, *, precision: str = "auto", device: str = "auto", **settings: Any
) -> LanguageModelReader:
    """The reader that `openai:BASE_URL#MODEL` names, see `endpoint_of`."""
    endpoint = endpoint_of(source, **settings)
    return LanguageModelReader(endpoint, endpoint.settings)


def endpoint_of(source: str, **settings: Any) -> Endpoint:
    """The model that `openai:BASE_URL#MODEL` names; settings may follow:
    `#MODEL,timeout_s=120,passages=5`.

    Nothing is sent before the first question. The key, if one is needed, is taken from the
    environment variable RAG_READER_API_KEY, never from the command line, and never logged.

    Args:
        source: such as "openai:http://localhost:11434/v1#qwen3:8b".

    Raises:
        ConfigError: the source names no address or no model, or a setting is wrong.
        MissingDependencyError: the package `openai` is not installed.
    """
    base_url, _, options = source.partition(":")[2].partition("#")
    model, *assignments = options.split(",")
    address = _address(base_url)
    if address is None or not model:
        raise ConfigError(
            f"{source!r} names no language model, expected openai:BASE_URL#MODEL",
            hint="for example openai:http://localhost:11434/v1#qwen3:8b",
        )
    if address.username or address.password:
        raise ConfigError(
            "a reader's address holds a user name or password, which would end up in logs and reports",
            hint=f"put the key into the environment variable {KEY_VARIABLE}",
        )
    checked = load_config(
        LanguageModelSettings, overrides={**parse_overrides(assignments), **settings}
    )
    return Endpoint(base_url, model, checked)


def _address(base_url: str) -> SplitResult | None:
    """The parts of an address over HTTP; None if it is none."""
    try:
        address = urlsplit(base_url)
        is_complete = bool(address.hostname) and address.port != 0
    except ValueError:  # the port is no number, or an IPv6 address is incomplete
        return None
    return address if is_complete and address.scheme in ("http", "https") else None


class Endpoint:
    """Completes chats over HTTP by the `openai` package, which repeats failed requests.

    Attributes:
        takes_schemas: True until a server refuses or ignores a schema.
    """

    is_remote = True

    def __init__(self, base_url: str, model: str, settings: LanguageModelSettings) -> None:
        self._openai = require("openai", extra="llm")
        self.settings = settings
        # Without the line break of the file that it was read from.
        key = os.environ.get(KEY_VARIABLE, "").strip()
        if not (key.isascii() and key.isprintable()):
            raise ConfigError(
                f"{KEY_VARIABLE} cannot stand in a header", hint="set it to the key alone"
            )
        limit_s = settings.timeout_s
        self._client = self._openai.OpenAI(
            base_url=base_url,
            api_key=key or "none",
            max_retries=settings.retries,
            timeout=self._openai.Timeout(limit_s, connect=min(limit_s, _CONNECT_S)),
        )
        self._model = model
        self._limit_s = limit_s
        self._more: dict[str, Any] = {"logprobs": True}
        self.takes_schemas = True
        self.name = f"{model} at {base_url}"

    def fits(self, messages: Sequence[dict[str, str]], max_tokens: int) -> bool:
        """True: only the endpoint knows its context window, and it refuses longer prompts."""
        return True

    def complete(
        self,
        messages: Sequence[dict[str, str]],
        max_tokens: int,
        schema: Mapping[str, Any] | None = None,
    ) -> Completion:
        """The reply to the messages, at temperature 0; errors state what to do.

        Args:
            schema: JSON schema of the reply, for endpoints that force replies into one; others
                reply as the messages ask.
        """
        more = dict(self._more)
        if schema is not None and self.takes_schemas:
            named = {"name": "reply", "schema": schema, "strict": True}
            more["response_format"] = {"type": "json_schema", "json_schema": named}
        try:
            reply = self._client.chat.completions.create(
                model=self._model,
                messages=list(messages),
                max_tokens=max_tokens,
                temperature=0,
                **more,
            )
            choice = reply.choices[0]
            text = choice.message.content
            tokens = getattr(getattr(choice, "logprobs", None), "content", None) or ()
            log_p = sum(float(token.logprob) for token in tokens)
        except self._openai.OpenAIError as error:
            if self._more and "logprob" in str(error):  # the endpoint refuses this parameter
                self._more = {}
                return self.complete(messages, max_tokens, schema)
            if "response_format" in more and re.search("response_format|schema", str(error)):
                self.takes_schemas = False
                return self.complete(messages, max_tokens)
            raise self._explained(error) from error
        except (ValueError, AttributeError, IndexError, TypeError) as error:
            raise self._explained(error) from error
        if not isinstance(text, str):
            raise ReaderError(f"{self.name}: the reply holds no text", hint="choose a chat model")
        if "response_format" in more and not text.lstrip().startswith("{"):
            # The server ignores what it does not know.
            self.takes_schemas = False
        return Completion(text, log_p if tokens else None)

    def _explained(self, error: Exception) -> ReaderError:
        """What went wrong and what to do, from an error of the package or of an odd reply."""
        status = getattr(error, "status_code", 0)
        if status:
            # The message of a refused key may repeat it.
            message = "" if status in (401, 403) else f": {getattr(error, 'message', ''):.200}"
            reason = f"HTTP {status}{message}"
            hint = _HINTS.get(status, _LONG if status < 500 else _FAILED)
        elif isinstance(error, self._openai.APITimeoutError):
            reason = f"no reply within {self._limit_s:g} s"
            hint = f"a slow model needs more time, as in #{self._model},timeout_s={2 * self._limit_s:g}"
        elif isinstance(error, self._openai.APIConnectionError):
            reason = f"it cannot be reached ({error.__cause__ or error})"
            hint = "is the model server running, and is the address right (most end in /v1)?"
        else:
            reason = f"the reply is not one of the chat protocol ({error})"
            hint = "the address must be that of an OpenAI-compatible server, most end in /v1"
        kind = ReaderError if status in _REFUSED else EndpointError
        return kind(f"{self.name}: {reason}", hint=hint)
