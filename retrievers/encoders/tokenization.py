"""Texts to token ids, without padding; the Rust tokenizer of the model's folder."""

import re
from collections.abc import Callable, Collection, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from rag.core.errors import ArtifactError, ConfigError
from rag.core.types import Query
from rag.runtime.model_files import open_tokenizer
from retrievers.encoders.interaction import MASKS, TokenRules
from retrievers.encoders.layout import render_queries
from retrievers.encoders.settings import EncoderSettings


class TextTokenizer:
    """Cuts texts into at most `settings.max_length` tokens, special tokens included.

    For encoders with one vector per token, passages and questions get their markers, questions also padding.

    Padding and truncation that the folder's tokenizer.json may state are replaced: they belong to other uses.

    Attributes:
        cut: number of passages that were truncated so far.
        cut_questions: number of questions that were truncated so far.
        question_limit: maximum tokens of a question, special tokens included.
    """

    def __init__(self, settings: EncoderSettings) -> None:
        self.cut = self.cut_questions = 0
        self._special = _special_tokens(settings.weights_dir) if settings.lower_case else None
        self.rules = token_rules(settings)
        self.question_limit = settings.max_length
        limits = [settings.max_length] * 2
        if self.rules is not None:
            markers = self.rules.passage_marker, self.rules.query_marker
            limits[1] = self.question_limit = self.rules.query_tokens
            limits = [limit - (marker is not None) for limit, marker in zip(limits, markers, strict=True)]
        self._passages = _truncating(settings.weights_dir, limits[0])
        self._queries = self._passages if self.rules is None else _truncating(settings.weights_dir, limits[1])

    @property
    def vocabulary(self) -> Collection[str]:
        """All tokens that questions may have."""
        return self._queries.get_vocab()

    def __call__(self, first: Sequence[str], second: Sequence[str] | None = None) -> list[list[int]]:
        """Token ids of each passage, or of each pair; a pair whose second segment is empty is one segment."""
        found = self._encodings(self._passages, first, second)
        self.cut += sum(bool(each.overflowing) for each in found)
        ids = [each.ids for each in found]
        return ids if self.rules is None else [self.rules.passage(each) for each in ids]

    def queries(self, queries: Sequence[Query], prefix: str = "") -> list[list[int]]:
        """Token ids of questions, alone or with passages; see `render_queries`."""
        found = self._encodings(self._queries, *render_queries(queries, prefix=prefix))
        cut = [
            bool(each.overflowing) and not query.passages for each, query in zip(found, queries, strict=True)
        ]
        self.cut_questions += sum(cut)
        ids = [each.ids for each in found]
        return ids if self.rules is None else [self.rules.question(each) for each in ids]

    def _encodings(self, tokenizer: Any, first: Sequence[str], second: Sequence[str] | None) -> list[Any]:
        if self._special is not None:
            first = [_lowered(text, self._special) for text in first]
            second = None if second is None else [_lowered(text, self._special) for text in second]
        inputs: list[Any] = list(first)
        if second is not None:
            inputs = [(a, b) if b else a for a, b in zip(first, second, strict=True)]
        found: list[Any] = tokenizer.encode_batch_fast(inputs)
        return found


def _special_tokens(folder: Path) -> re.Pattern[str]:
    """Matches the special tokens of a tokenizer, where a text or a layout writes them out."""
    added = _load(folder).get_added_tokens_decoder().values()
    return re.compile("|".join(re.escape(token.content) for token in added if token.special) or r"(?!)")


def _lowered(text: str, special: re.Pattern[str]) -> str:
    """A text in lower case but for the special tokens in it.

    Example:
        >>> _lowered("Danube [SEP] A River", re.compile(re.escape("[SEP]")))
        'danube [SEP] a river'
    """
    kept = special.findall(text)
    parts = [part.lower() for part in special.split(text)]
    return "".join(chain.from_iterable(zip_longest(parts, kept, fillvalue="")))


def token_rules(settings: EncoderSettings) -> TokenRules | None:
    """Rules for markers, padding and skipped tokens of late interaction; None if a text has one vector."""
    if settings.interaction is None:
        return None
    return TokenRules(settings.interaction, _load(settings.weights_dir))


def _truncating(folder: Path, limit: int) -> Any:
    tokenizer = _load(folder)
    tokenizer.no_padding()
    tokenizer.enable_truncation(limit, strategy="longest_first")
    return tokenizer


def counting_tokens(folder: Path) -> Callable[[str], int]:
    """Counts the tokens of a text, without special ones."""
    tokenizer = _load(folder)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def separator_id(folder: Path) -> int:
    """The token that ends a segment.

    Raises:
        ArtifactError: the tokenizer of `folder` has none.
    """
    pair = _load(folder).encode("a", "b")
    seconds = [at for at, kind in enumerate(pair.special_tokens_mask) if kind]
    if len(seconds) < 2:
        raise ArtifactError(f"{folder}: its tokenizer puts no separator between segments")
    return int(pair.ids[seconds[-1]])


def mask_token(folder: Path) -> str:
    """The mask token of this model, as text.

    Raises:
        ConfigError: the tokenizer of `folder` has no such token.
    """
    tokenizer = _load(folder)
    for token in MASKS:
        if tokenizer.token_to_id(token) is not None:
            return token
    raise ConfigError(
        f"{folder}: its tokenizer has no mask token, expected {' or '.join(MASKS)}",
        hint="use an encoder that was trained with masks",
    )


def _load(folder: Path) -> Any:
    file = folder / "tokenizer.json"
    if file.is_file():
        return open_tokenizer(file)
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(folder, use_fast=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ArtifactError(f"{folder} has no tokenizer that can be loaded ({error})") from error
    backend = getattr(loaded, "backend_tokenizer", None)
    if backend is None:
        raise ArtifactError(f"{folder} has only a slow tokenizer", hint="save it with its fast tokenizer")
    return Tokenizer.from_str(backend.to_str())
