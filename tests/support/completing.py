"""A language model whose replies a test makes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from readers.llm.prompt import Completion
from readers.protocols import TextSink


class MadeModel:
    """Replies to what the user's message says."""

    name = "made"
    is_remote = False
    takes_schemas = False

    def __init__(self, reply: Callable[[str], Completion]) -> None:
        self._reply = reply

    def complete(
        self,
        messages: Sequence[dict[str, str]],
        max_tokens: int,
        schema: Mapping[str, Any] | None = None,
        on_text: TextSink | None = None,
    ) -> Completion:
        return self._reply(messages[-1]["content"])

    def fits(self, messages: Sequence[dict[str, str]], max_tokens: int) -> bool:
        return True
