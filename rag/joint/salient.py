"""Which words of a sentence to mask: names and dates, which a passage may help to predict, or any words.

Rules find dates. A tagger finds names: any token classification model, or without one the titles of the
corpus and capitalised words.

Source:
    Guu et al. 2020, "REALM: Retrieval-Augmented Language Model Pre-Training", section 3.4 (salient spans),
    table 2 (random masks and random spans in their place).
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import regex
import torch

from rag.core.errors import ArtifactError
from rag.core.files import hash64
from rag.core.npy import load_npy, save_npy
from rag.core.types import Passage
from rag.data.sentences import STARTERS
from rag.joint.config import Masks
from rag.runtime.backbone import loading
from rag.runtime.model_files import model_folder, position_limit, weight_files

Spans = list[tuple[int, int]]
"""First character and one past the last, ascending, without overlap."""

Tagger = Callable[[Sequence[str]], list[Spans]]
"""Sentences → the names in each."""

_MONTH = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
_DAY, _YEAR = r"\d{1,2}(?:st|nd|rd|th)?", r"(?:1\d{3}|20\d{2})"
_DATES = regex.compile(
    rf"\b(?:{_DAY}\s+(?:of\s+)?{_MONTH}(?:,?\s+{_YEAR})?|{_MONTH}\s+{_DAY}\b(?:,?\s+{_YEAR})?|{_MONTH},?\s+{_YEAR}"
    rf"|{_YEAR}s?)\b(?![,.]\d)"
)
_INITIAL, _NAME = r"\p{Lu}\.", r"\p{Lu}[\p{L}\p{M}\p{N}'’\-]+"
_LINK = r"(?:(?:of|the|de|la|le|du|des|da|di|del|von|van|der|den|al|bin|ibn)\s+){1,2}"
_NAMES = regex.compile(rf"(?:{_INITIAL}|{_NAME})(?:\s+(?:{_LINK})?(?:{_INITIAL}|{_NAME}))*")
_WORDS = regex.compile(r"[\p{L}\p{M}\p{N}]+(?:['’\-.][\p{L}\p{M}\p{N}]+)*")
_PAREN = regex.compile(r"\s*\([^)]*\)$")
_MASKED_SHARE = 0.15
_GO_ON = 0.8  # of a random span, after each word: 3.8 words on average with at most ten
_LONGEST = 10


def find_dates(sentence: str) -> Spans:
    """Years, decades, and days or months with a day or a year.

    Example:
        >>> text = "On 4 May 1979, and in May 1983, she won; by the 1990s 1,500 had left."
        >>> [text[slice(*span)] for span in find_dates(text)]
        ['4 May 1979', 'May 1983', '1990s']
    """
    return [match.span() for match in _DATES.finditer(sentence)]


def title_hashes(passages: Iterable[Passage], path: Path) -> npt.NDArray[np.uint64]:
    """Sorted 8-byte hashes of a corpus's different titles, kept in the file `path`."""
    if not path.exists():
        found: set[int] = set()
        last = None
        for passage in passages:
            if passage.title and passage.title != last:
                found.add(_title_hash(_PAREN.sub("", passage.title)))
                last = passage.title
        save_npy(path, np.sort(np.fromiter(found, np.uint64, len(found))))
    count = (path.stat().st_size - 128) // 8
    return load_npy(path, dtype=np.uint64, shape=(count,))


class CapitalTagger:
    """Recognises names by capital letters: runs of capitalised words inside a sentence.

    At the start of a sentence, where any word is capitalised, a run counts only if it has two words or is a
    title of the corpus.

    Args:
        titles: hashes of the corpus's titles, from `title_hashes`.

    Example:
        >>> text = "In Vienna, the Bank of Austria met J. Smith."
        >>> [text[slice(*span)] for span in CapitalTagger(np.zeros(0, np.uint64))([text])[0]]
        ['Vienna', 'Bank of Austria', 'J. Smith']
    """

    def __init__(self, titles: npt.NDArray[np.uint64]) -> None:
        self._titles = titles

    def __call__(self, sentences: Sequence[str]) -> list[Spans]:
        """Names in each sentence."""
        return [list(self._names(sentence)) for sentence in sentences]

    def _names(self, sentence: str) -> Iterable[tuple[int, int]]:
        begin = next((n for n, character in enumerate(sentence) if character.isalnum()), 0)
        for match in _NAMES.finditer(sentence):
            start, end = match.span()
            is_first = start == begin
            while (word := _WORDS.match(sentence, start, end)) and word[0] in STARTERS:
                following = _WORDS.search(sentence, word.end(), end)
                start = end if following is None else following.start()
            name = sentence[start:end]
            if len(name) > 2 and (not is_first or start > begin or " " in name or self._is_title(name)):
                yield start, end

    def _is_title(self, name: str) -> bool:
        wanted = np.uint64(_title_hash(name))
        place = int(np.searchsorted(self._titles, wanted))
        return place < len(self._titles) and self._titles[place] == wanted


