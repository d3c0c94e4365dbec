"""Sentences with masked words, drawn from a corpus, and the network that fills them in beside a
passage.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from indexers.passages import PassageStore
from rag.core.arrays import Int64
from rag.core.errors import ConfigError, DataError
from rag.core.log import get_logger
from rag.core.types import Passage
from rag.data.salient import CharSpans, TitleHashes, find_dates, find_names
from rag.data.selection import check_usable
from rag.data.sentences import split_sentences
from rag.runtime.backbone import (
    attention_for,
    load_network,
    loading,
    run_backbone,
    set_dropout,
    transformers_config,
)
from rag.runtime.model_files import (
    model_folder,
    position_limit,
    save_tokenizer,
    transformers_tokenizer,
)
from rag.runtime.seeds import generator
from readers.extractive.layout import pair_template, row_tensors
from retrievers.examples.batches import Epochs

log = get_logger(__name__)

_MOST_MASKED = 10  # tokens of a sentence, as published
_SAMPLE = 500  # passages looked at before training
_FEW = 0.3  # a smaller share with something to mask is warned about
_RUN = 5  # words in a row that two texts of a document hardly share by chance
_TRIES = 100  # draws of other passages for a batch whose own have nothing to mask


@dataclass(frozen=True, slots=True)
class MaskedSentence:
    """A sentence to fill in.

    Attributes:
        text: the sentence without masks.
        query: the sentence with the retriever's mask tokens, as it is searched for.
        ids: (L,) int64 tokens with masks, for the reader; no special tokens around them.
        places: (T,) positions of the masks in `ids`.
        targets: (T,) the original tokens at `places`.
        words: what was masked.
        title: title of its passage.
        rest: text of its passage without the sentence.
        after: text of the next passage in the corpus: on a similar subject, but seldom any help.
    """

    text: str
    query: str
    ids: Int64
    places: Int64
    targets: Int64
    words: str = ""
    title: str = ""
    rest: str = ""
    after: str = ""

    def stands_in(self, passage: Passage) -> bool:
        """Whether a passage holds the sentence, so that the masked words could be copied from it.

        Words are compared without case, blanks and punctuation. Of a passage of the same title, or
        without one, a part of the sentence is enough that another split may have left there: five
        words in a row, or two where the passage begins or ends.
        """
        words, others = _words(self.text), _words(passage.text)
        if _holds(others, words):
            return True
        if passage.title and _words(passage.title) != _words(self.title):
            return False
        runs = (words[first : first + _RUN] for first in range(len(words) - _RUN + 1))
        if any(_holds(others, run) for run in runs):
            return True
        lengths = range(2, min(len(words), len(others)) + 1)
        return any(others[-n:] == words[:n] or others[:n] == words[-n:] for n in lengths)


class SentenceBatches:
    """The batches of a run: one masked sentence per passage; the arguments alone determine
    `self[number]`.

    A name or a date is masked, which a passage may help to predict.

    Args:
        tokenizer: the reader's tokenizer; it must be a fast one with a mask token.
        titles: hashes of the corpus's titles, by which names are found.
        sentence_tokens: maximum length of a sentence; longer ones are truncated.
        min_words: shorter sentences are passed over.
        examples: gives the passages of every batch; those without anything to mask are left out.
        rows: rows of the store that `examples` draws from; None means all.
        recurring: prefer to mask names and dates that occur again in the rest of the passage.
        mask_token: the retriever's mask token, for queries; None means that of `tokenizer`.

    Raises:
        DataError: no passage of a random sample has anything to mask.

    Source:
        Guu et al. 2020, "REALM", section 3.4 (salient spans).
    """

    def __init__(
        self,
        store: PassageStore,
        tokenizer: Any,
        titles: TitleHashes,
        examples: Epochs,
        *,
        sentence_tokens: int,
        min_words: int,
        rows: Int64 | None = None,
        recurring: bool = False,
        mask_token: str | None = None,
    ) -> None:
        self._rows = np.arange(len(store)) if rows is None else rows
        self._recurring, self._mask_token = recurring, mask_token or tokenizer.mask_token
        self._store, self._tokenizer, self._titles = store, tokenizer, titles
        self._sentence_tokens, self._min_words, self._examples = (
            sentence_tokens,
            min_words,
            examples,
        )
        seed = examples.seed
        sample = self._random_rows(_SAMPLE, generator(seed, 52))
        usable = len(self._draw(sample, generator(seed, 53)))
        what = "passages have a sentence with anything to mask"
        hint = "give passages with names, dates or titles"
        self.usable = check_usable(usable, len(sample), what, few=_FEW, hint=hint)

    def _random_rows(self, count: int, draw: np.random.Generator) -> Int64:
        """Some of the rows, ascending."""
        chosen = draw.choice(len(self._rows), min(count, len(self._rows)), replace=False)
        return np.sort(self._rows[chosen])

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, number: int) -> list[MaskedSentence]:
        """Batch `number`; made of other passages if none of its own has anything to mask.

        Raises:
            DataError: the other passages have nothing to mask either.
        """
        rows, draw = self._rows[self._examples[number]], generator(self._examples.seed, 51, number)
        for _ in range(_TRIES):
            if drawn := self._draw(rows, draw):
                return drawn
            rows = self._random_rows(len(rows), draw)
        raise DataError(
            f"batch {number}: nothing to mask in {_TRIES} draws of {len(rows)} passages",
            hint="raise batch_size, or give passages with names, dates or titles",
        )

    def _draw(self, rows: Int64, draw: np.random.Generator) -> list[MaskedSentence]:
        """One masked sentence of each of these passages that has anything to mask."""
        passages = self._store.get_many(rows)
        following = self._store.get_many((rows + 1) % len(self._store))
        drawn = []
        for passage, after in zip(passages, following, strict=True):
            sentences = [
                s for s in split_sentences(passage.text) if len(s.split()) >= self._min_words
            ]
            for number in draw.permutation(len(sentences)).tolist():
                sentence = sentences[number]
                rest = passage.text.replace(sentence, " ", 1)
                spans = _without_overlaps(find_dates(sentence) + find_names(sentence, self._titles))
                if self._recurring:
                    spans = [span for span in spans if sentence[slice(*span)] in rest] or spans
                if not spans:
                    continue
                masked = self._mask(sentence, spans[int(draw.integers(len(spans)))])
                if masked is not None:
                    drawn.append(replace(masked, title=passage.title, rest=rest, after=after.text))
                    break
        return drawn

    def _mask(self, text: str, span: tuple[int, int]) -> MaskedSentence | None:
        """None if the sentence has too many masks or they lie in the part that is truncated."""
        encoded = self._tokenizer(
            text,
            add_special_tokens=False,
            return_offsets_mapping=True,
            truncation=True,
            max_length=self._sentence_tokens,
        )
        (start, stop), offsets = span, np.array(encoded["offset_mapping"]).reshape(-1, 2)
        ids, inside = (
            np.array(encoded["input_ids"]),
            (offsets[:, 0] < stop) & (offsets[:, 1] > start),
        )
        places = np.flatnonzero(inside)
        if not 0 < len(places) <= _MOST_MASKED:
            return None
        query = text[:start] + " ".join([self._mask_token] * len(places)) + text[stop:]
        masked = np.where(inside, self._tokenizer.mask_token_id, ids)
        return MaskedSentence(text, query, masked, places, ids[places], text[start:stop])


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())


def _holds(words: Sequence[str], run: Sequence[str]) -> bool:
    """Whether `run` occurs in the words as a contiguous sequence."""
    return not run or f" {' '.join(run)} " in f" {' '.join(words)} "


def _without_overlaps(spans: CharSpans) -> CharSpans:
    """The spans without those that overlap an earlier one."""
    separate: CharSpans = []
    for start, end in sorted(spans):
        if not separate or start >= separate[-1][1]:
            separate.append((start, end))
    return separate


TokenLists = Sequence[Sequence[Sequence[int]]]
"""For each of B sentences the token ids of K passages; an empty list is the null document."""


class Filled(NamedTuple):
    """What B sentences' masked words are worth beside K passages each, for T masks.

    Attributes:
        logp: (B, K, T) log p(y_t | x, z), 0 after a sentence's last mask.
        objective: (B, K, T) what the reader itself is trained to raise.
    """

    logp: Tensor
    objective: Tensor


class Filler(nn.Module):
    """A network that fills in a sentence's masked words beside a passage; both have at most
    `max_tokens` together, and passages are truncated. Calling it gives `Filled.logp` from the
    arguments of `read`.
    """

    def __init__(self, model: Any, tokenizer: Any, *, max_tokens: int) -> None:
        super().__init__()
        self.model, self.tokenizer, self._max_tokens = model, tokenizer, max_tokens
        self._mark = pair_template(tokenizer)

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of passages, as `read` takes them."""
        encoded = self.tokenizer(list(texts), add_special_tokens=False, verbose=False)  # cut later
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def read(self, sentences: Sequence[MaskedSentence], passages: TokenLists) -> Filled:
        """What the masked words are worth; the objective is the log-probability."""
        logp = self(sentences, passages)
        return Filled(logp, logp)

    def save(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """Write a folder that `rag train realm` starts from; `weights` are fp32, by parameter
        name.
        """
        raise NotImplementedError


class MaskedReader(Filler):
    """A masked language model of transformers that reads a sentence and a passage together."""

    def __init__(self, model: Any, tokenizer: Any, *, max_tokens: int) -> None:
        if tokenizer.mask_token_id is None or not hasattr(model, "cls") | hasattr(model, "lm_head"):
            raise ConfigError(
                f"{type(model).__name__} has no mask token, or no masked language modelling head",
                hint="use a BERT-like or RoBERTa-like encoder",
            )
        super().__init__(model, tokenizer, max_tokens=max_tokens)

    @classmethod
    def load(
        cls,
        name_or_path: str | Path,
        *,
        max_tokens: int,
        dropout: float | None = None,
        device: str = "cpu",
        fresh: bool = False,
    ) -> MaskedReader:
        """Load an encoder; one without a masked language modelling head gets a new one, with a
        warning unless that is expected (`fresh`). Raises ArtifactError if there is no such
        encoder."""
        from transformers import AutoModelForMaskedLM

        folder = model_folder(name_or_path)
        config = transformers_config(folder)
        set_dropout(config, dropout)
        with loading(f"{name_or_path}: no masked language model there"):
            model, new = load_network(
                AutoModelForMaskedLM,
                folder,
                config,
                headless=True,
                dtype=torch.float32,
                attn_implementation=attention_for(config, device),
            )
        tokenizer = transformers_tokenizer(folder)
        limit = position_limit(config.to_dict())
        if max_tokens > limit:
            raise ConfigError(
                f"rows have {max_tokens} tokens, {name_or_path} reads at most {limit}",
                hint="lower joint_tokens",
            )
        if not fresh and any(name.endswith("dense.weight") for name in new):
            log.warning(
                "%s has no masked language modelling head, and gets a new one: until it is trained, passages "
                "do not help and the retriever learns noise (watch utility); give a masked language model, "
                "or train one with `rag train mlm`",
                name_or_path,
            )
        return cls(model.to(device).train(), tokenizer, max_tokens=max_tokens)

    def save(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """See `Filler`; transformers opens the folder with `AutoModelForMaskedLM`."""
        self.float().load_state_dict(dict(weights), strict=False)
        self.model.save_pretrained(folder)
        save_tokenizer(self.tokenizer, folder)

    def forward(self, sentences: Sequence[MaskedSentence], passages: TokenLists) -> Tensor:
        """(B, K, T) log p(y_t | x, z) of the masked tokens, 0 after a sentence's last one; see
        `read`.
        """
        mark, device = self._mark, next(self.parameters()).device
        rows = []
        for sentence, listed in zip(sentences, passages, strict=True):
            room = max(0, self._max_tokens - mark.size(sentence.ids))
            rows += [mark.row(sentence.ids, None, passage[:room]) for passage in listed]
        ids, mask, types, _ = row_tensors(mark, rows)
        base = getattr(self.model, self.model.base_model_prefix)
        hidden = run_backbone(base, ids.to(device), mask.to(device), types.to(device))[
            0
        ]  # (R, L, H)
        counts = [len(sentence.places) for sentence in sentences]
        owner, slot = np.nonzero(np.arange(max(counts)) < np.array(counts)[:, None])  # (N,) masks
        place = np.concatenate([sentence.places for sentence in sentences]) + len(mark.before)
        target = np.concatenate([sentence.targets for sentence in sentences])
        n_passages = len(passages[0])  # K
        b, t, position, original = (
            torch.from_numpy(np.repeat(part, n_passages)).to(device)
            for part in (owner, slot, place, target)
        )  # (N·K,) each mask beside each passage: its sentence, number, position in a row and token
        k = torch.arange(n_passages, device=device).repeat(len(owner))
        fill_in = self.model.cls if hasattr(self.model, "cls") else self.model.lm_head
        logp = fill_in(hidden[b * n_passages + k, position]).float().log_softmax(-1)  # (N·K, V)
        values = logp.gather(1, original[:, None])[:, 0]
        return values.new_zeros(len(sentences), n_passages, max(counts)).index_put(
            (b, k, t), values
        )
