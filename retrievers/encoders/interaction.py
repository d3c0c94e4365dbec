"""Text settings of encoders with one vector per token: [MASK] padding of questions, skipped punctuation."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rag.core.errors import ArtifactError, ConfigError

MASKS = ("[MASK]", "<mask>")


@dataclass(frozen=True, slots=True)
class Interaction:
    """The settings of late interaction; markers of questions and passages are their prefixes.

    Attributes:
        query_tokens: maximum question length, marker and special tokens included; the rest is truncated.
        expanded: pad shorter questions with [MASK] tokens, whose vectors count like the others.
        attended: all tokens see those masks; otherwise only the masks' own vectors depend on them.
        skipped: tokens of passages that are read, but whose vectors are left out.
        marked: prefixes begin with a token of the vocabulary that the tokenizer would take apart.

    Source:
        Khattab and Zaharia 2020, "ColBERT: Efficient and Effective Passage Search via Contextualized Late
        Interaction over BERT", section 3.2.

    Example:
        >>> Interaction(24, skipped=(".",)).describe()
        'questions of 24 tokens, filled with masks that are not seen; passages without .'
    """

    query_tokens: int = 32
    expanded: bool = True
    attended: bool = False
    skipped: tuple[str, ...] = tuple(string.punctuation)
    marked: bool = True

    @classmethod
    def from_pylate(cls, config: Mapping[str, Any]) -> Interaction:
        """From a PyLate folder's `config_sentence_transformers.json`."""
        skipped = config.get("skiplist_words")
        return cls(
            query_tokens=int(config.get("query_length") or 32),
            expanded=config.get("do_query_expansion") is not False,
            attended=bool(config.get("attend_to_expansion_tokens")),
            skipped=tuple(string.punctuation if skipped is None else skipped),
        )

    @classmethod
    def from_modules(
        cls, transformer: Mapping[str, Any], mask: Mapping[str, Any], *, limit: int
    ) -> Interaction:
        """From the modules Transformer and MultiVectorMask of sentence-transformers' `MultiVectorEncoder`.

        Args:
            transformer, mask: their settings.
            limit: maximum length of questions where none is stated.

        Raises:
            ArtifactError: questions are padded, or tokens left out, in a way that is not known here.
        """
        padding = transformer.get("query_expansion") or {}
        odd = {
            "strategy": padding.get("strategy", "fixed") != "fixed",
            "token": padding.get("token") not in (None, *MASKS),
            "skiplist_tasks": list(mask.get("skiplist_tasks") or ["document"]) != ["document"],
            "keep_only_token_ids": bool(mask.get("keep_only_token_ids")),
        }
        if unknown := [f"{name} {({**padding, **mask})[name]!r}" for name, is_odd in odd.items() if is_odd]:
            raise ArtifactError(
                f"late interaction with {', '.join(unknown)} is not known here",
                hint='expected questions of a fixed length, filled with masks ("strategy": "fixed"), or not '
                "filled; tokens may be left out of passages alone, by skiplist_words",
            )
        return cls(
            query_tokens=int(padding.get("length") or transformer.get("query_length") or limit),
            expanded=bool(padding),
            attended=bool(padding.get("attend")),
            skipped=tuple(mask.get("skiplist_words") or ()),
            marked=False,
        )

    @classmethod
    def from_colbert(cls, config: Mapping[str, Any]) -> Interaction:
        """From an original checkpoint's `artifact.metadata`."""
        return cls(
            query_tokens=int(config.get("query_maxlen") or 32),
            attended=bool(config.get("attend_to_mask_tokens")),
            skipped=tuple(string.punctuation) if config.get("mask_punctuation", True) else (),
        )

    def describe(self) -> str:
        """A description; two encoders with equal descriptions and weights make the same vectors."""
        seen = "" if self.attended else "not "
        filled = f", filled with masks that are {seen}seen" if self.expanded else ""
        skipped = f" without {''.join(self.skipped)}" if self.skipped else ""
        return f"questions of {self.query_tokens} tokens{filled}; passages{skipped}"


class TokenRules:
    """An `Interaction` expressed in the token ids of one tokenizer.

    Args:
        how: the settings.
        tokenizer: of the `tokenizers` library.

    Raises:
        ConfigError: questions are to be padded with masks, and the tokenizer has no mask token.
    """

    def __init__(self, how: Interaction, tokenizer: Any) -> None:
        self.query_tokens = how.query_tokens
        mask = next((i for i in map(tokenizer.token_to_id, MASKS) if i is not None), None)
        if how.expanded and mask is None:
            raise ConfigError(
                "the tokenizer has no mask token to pad questions with",
                hint="use an encoder that was trained with masks",
            )
        self._fill = mask if how.expanded else None
        self._unseen = None if how.attended else self._fill
        skipped = [token for token in map(tokenizer.token_to_id, how.skipped) if token is not None]
        self._skipped = torch.tensor(sorted(skipped), dtype=torch.int64)

    def question(self, ids: Sequence[int]) -> list[int]:
        """A question's ids with padding."""
        missing = 0 if self._fill is None else self.query_tokens - len(ids)
        return [*ids, *[self._fill or 0] * missing]

    def seen(self, ids: Tensor, mask: Tensor, *, question: bool) -> Tensor:
        """(n, L): the tokens of `mask` that others attend to."""
        return mask * (ids != self._unseen) if question and self._unseen is not None else mask

    def kept(self, ids: Tensor, mask: Tensor, *, question: bool) -> Tensor:
        """(n, L): the tokens of `mask` whose vectors count."""
        return mask if question else mask * ~torch.isin(ids, self._skipped.to(ids.device))
