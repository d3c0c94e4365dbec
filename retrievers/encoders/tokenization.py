"""Texts to token ids, without padding; the Rust tokenizer of the model's folder."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, normalizers

from rag.core.errors import ConfigError
from rag.core.files import read_json
from rag.core.types import Query
from rag.runtime.model_files import folder_tokenizer
from retrievers.encoders.layout import render_queries
from retrievers.encoders.settings import MASKS, EncoderSettings


class TextTokenizer:
    """Cuts texts into at most `settings.max_length` tokens, special tokens included.

    For encoders with one vector per token, questions get their padding.

    Padding and truncation that the folder's tokenizer.json may state are replaced: they belong to other uses.

    Attributes:
        cut: numbers of passages and of questions that were truncated so far.
        question_limit: maximum tokens of a question, special tokens included.
    """

    def __init__(self, settings: EncoderSettings) -> None:
        self.cut = [0, 0]
        how = settings.interaction
        self.question_limit = settings.max_length if how is None else how.query_tokens
        self._passages = self._queries = marked_tokenizer(settings)
        if self.question_limit != settings.max_length:
            self._queries = marked_tokenizer(settings)
            self._queries.enable_truncation(self.question_limit, strategy="longest_first")
        self._passages.enable_truncation(settings.max_length, strategy="longest_first")
        self._fill = mask_id(self._queries) if how is not None and how.expanded else None

    def __call__(self, first: Sequence[str], second: Sequence[str] | None = None) -> list[list[int]]:
        """Token ids of each passage, or of each pair; a pair whose second segment is empty is one segment."""
        encodings = _encode(self._passages, first, second)
        self.cut[0] += sum(bool(each.overflowing) for each in encodings)
        return [each.ids for each in encodings]

    def queries(self, queries: Sequence[Query], prefix: str = "") -> list[list[int]]:
        """Token ids of questions, alone or with passages; see `render_queries`."""
        encodings = _encode(self._queries, *render_queries(queries, prefix=prefix))
        pairs = zip(encodings, queries, strict=True)
        self.cut[1] += sum(bool(each.overflowing) and not query.passages for each, query in pairs)
        fill = [] if self._fill is None else [self._fill]
        return [each.ids + fill * (self.question_limit - len(each.ids)) for each in encodings]


def _encode(tokenizer: Any, first: Sequence[str], second: Sequence[str] | None) -> list[Any]:
    inputs: list[Any] = list(first)
    if second is not None:
        inputs = [(a, b) if b else a for a, b in zip(first, second, strict=True)]
    encodings: list[Any] = tokenizer.encode_batch_fast(inputs)
    return encodings


def marked_tokenizer(settings: EncoderSettings) -> Any:
    """The tokenizer of an encoder, in which late interaction's markers stay whole."""
    tokenizer = open_tokenizer(settings.weights_dir)
    if settings.interaction is not None and settings.interaction.marked:
        for prefix in filter(str.strip, (settings.query_prefix, settings.passage_prefix)):
            for marker in (prefix, prefix.split()[0]):
                if tokenizer.token_to_id(marker) is not None:
                    tokenizer.add_special_tokens([AddedToken(marker, normalized=False)])
                    break
    return tokenizer


def counting_tokens(folder: Path) -> Callable[[str], int]:
    """Counts the tokens of a text, without special ones."""
    tokenizer = open_tokenizer(folder)
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def mask_token(folder: Path) -> str:
    """The mask token of this model, as text; see `mask_id`."""
    tokenizer = open_tokenizer(folder)
    return str(tokenizer.id_to_token(mask_id(tokenizer)))


def mask_id(tokenizer: Any) -> int:
    """The mask token of a tokenizer."""
    for token in MASKS:
        if tokenizer.token_to_id(token) is not None:
            return int(tokenizer.token_to_id(token))
    raise ConfigError(
        f"the tokenizer has no mask token, expected {' or '.join(MASKS)}",
        hint="use an encoder that was trained with masks",
    )


def open_tokenizer(folder: Path) -> Any:
    """The tokenizer of an encoder's folder, without padding and truncation.

    It lower-cases first where the folder says so (`do_lower_case` of old sentence-transformers' folders).
    """
    tokenizer = folder_tokenizer(folder)
    stated: Any = next(map(read_json, sorted(folder.glob("sentence_*_config.json"))), {})
    if stated.get("do_lower_case"):
        own = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])
    return tokenizer
