"""What names a language model as a reader, with its settings: a text on the command line, an object
in Python.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from rag.config import Config, load_config, parse_overrides
from rag.runtime.model_server import SCHEME, ModelAddress, ServedKind, is_served
from readers.llm.checking import Unsupported
from readers.llm.reply import Style

KIND = ServedKind(
    role="a reader",
    what="language model",
    example="openai:http://localhost:11434/v1#qwen3:8b",
    key_variable="RAG_READER_API_KEY",
    protocol="chat",
    too_long="question and passages may not fit its window: show fewer, as in #MODEL,passages=5",
)
_NAMES = {"model", "base_url"}
SHIPPED = "shipped"
WORDS = "words"


class LanguageModel(Config):
    """A language model in a folder as a reader, on the command line `--reader FOLDER#passages=5`.

    Attributes:
        model: folder or hub name.
        passages: maximum number of passages in the prompt, the best first.
        answer_tokens: maximum length of a reply.
        style: "short" answers in a few words, "cited" in sentences that cite a passage for each
            statement.
        timeout_s: longest time for a request to an address.
        retries: repetitions of a failed request to an address, with growing pauses.
        parallel: questions that an address is asked at the same time.
        verifier: what judges each sentence of the style "cited" by the passages that it cites:
            "shipped" for the verifier in the package, which knows English (in other languages words
            are compared), a folder, or "words" to compare words.
        unsupported: whether sentences that their passages do not support are marked or dropped.
    """

    model: str = Field(min_length=1)
    passages: int = Field(default=3, ge=1)
    answer_tokens: int = Field(default=128, ge=8)
    style: Style = "short"
    timeout_s: float = Field(default=60.0, gt=0)
    retries: int = Field(default=2, ge=0)
    parallel: int = Field(default=4, ge=1)
    verifier: str = Field(default=SHIPPED, min_length=1)
    unsupported: Unsupported = "mark"

    @property
    def settings(self) -> dict[str, object]:
        """All but what names the model."""
        return self.model_dump(mode="json", exclude=_NAMES)

    def changed_settings(self) -> str:
        """The settings that are not the defaults, as the command line states them."""
        changed = self.model_dump(mode="json", exclude=_NAMES, exclude_defaults=True)
        return ",".join(f"{name}={value}" for name, value in changed.items())

    def __str__(self) -> str:
        """The form that `parse_reader` reads.

        >>> str(LanguageModel(model="models/smollm2", passages=5, style="cited"))
        'models/smollm2#passages=5,style=cited'
        """
        return f"{self.model}#{self.changed_settings()}".rstrip("#")


class ServedModel(LanguageModel):
    """A language model behind an OpenAI-compatible address, on the command line
    `--reader openai:BASE_URL#MODEL,passages=5`.

    Its key is in the environment variable RAG_READER_API_KEY.

    Attributes:
        model: what the server calls it.
        base_url: address of the server; most end in /v1.

    Raises:
        ConfigError: there is no address over HTTP, or it holds a password.
    """

    base_url: str

    @model_validator(mode="after")
    def _check_address(self) -> ServedModel:
        ModelAddress.parse(f"{SCHEME}{self.base_url}#{self.model}", KIND)
        return self

    def __str__(self) -> str:
        """The form that `parse_reader` reads.

        >>> str(ServedModel(base_url="http://localhost:11434/v1", model="qwen3:8b", passages=1))
        'openai:http://localhost:11434/v1#qwen3:8b,passages=1'
        """
        return f"{SCHEME}{self.base_url}#{self.model},{self.changed_settings()}".rstrip(",")


def parse_reader(source: str | Path | LanguageModel) -> LanguageModel:
    """What a text names; an object is what it is.

    A name without settings may be that of a reader of any kind, which its files say.

    Raises:
        ConfigError: it names no model, or a setting is unknown or wrong.
    """
    if isinstance(source, LanguageModel):
        return source
    text = str(source)
    if is_served(text):
        address = ModelAddress.parse(text, KIND)
        names = {"model": address.model, "base_url": address.base_url}
        return load_config(ServedModel, overrides={**names, **address.settings})
    model, mark, settings_text = text.partition("#")
    if not mark or Path(text).exists():
        return load_config(LanguageModel, overrides={"model": text})
    settings = parse_overrides(settings_text.split(","))
    return load_config(LanguageModel, overrides={"model": model, **settings})
