"""Sentences with masked words, drawn from a corpus."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from indexers.passages import PassageStore
from rag.core.arrays import Int64
from rag.core.errors import DataError
from rag.core.types import Passage
from rag.data.salient import CharSpans, TitleHashes, find_dates, find_names
from rag.data.selection import check_usable
from rag.data.sentences import split_sentences
from rag.runtime.seeds import Stream, generator
from readers.words import has_phrase
from retrievers.examples.batches import Epochs

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Tokens of a sentence, as published.
_MOST_MASKED = 10
# Passages looked at before training; a smaller share with something to mask is warned about.
_SAMPLE = 500
_FEW = 0.3
# Words in a row that two texts of a document hardly share by chance.
_RUN = 5
# Draws of other passages for a batch whose own have nothing to mask.
_TRIES = 100
_HINT = "give passages with names, dates or titles"


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
        without a title, a part of the sentence is enough that another split may have left there:
        five words in a row, or two where the passage begins or ends.
        """
        words = _words(self.text)
        others = _words(passage.text)
        if not words or has_phrase(others, words):
            return True
        if passage.title and _words(passage.title) != _words(self.title):
            return False
        for first in range(len(words) - _RUN + 1):
            if has_phrase(others, words[first : first + _RUN]):
                return True
        for count in range(2, min(len(words), len(others)) + 1):
            if others[-count:] == words[:count] or others[:count] == words[-count:]:
                return True
        return False

    def could_be_filled_from(self, passage: Passage) -> bool:
        """Whether another passage than the sentence's own holds the masked words."""
        return self.words in passage.text and not self.stands_in(passage)


@dataclass
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
        mask_token: the retriever's mask token, for queries; "" means that of `tokenizer`.

    Attributes:
        usable: share of the passages that have anything to mask, by a random sample.

    Raises:
        DataError: no passage of a random sample has anything to mask.

    Source:
        Guu et al. 2020, "REALM", section 3.4 (salient spans).
    """

    store: PassageStore
    tokenizer: PreTrainedTokenizerBase
    titles: TitleHashes
    examples: Epochs
    _: KW_ONLY
    sentence_tokens: int
    min_words: int
    rows: Int64 | None = None
    recurring: bool = False
    mask_token: str = ""

    def __post_init__(self) -> None:
        self._rows = np.arange(len(self.store)) if self.rows is None else self.rows
        sample = self._random_rows(_SAMPLE, generator(self.examples.seed, Stream.SAMPLE))
        drawn = self._draw(sample, generator(self.examples.seed, Stream.SAMPLE_MASKED))
        what = "passages have a sentence with anything to mask"
        self.usable = check_usable(len(drawn), len(sample), what, few=_FEW, hint=_HINT)

    def _random_rows(self, count: int, draw: np.random.Generator) -> Int64:
        """Some of the rows, ascending."""
        numbers = draw.choice(len(self._rows), min(count, len(self._rows)), replace=False)
        return np.sort(self._rows[numbers])

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, number: int) -> list[MaskedSentence]:
        """Batch `number`; made of other passages if none of its own has anything to mask.

        Raises:
            DataError: the other passages have nothing to mask either.
        """
        rows = self._rows[self.examples[number]]
        draw = generator(self.examples.seed, Stream.MASKED, number)
        for _ in range(_TRIES):
            drawn = self._draw(rows, draw)
            if drawn:
                return drawn
            rows = self._random_rows(len(rows), draw)
        raise DataError(
            f"batch {number}: nothing to mask in {_TRIES} draws of {len(rows)} passages",
            hint=f"raise batch_size, or {_HINT}",
        )

    def _draw(self, rows: Int64, draw: np.random.Generator) -> list[MaskedSentence]:
        """One masked sentence of each of these passages that has anything to mask."""
        passages = self.store.get_many(rows)
        following = self.store.get_many((rows + 1) % len(self.store))
        drawn = []
        for passage, after in zip(passages, following, strict=True):
            masked = self._masked_sentence(passage, draw)
            if masked is not None:
                drawn.append(replace(masked, after=after.text))
        return drawn

    def _masked_sentence(
        self, passage: Passage, draw: np.random.Generator
    ) -> MaskedSentence | None:
        sentences = [
            sentence
            for sentence in split_sentences(passage.text)
            if len(sentence.split()) >= self.min_words
        ]
        for number in draw.permutation(len(sentences)).tolist():
            sentence = sentences[number]
            rest = passage.text.replace(sentence, " ", 1)
            spans = self._salient_spans(sentence, rest)
            if not spans:
                continue
            masked = self._mask(sentence, spans[int(draw.integers(len(spans)))])
            if masked is not None:
                return replace(masked, title=passage.title, rest=rest)
        return None

    def _salient_spans(self, sentence: str, rest: str) -> CharSpans:
        """The dates and names of a sentence that may be masked; none overlaps an earlier one."""
        spans: CharSpans = []
        for start, end in sorted(find_dates(sentence) + find_names(sentence, self.titles)):
            if not spans or start >= spans[-1][1]:
                spans.append((start, end))
        if not self.recurring:
            return spans
        return [(start, end) for start, end in spans if sentence[start:end] in rest] or spans

    def _mask(self, text: str, span: tuple[int, int]) -> MaskedSentence | None:
        """None if the sentence has too many masks or they lie in the part that is truncated."""
        start, stop = span
        encoded = self.tokenizer(
            text,
            add_special_tokens=False,
            return_offsets_mapping=True,
            truncation=True,
            max_length=self.sentence_tokens,
        )
        ids = np.array(encoded["input_ids"])
        offsets = np.array(encoded["offset_mapping"]).reshape(-1, 2)
        is_masked = (offsets[:, 0] < stop) & (offsets[:, 1] > start)
        places = np.flatnonzero(is_masked)
        if not 0 < len(places) <= _MOST_MASKED:
            return None
        mask = self.mask_token or str(self.tokenizer.mask_token)
        masks = " ".join([mask] * len(places))
        query = text[:start] + masks + text[stop:]
        masked = np.where(is_masked, self.tokenizer.mask_token_id, ids)
        return MaskedSentence(text, query, masked, places, ids[places], text[start:stop])


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())
