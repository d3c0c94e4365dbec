"""Text settings of encoders with one vector per token: markers, [MASK] padding of questions, punctuation."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rag.core.errors import ArtifactError, ConfigError
from rag.core.log import get_logger

MASKS = ("[MASK]", "<mask>")


@dataclass(frozen=True, slots=True)
class Interaction:
    """The settings of late interaction.

    Attributes:
        query_tokens: maximum question length, marker and special tokens included; the rest is truncated.
        expanded: pad shorter questions with [MASK] tokens, whose vectors count like the others.
        attended: all tokens see those masks; otherwise only the masks' own vectors depend on them.
        query_marker: a token of the vocabulary that follows [CLS] in questions; "" for none.
        passage_marker: the same in passages.
        skipped: tokens of passages that are read, but whose vectors are left out.

    Source:
        Khattab and Zaharia 2020, "ColBERT: Efficient and Effective Passage Search via Contextualized Late
        Interaction over BERT", section 3.2.

    Example:
        >>> Interaction.from_pylate(Interaction(24).to_pylate()) == Interaction(24)
        True
        >>> Interaction(24, skipped=(".",)).describe()
        'questions [unused0] of 24 tokens, filled with masks that are not seen; passages [unused1] without .'
    """

    query_tokens: int = 32
    expanded: bool = True
    attended: bool = False
    query_marker: str = "[unused0]"
    passage_marker: str = "[unused1]"
    skipped: tuple[str, ...] = tuple(string.punctuation)

    @classmethod
    def from_pylate(cls, config: Mapping[str, Any]) -> Interaction:
        """From a PyLate folder's `config_sentence_transformers.json`."""
        known = {name: config[key] for name, key in _PYLATE.items() if config.get(key) is not None}
        markers = {"query_marker": "[Q] ", "passage_marker": "[D] "}
        skipped = known.pop("skipped", string.punctuation)
        return cls(**{**markers, **known}, skipped=tuple(skipped))

    @classmethod
    def from_modules(
        cls, transformer: Mapping[str, Any], mask: Mapping[str, Any], *, limit: int
    ) -> Interaction:
        """From the modules Transformer and MultiVectorMask of sentence-transformers' `MultiVectorEncoder`.

        Args:
            transformer, mask: their settings. Markers are prompts there.
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
        if found := [f"{name} {({**padding, **mask})[name]!r}" for name, is_odd in odd.items() if is_odd]:
            raise ArtifactError(
                f"late interaction with {', '.join(found)} is not known here",
                hint='expected questions of a fixed length, filled with masks ("strategy": "fixed"), or not '
                "filled; tokens may be left out of passages alone, by skiplist_words",
            )
        return cls(
            query_tokens=int(padding.get("length") or transformer.get("query_length") or limit),
            expanded=bool(padding),
            attended=bool(padding.get("attend")),
            query_marker="",
            passage_marker="",
            skipped=tuple(mask.get("skiplist_words") or ()),
        )

    @classmethod
    def from_colbert(cls, config: Mapping[str, Any]) -> Interaction:
        """From an original checkpoint's `artifact.metadata`."""
        return cls(
            query_tokens=int(config.get("query_maxlen") or 32),
            attended=bool(config.get("attend_to_mask_tokens")),
            query_marker=str(config.get("query_token_id") or "[unused0]"),
            passage_marker=str(config.get("doc_token_id") or "[unused1]"),
            skipped=tuple(string.punctuation) if config.get("mask_punctuation", True) else (),
        )

    def to_pylate(self) -> dict[str, Any]:
        """Inverse of `from_pylate`."""
        return {key: getattr(self, name) for name, key in _PYLATE.items()} | {
            "skiplist_words": list(self.skipped)
        }

    def describe(self) -> str:
        """A description; two encoders with equal descriptions and weights make the same vectors."""
        seen = "" if self.attended else "not "
        filled = f", filled with masks that are {seen}seen" if self.expanded else ""
        skipped = f" without {''.join(self.skipped)}" if self.skipped else ""
        question, passage = (f" {m.strip()}" if m else "" for m in (self.query_marker, self.passage_marker))
        return f"questions{question} of {self.query_tokens} tokens{filled}; passages{passage}{skipped}"


_PYLATE = {
    "query_tokens": "query_length",
    "expanded": "do_query_expansion",
    "attended": "attend_to_expansion_tokens",
    "query_marker": "query_prefix",
    "passage_marker": "document_prefix",
    "skipped": "skiplist_words",
}


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
        markers = {text: tokenizer.token_to_id(text) for text in (how.query_marker, how.passage_marker)}
        if missing := [text for text, token in markers.items() if text and token is None]:
            get_logger(__name__).warning(
                "the tokenizer has no %s: texts are not marked as question or passage",
                " and no ".join(missing),
            )
        self.query_marker, self.passage_marker = markers[how.query_marker], markers[how.passage_marker]
        mask = next((i for i in map(tokenizer.token_to_id, MASKS) if i is not None), None)
        if how.expanded and mask is None:
            raise ConfigError(
                "the tokenizer has no mask token to pad questions with",
                hint="use an encoder that was trained with masks, or set do_query_expansion to false",
            )
        self._fill = mask if how.expanded else None
        self._unseen = None if how.attended else self._fill
        skipped = [token for token in map(tokenizer.token_to_id, how.skipped) if token is not None]
        self._skipped = torch.tensor(sorted(skipped), dtype=torch.int64)

    def question(self, ids: Sequence[int]) -> list[int]:
        """A question's ids with marker and padding."""
        marked = _marked(ids, self.query_marker)
        if self._fill is None:
            return marked
        return marked + [self._fill] * (self.query_tokens - len(marked))

    def passage(self, ids: Sequence[int]) -> list[int]:
        """A passage's ids with marker."""
        return _marked(ids, self.passage_marker)

    def seen(self, ids: Tensor, mask: Tensor, *, question: bool) -> Tensor:
        """(n, L): the tokens of `mask` that others attend to."""
        return mask * (ids != self._unseen) if question and self._unseen is not None else mask

    def kept(self, ids: Tensor, mask: Tensor, *, question: bool) -> Tensor:
        """(n, L): the tokens of `mask` whose vectors count."""
        return mask if question else mask * ~torch.isin(ids, self._skipped.to(ids.device))


def _marked(ids: Sequence[int], marker: int | None) -> list[int]:
    return list(ids) if marker is None else [*ids[:1], marker, *ids[1:]]
