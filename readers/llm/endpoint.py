"""A model behind an OpenAI-compatible address: Ollama, vLLM, llama.cpp, a hosted service."""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, Mapping, Sequence
from typing import Any

from rag.core.errors import ConfigError, EndpointError, ReaderError
from rag.runtime.model_server import ModelAddress, ModelServer
from readers.llm.prompt import Completion
from readers.llm.reader import LanguageModelReader
from readers.llm.specs import KIND, ServedModel, parse_reader
from readers.protocols import TextSink

_REFUSED = (400, 413, 422)  # one request is refused, others may not be
# Besides errors of the package: what a reply of another form leads to.
_ODD = (ValueError, AttributeError, IndexError, TypeError)
Tokens = tuple[tuple[bytes, float], ...]


def open_endpoint(
    spec: ServedModel, *, precision: str = "auto", device: str = "auto"
) -> LanguageModelReader:
    """The reader that a served model is."""
    return LanguageModelReader(Endpoint(spec), spec)


def endpoint_of(source: str | ServedModel) -> Endpoint:
    """The model that `openai:BASE_URL#MODEL` names; settings may follow:
    `#MODEL,timeout_s=120,passages=5`.

    Its key is in the environment variable RAG_READER_API_KEY, see `ModelServer`.

    Args:
        source: such as "openai:http://localhost:11434/v1#qwen3:8b".

    Raises:
        ConfigError: the source names no address or no model, or a setting is wrong.
        MissingDependencyError: the package `openai` is not installed.
    """
    spec = parse_reader(source)
    if not isinstance(spec, ServedModel):
        raise ConfigError(
            f"{str(source)!r} names no language model, expected openai:BASE_URL#MODEL",
            hint=f"for example {KIND.example}",
        )
    return Endpoint(spec)


class Endpoint:
    """Completes chats over HTTP, see `ModelServer`.

    Attributes:
        takes_schemas: True until a server refuses or ignores a schema.
    """

    is_remote = True

    def __init__(self, spec: ServedModel) -> None:
        address = ModelAddress(spec.base_url, spec.model)
        self._server = ModelServer(address, KIND, timeout_s=spec.timeout_s, retries=spec.retries)
        self.settings = spec
        self.name = self._server.name
        self.takes_schemas = True
        self._model = spec.model
        self._more: dict[str, Any] = {"logprobs": True}

    def fits(self, messages: Sequence[dict[str, str]], max_tokens: int) -> bool:
        """True: only the endpoint knows its context window, and it refuses longer prompts."""
        return True

    def complete(
        self,
        messages: Sequence[dict[str, str]],
        max_tokens: int,
        schema: Mapping[str, Any] | None = None,
        on_text: TextSink | None = None,
    ) -> Completion:
        """The reply to the messages, at temperature 0; errors state what to do.

        Args:
            schema: JSON schema of the reply, for endpoints that force replies into one; others
                reply as the messages ask.
            on_text: gets the reply piece by piece as it comes.
        """
        more = dict(self._more)
        if schema is not None and self.takes_schemas:
            reply_schema = {"name": "reply", "schema": schema, "strict": True}
            more["response_format"] = {"type": "json_schema", "json_schema": reply_schema}
        request = {
            "model": self._model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": 0,
            **more,
        }
        try:
            text, tokens = self._server.run(self._replied(request, on_text))
        except (self._server.api.OpenAIError, *_ODD) as error:
            if self._more and "logprob" in str(error):  # the endpoint refuses this parameter
                self._more = {}
                return self.complete(messages, max_tokens, schema, on_text)
            if "response_format" in more and re.search("response_format|schema", str(error)):
                self.takes_schemas = False
                return self.complete(messages, max_tokens, None, on_text)
            status, reason, hint = self._server.explain(error)
            kind = ReaderError if status in _REFUSED else EndpointError
            raise kind(reason, hint=hint) from error
        if not isinstance(text, str):
            raise ReaderError(f"{self.name}: the reply holds no text", hint="choose a chat model")
        if "response_format" in more and not text.lstrip().startswith("{"):
            # The server ignores what it does not know.
            self.takes_schemas = False
        return Completion(text, tokens)

    async def _replied(
        self, request: Mapping[str, Any], on_text: TextSink | None
    ) -> tuple[object, Tokens]:
        """The text and the tokens of a reply."""
        create = self._server.client.chat.completions.create
        if on_text is not None:
            async with await create(stream=True, **request) as chunks:
                return await self._streamed(chunks, on_text)
        (choice,) = (await create(**request)).choices[:1]
        return choice.message.content, _tokens(choice)

    async def _streamed(self, chunks: AsyncIterable[Any], on_text: TextSink) -> tuple[str, Tokens]:
        """The text and the tokens of a reply that comes in pieces.

        Raises:
            EndpointError: it broke off.
        """
        pieces = list[str]()
        tokens = list[tuple[bytes, float]]()
        is_whole = False
        fault = ""
        try:
            async for chunk in chunks:
                for choice in chunk.choices[:1]:
                    if choice.delta.content:
                        pieces.append(choice.delta.content)
                        on_text(choice.delta.content)
                    tokens += _tokens(choice)
                    is_whole = is_whole or choice.finish_reason is not None
        except (self._server.api.OpenAIError, *_ODD):
            raise
        except Exception as error:
            # Of the transport, whose package depends on the version of `openai`.
            fault = f" ({error})"
        if not is_whole:
            raise EndpointError(
                f"{self.name}: the reply broke off{fault}",
                hint="the log of the model server has the reason; the address must be that of an "
                "OpenAI-compatible server, most end in /v1",
            )
        return "".join(pieces), tuple(tokens)


def _tokens(choice: Any) -> Tokens:
    """The tokens of a choice with their log-probabilities, if the server gives them."""
    content = getattr(getattr(choice, "logprobs", None), "content", None) or ()
    tokens = []
    for token in content:
        # A token may be a part of a character.
        characters = getattr(token, "bytes", None)
        piece = str(token.token).encode() if characters is None else bytes(characters)
        tokens.append((piece, float(token.logprob)))
    return tuple(tokens)
