"""Tokenised texts as flat arrays with character offsets."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rag.core.arrays import Bool, Int32, Int64
from rag.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TokenizedTexts:
    """n tokenised texts, concatenated.

    Attributes:
        ids: (T,) int32 token ids of all texts.
        offsets: (T, 2) int32 character start and end of each token in its text.
        bounds: (n + 1,) int64; text i is the slice bounds[i]:bounds[i + 1].
    """

    ids: Int32
    offsets: Int32
    bounds: Int64

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def lengths(self) -> Int64:
        """Number of tokens of each text, (n,)."""
        return np.diff(self.bounds)

    def tokens(self, index: int) -> Int32:
        """Token ids of text `index`."""
        return self.ids[self.bounds[index] : self.bounds[index + 1]]

    def spans(self, index: int) -> Int32:
        """Character offsets (L, 2) of the tokens of text `index`."""
        return self.offsets[self.bounds[index] : self.bounds[index + 1]]

    def located(
        self, index: int, places: Iterable[tuple[int, int]], most: int | None = None
    ) -> Iterator[tuple[int, int]]:
        """First and last token of each span of characters (end exclusive) in text `index`.

        Spans without a token, and those of more than `most` tokens, are left out.
        """
        offsets = self.spans(index)
        for start, end in places:
            first = int(np.searchsorted(offsets[:, 1], start, side="right"))
            last = int(np.searchsorted(offsets[:, 0], end, side="left")) - 1
            if first <= last < (len(offsets) if most is None else min(len(offsets), first + most)):
                yield first, last


def check_offsets(name: str, tokenizer: Any) -> None:
    """Refuse a tokenizer without character offsets.

    Raises:
        ConfigError: it is not a fast tokenizer.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigError(
            f"{name}: the tokenizer {type(tokenizer).__name__} gives no character offsets",
            hint="save a fast tokenizer (tokenizer.json) beside the weights",
        )


def continuations(tokenizer: Any) -> Bool:
    """(V,) whether a token continues a word ("##ing")."""
    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    return np.array([str(name).startswith("##") for name in names])


def tokenize_texts(tokenizer: Any, texts: Sequence[str]) -> TokenizedTexts:
    """Tokenise without special tokens (a fast Hugging Face tokenizer: offsets are needed)."""
    encoded = tokenizer(
        list(texts), add_special_tokens=False, return_offsets_mapping=True, return_attention_mask=False,
        return_token_type_ids=False, verbose=False,
    ) if texts else {"input_ids": [], "offset_mapping": []}  # fmt: skip
    bounds = np.cumsum([0, *map(len, encoded["input_ids"])], dtype=np.int64)
    ids = np.fromiter((t for row in encoded["input_ids"] for t in row), np.int32, int(bounds[-1]))
    flat = np.fromiter(
        (o for row in encoded["offset_mapping"] for pair in row for o in pair), np.int32, 2 * int(bounds[-1])
    )
    return TokenizedTexts(ids, flat.reshape(-1, 2), bounds)
