"""A model behind an OpenAI-compatible address: Ollama, vLLM, llama.cpp, a hosted service."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from rag.config import load_config
from rag.core.errors import ConfigError, ReaderError
from rag.core.optional import require
from readers.llm.prompt import Completion
from readers.llm.reader import LanguageModelReader, LanguageModelSettings

SCHEME = "openai:"
KEY_VARIABLE = "RAG_READER_API_KEY"


def open_endpoint(
    source: str, *, precision: str = "auto", device: str = "auto", **settings: Any
) -> LanguageModelReader:
    """The reader that `openai:BASE_URL#MODEL` names.

    Nothing is sent before the first question. The key, if one is needed, is taken from the environment
    variable RAG_READER_API_KEY, never from the command line, and never logged.

    Args:
        source: such as "openai:http://localhost:11434/v1#qwen3:8b".

    Raises:
        ConfigError: the source names no address or no model, or a setting is wrong.
        MissingDependencyError: the package `openai` is not installed.
    """
    base_url, _, model = source.removeprefix(SCHEME).partition("#")
    address = urlsplit(base_url)
    if address.scheme not in ("http", "https") or not address.hostname or not model:
        raise ConfigError(
            f"reader {source!r}: expected openai:BASE_URL#MODEL",
            hint="for example openai:http://localhost:11434/v1#qwen3:8b",
        )
    if address.username or address.password:
        raise ConfigError(
            "a reader's address holds a user name or password, which would end up in logs and reports",
            hint=f"put the key into the environment variable {KEY_VARIABLE}",
        )
    checked = load_config(LanguageModelSettings, overrides=settings)
    return LanguageModelReader(Endpoint(base_url, model, checked), checked)


class Endpoint:
    """Completes chats over HTTP, with a time limit and repeated tries; safe for several threads.

    Attributes:
        name: the model and where it runs.
        parallel: requests at a time.
    """

    def __init__(self, base_url: str, model: str, settings: LanguageModelSettings) -> None:
        self._openai = require("openai", extra="llm")
        self._client = self._openai.OpenAI(
            base_url=base_url,
            api_key=os.environ.get(KEY_VARIABLE, "none"),
            timeout=settings.timeout_s,
            max_retries=settings.retries,
        )
        self._base_url, self._model, self._timeout_s = base_url, model, settings.timeout_s
        self.name, self.parallel = f"{model} at {base_url}", settings.parallel

    def fits(self, messages: Sequence[dict[str, str]], max_tokens: int) -> bool:
        """True: only the endpoint knows its window, and it refuses what is too long."""
        return True

    def complete(self, messages: Sequence[dict[str, str]], max_tokens: int) -> Completion:
        """The reply to the messages, at temperature 0.

        Raises:
            ReaderError: it was refused, timed out, or holds no text; says which, and what to do.
        """
        openai = self._openai
        try:
            reply = self._client.chat.completions.create(
                model=self._model,
                messages=list(messages),
                max_tokens=max_tokens,
                temperature=0,
                logprobs=True,
            )
            return self._completion(reply)
        except openai.APITimeoutError as error:
            raise ReaderError(
                f"{self.name}: no reply within {self._timeout_s:g} s",
                hint="raise timeout_s",
            ) from error
        except openai.APIConnectionError as error:
            raise ReaderError(
                f"{self._base_url} cannot be reached ({error.__cause__ or error})",
                hint="is the model server running, and is the address right (most end in /v1)?",
            ) from error
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            raise ReaderError(
                f"{self.name}: refused (HTTP {error.status_code})",
                hint=f"put the right key into the environment variable {KEY_VARIABLE}",
            ) from error
        except openai.APIStatusError as error:
            raise ReaderError(
                f"{self.name}: HTTP {error.status_code}: {str(error.message)[:200]}",
                hint="check the model's name, and that question and passages fit its window",
            ) from error
        except (openai.OpenAIError, ValueError, AttributeError, IndexError, TypeError) as error:
            raise ReaderError(
                f"{self.name}: the reply is not one of the chat protocol ({error})",
                hint="the address must be that of an OpenAI-compatible server, most end in /v1",
            ) from error

    def _completion(self, reply: Any) -> Completion:
        choice = reply.choices[0]
        text = choice.message.content
        told = getattr(choice, "logprobs", None)
        tokens = tuple((str(t.token), float(t.logprob)) for t in (told.content or ())) if told else ()
        if not isinstance(text, str):
            raise ReaderError(f"{self.name}: the reply holds no text", hint="choose a chat model")
        return Completion(text, tokens)