class ModelTagger:
    """Recognises names with a token classification model whose label for everything else is "O".

    Args:
        name_or_path: Hugging Face name or folder.
        device: where it runs.

    Raises:
        ArtifactError: it cannot be loaded, or has no label "O".
    """

    def __init__(self, name_or_path: str | Path, device: str = "cpu") -> None:
        from transformers import AutoModelForTokenClassification, AutoTokenizer

        folder = model_folder(name_or_path)
        weight_files(folder)
        with loading(f"{name_or_path}: no token classification model there"):
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, use_fast=True)
            self._model: Any = AutoModelForTokenClassification.from_pretrained(folder, use_safetensors=True)
        self._labels = {int(k): str(v) for k, v in self._model.config.id2label.items()}
        if "O" not in self._labels.values():
            raise ArtifactError(
                f"{name_or_path} has the labels {', '.join(self._labels.values())}, expected O among them"
            )
        self._model.to(device).eval()
        self._device = device

    @torch.no_grad()
    def __call__(self, sentences: Sequence[str]) -> list[Spans]:
        """Names in each sentence."""
        if not sentences:
            return []
        limit = position_limit(self._model.config.to_dict())
        encoded = self._tokenizer(
            list(sentences), return_offsets_mapping=True, return_tensors="pt", padding=True, truncation=True,
            max_length=limit,
        )  # fmt: skip
        offsets = encoded.pop("offset_mapping").tolist()
        best = self._model(**encoded.to(self._device)).logits.argmax(-1).tolist()
        return [self._spans(*row) for row in zip(best, offsets, strict=True)]

    def _spans(self, labels: Sequence[int], offsets: Sequence[tuple[int, int]]) -> Spans:
        found: Spans = []
        kind = ""
        for label, (start, end) in zip(labels, offsets, strict=True):
            name = self._labels[label]
            if start == end:  # special tokens, padding
                continue
            inside = bool(found) and start == found[-1][1] and kind != ""  # goes on in the middle of a word
            goes_on = name != "O" and not name.startswith("B-") and name.rpartition("-")[2] == kind
            if inside or goes_on:
                found[-1] = (found[-1][0], end)
            elif name == "O":
                kind = ""
            else:
                found.append((start, end))
                kind = name.rpartition("-")[2]
        return found


def open_tagger(
    masks: Masks, name_or_path: str | None, passages: Iterable[Passage], folder: Path, device: str
) -> Tagger | None:
    """Open the name tagger that a kind of masking needs; None unless `masks` is "salient".

    Args:
        name_or_path: a token classification model; None recognises names by capital letters and by the
            titles of `passages`.
        folder: where the hashes of the titles are stored.
    """
    if masks != "salient":
        return None
    if name_or_path is not None:
        return ModelTagger(name_or_path, device)
    return CapitalTagger(title_hashes(passages, folder / "titles.npy"))


def choose_spans(how: Masks, sentence: str, salient: Spans, draw: np.random.Generator) -> Spans:
    """The spans of a sentence to mask; empty if there are none.

    Args:
        how: "salient" masks one of `salient`; "random" masks 15 % of the words, each drawn
            independently; "span" masks one run of words of random length.

    Example:
        >>> draw = np.random.default_rng(0)
        >>> choose_spans("salient", "In May 1983 it sank.", [(3, 11)], draw)
        [(3, 11)]
        >>> len(choose_spans("random", "one two three four five six seven", [], draw))
        1
    """
    if how == "salient":
        return [salient[int(draw.integers(len(salient)))]] if salient else []
    words = [match.span() for match in _WORDS.finditer(sentence)]
    if not words:
        return []
    if how == "random":
        count = max(1, round(_MASKED_SHARE * len(words)))
        return [words[int(n)] for n in np.sort(draw.permutation(len(words))[:count])]
    length = min(1 + int(np.argmin(draw.random(_LONGEST) < _GO_ON)), _LONGEST, len(words))
    first = int(draw.integers(len(words) - length + 1))
    return [(words[first][0], words[first + length - 1][1])]


def _title_hash(title: str) -> int:
    return hash64(title.lower().encode("utf-8", "surrogatepass"))
