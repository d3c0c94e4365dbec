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
import torch

from rag.core.errors import ArtifactError, ConfigError
from rag.core.types import Passage
from rag.data.salient import WORDS, CapitalTagger, CharSpans, title_hashes
from rag.joint.config import Masks
from rag.runtime.backbone import loading
from rag.runtime.model_files import model_folder, position_limit, weight_files

Tagger = Callable[[Sequence[str]], list[CharSpans]]
"""Sentences → the names in each."""

_SPACY = "spacy:"
_SPACY_NAMES = {"ner", "entity_ruler"}
_SPACY_STEPS = {"tok2vec", "transformer", *_SPACY_NAMES}
_AMOUNTS = {"CARDINAL", "ORDINAL", "PERCENT", "MONEY", "QUANTITY", "TIME"}
_MASKED_SHARE = 0.15
_GO_ON = 0.8  # of a random span, after each word: 3.8 words on average with at most ten
_LONGEST = 10


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
    def __call__(self, sentences: Sequence[str]) -> list[CharSpans]:
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

    def _spans(self, labels: Sequence[int], offsets: Sequence[tuple[int, int]]) -> CharSpans:
        found: CharSpans = []
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


class SpacyTagger:
    """Recognises names and dates with a pipeline of spaCy; amounts and ordinals are left out.

    Args:
        folder: a pipeline on disk, with `config.cfg`; of a package that carries one, its inner folder. No
            code of that package is run.

    Raises:
        ArtifactError: there is no pipeline that recognises entities.
        ConfigError: spaCy is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            import spacy
        except ImportError as error:
            raise ConfigError(
                "a tagger spacy:… needs spaCy", hint="pip install 'openqa-rag[spacy]'"
            ) from error
        if not (folder / "config.cfg").is_file():
            raise ArtifactError(
                f"{folder} has no config.cfg", hint="give the folder of a spaCy pipeline: spacy:FOLDER"
            )
        with loading(f"{folder}: no spaCy pipeline there"):
            steps = spacy.util.load_config(folder / "config.cfg")["nlp"]["pipeline"]
            self._pipeline = spacy.load(folder, exclude=[name for name in steps if name not in _SPACY_STEPS])
        if not set(self._pipeline.pipe_names) & _SPACY_NAMES:
            raise ArtifactError(
                f"{folder} has the steps {', '.join(steps)}, "
                f"expected one of {', '.join(sorted(_SPACY_NAMES))}"
            )

    def __call__(self, sentences: Sequence[str]) -> list[CharSpans]:
        """Names and dates in each sentence."""
        return [
            [(one.start_char, one.end_char) for one in tagged.ents if one.label_ not in _AMOUNTS]
            for tagged in self._pipeline.pipe(sentences)
        ]


def open_tagger(
    masks: Masks,
    name_or_path: str | None,
    passages: Iterable[Passage],
    folder: Path,
    device: str,
    *,
    key: str,
) -> Tagger | None:
    """Open the name tagger that a kind of masking needs; None unless `masks` is "salient".

    Args:
        name_or_path: a token classification model, or `spacy:FOLDER`; None recognises names by capital
            letters and by the titles of `passages`.
        folder: where the hashes of the titles are stored.
        key: fingerprint of `passages`: other passages have other titles.
    """
    if masks != "salient":
        return None
    if name_or_path is None:
        return CapitalTagger(title_hashes(passages, folder / f"titles-{key[:16]}.npy"))
    if name_or_path.startswith(_SPACY):
        return SpacyTagger(Path(name_or_path.removeprefix(_SPACY)))
    return ModelTagger(name_or_path, device)


def choose_spans(how: Masks, sentence: str, salient: CharSpans, draw: np.random.Generator) -> CharSpans:
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
    words = [match.span() for match in WORDS.finditer(sentence)]
    if not words:
        return []
    if how == "random":
        count = max(1, round(_MASKED_SHARE * len(words)))
        return [words[int(n)] for n in np.sort(draw.permutation(len(words))[:count])]
    length = min(1 + int(np.argmin(draw.random(_LONGEST) < _GO_ON)), _LONGEST, len(words))
    first = int(draw.integers(len(words) - length + 1))
    return [(words[first][0], words[first + length - 1][1])]
