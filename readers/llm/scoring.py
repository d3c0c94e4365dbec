"""Log-probabilities of given texts from a model behind an OpenAI-compatible address."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from rag.core.errors import ReaderError
from readers.llm.endpoint import Endpoint, open_endpoint

_HINT = (
    "use a server that returns log-probabilities of the prompt by /completions with echo and logprobs (vLLM "
    "does; Ollama and most hosted chat services do not), or a model in a local folder"
)


class EndpointScorer:
    """Mean log-probability of continuations, by `/completions` with `echo` and `logprobs`.

    Args:
        source: as for `open_endpoint`: openai:BASE_URL#MODEL, perhaps with settings.

    Attributes:
        name: the model and where it runs.
    """

    def __init__(self, source: str) -> None:
        self._endpoint = cast("Endpoint", open_endpoint(source).completer)
        self.name = self._endpoint.name

    def score(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[float]:
        """Mean log p(token | everything before it) of each continuation's tokens, in nats.

        Raises:
            ReaderError: the server refuses, or returns no log-probabilities of the given text.
        """
        pairs = list(zip(prompts, continuations, strict=True))
        with ThreadPoolExecutor(self._endpoint.parallel) as pool:
            return list(pool.map(lambda pair: self._one(*pair), pairs))

    def _one(self, prompt: str, continuation: str) -> float:
        found = self._endpoint.echoed(prompt + continuation)
        inside = [
            value
            for place, value in found
            if len(prompt) <= place < len(prompt) + len(continuation) and value is not None
        ]
        if not inside:
            raise ReaderError(
                f"{self.name}: found no log-probabilities of the {len(continuation)} characters to be "
                "scored, expected one for each of their tokens",
                hint=_HINT,
            )
        return sum(inside) / len(inside)
