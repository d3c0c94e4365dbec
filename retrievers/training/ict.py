"""Train a retriever from passages alone: a sentence is to find the passage it was taken from (ICT)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from indexers.passages import PassageStore
from rag.core.errors import DataError
from rag.core.log import get_logger
from rag.core.types import Passage, Query
from rag.data.examples import Example, read_examples
from rag.data.selection import check_usable
from rag.data.sentences import split_sentences
from rag.runtime.seeds import generator
from rag.training.run import Method
from retrievers.examples.batches import Epochs, Int64, RetrieverBatch, RetrieverBatches
from retrievers.examples.corpus import open_corpus
from retrievers.examples.data import TrainingArrays
from retrievers.examples.tokens import Int32, RetrieverTokenizer
from retrievers.training.config import BatchConfig, EncodedConfig, EncodedTrainConfig
from retrievers.training.losses import in_batch_objective
from retrievers.training.recipe import BiEncoderRun, train_model
from retrievers.training.step import contrastive_step
from retrievers.training.validation import HeldOutScores

log = get_logger(__name__)

_SAMPLE = 1000  # passages looked at before training


class CorpusDataConfig(BatchConfig):
    """Which sentences of a corpus are trained on.

    Attributes:
        batch_size: passages in a step.
        min_words: minimum number of words in a sentence; shorter ones are skipped.
        split: how files become passages: words100, sentences or none.
    """

    min_words: int = Field(default=4, ge=1)
    split: Literal["words100", "sentences", "none"] = "words100"


class HeldOutCorpusConfig(CorpusDataConfig):
    """Data settings where some passages are held out.

    Attributes:
        validation_fraction: share of the passages that is held out.
        validation_questions: maximum number of held-out passages that are scored.
    """

    validation_fraction: float = Field(default=0.02, ge=0, lt=1)
    validation_questions: int = Field(default=1000, ge=1)


class IctDataConfig(HeldOutCorpusConfig, EncodedConfig):
    """Which passages are trained on, and how often the sentence taken from a passage also stays in it.

    Attributes:
        batch_size: passages in a step; each is the negative of all others. Passages from which no sentence
            can be taken are left out.
        validation_questions: maximum number of held-out passages, or of questions of `validation_file`, that
            are scored.
        keep_sentence: probability that the sentence stays in its passage too.
    """

    batch_size: int = Field(default=256, ge=2)
    chunk_size: int | None = Field(default=64, ge=1)
    keep_sentence: float = Field(default=0.1, ge=0, le=1)


class IctTrainConfig(EncodedTrainConfig):
    """Settings of `rag train ict`.

    Attributes:
        train_files: the corpus: a built index, or files of documents of any format.
        validation_file: questions with positives, to measure retrieval for real questions; None scores
            held-out passages.
        index: index that is searched for these questions at each validation.
    """

    recipe: ClassVar[str] = "ict"

    data: IctDataConfig = IctDataConfig()

    @model_validator(mode="after")
    def _cross_check_ict(self) -> IctTrainConfig:
        if self.index is not None and self.validation_file is None:
            raise ValueError("index is searched for the questions of a validation_file: set it too")
        return self


def inverse_cloze(
    text: str, place: float, *, keep: bool = False, min_words: int = 4
) -> tuple[str, str] | None:
    """A sentence of a text and the text without it; None if no sentence can be taken.

    Args:
        place: in [0, 1): which of the sentences of at least `min_words` words.
        keep: leave it in the text.

    Example:
        >>> inverse_cloze("It rises in the hills. Ships sail on it every day. The end.", 0.7)
        ('Ships sail on it every day.', 'It rises in the hills. The end.')
        >>> inverse_cloze("It rises in the hills.", 0.7) is None
        True
    """
    sentences = split_sentences(text)
    usable = [n for n, sentence in enumerate(sentences) if len(sentence.split()) >= min_words]
    if not usable or len(sentences) < 2:
        return None
    chosen = usable[int(place * len(usable))]
    rest = text if keep else " ".join(s for n, s in enumerate(sentences) if n != chosen)
    return sentences[chosen], rest


class IctBatches:
    """The batches of a run: `self[step]` depends on the arguments and the step alone.

    Sentences are drawn and tokenised when a batch is asked for: nothing is kept of a passage between visits.

    Args:
        store: the corpus.
        held_out: rows that are never trained on, ascending.
        examples: which of the other passages every batch holds; its seed is that of every choice.
    """

    def __init__(
        self,
        store: PassageStore,
        held_out: Int64,
        tokenizer: RetrieverTokenizer,
        data: IctDataConfig,
        examples: Epochs,
    ) -> None:
        self._store, self._tokenizer, self._data, self.examples = store, tokenizer, data, examples
        self._gaps = held_out - np.arange(len(held_out))
        self.batch_size = examples.batch_size

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, step: int) -> RetrieverBatch:
        """Batch `step`: sentences, and the passages they are from.

        Raises:
            IndexError: the run has fewer batches.
            DataError: no two passages of the batch have a sentence to take.
        """
        chosen = self.examples[step]
        rows = chosen + np.searchsorted(self._gaps, chosen, side="right")  # passing over what is held out
        found = draw_pairs(self._store.get_many(rows), self._data, self.examples.seed, 31, step)
        if len(found) < 2:
            raise DataError(
                f"batch {step}: {len(found)} of {len(rows)} passages have a sentence that can be taken out",
                hint="cut the corpus into longer passages, or lower min_words",
            )
        questions = self._tokenizer.queries([Query(sentence) for _, sentence, _ in found])
        passages = self._tokenizer.passages([p.title for p, _, _ in found], [rest for _, _, rest in found])
        count = len(found)
        return RetrieverBatch(
            questions=_arrays(questions),
            passages=_arrays(passages),
            positives=np.arange(count),
            ignored=np.zeros((count, count), bool),
            drawn=np.zeros((2, 0), np.int64),
            examples=rows,
        )


def draw_pairs(
    passages: Sequence[Passage], data: IctDataConfig, *keys: int
) -> list[tuple[Passage, str, str]]:
    """Each passage that allows it, with a sentence drawn from it and its text without that sentence."""
    drawn = generator(*keys).random((len(passages), 2))
    found = []
    for passage, (place, kept) in zip(passages, drawn.tolist(), strict=True):
        keep = kept < data.keep_sentence
        pair = inverse_cloze(passage.text, place, keep=keep, min_words=data.min_words)
        if pair is not None:
            found.append((passage, *pair))
    return found


def train_ict(config: IctTrainConfig) -> Path:
    """Train a retriever as `config` says; see `train_model`.

    A random sentence of a passage is the question; the passage, mostly without it, is told from the other
    passages of the batch, thousands by the gradient cache (`chunk_size`).

    Raises:
        DataError: the corpus is empty, or its passages have no sentences to take.

    Source:
        Lee et al. 2019, "Latent Retrieval for Weakly Supervised Open Domain Question Answering", section 5.

    Note:
        In the published code a passage of one sentence is used where that sentence stays in it; here never.
    """
    return train_model(config, partial(_method, config))


def held_out_rows(data: HeldOutCorpusConfig, passages: int, seed: int) -> Int64:
    """Rows of a corpus that are never trained on, in order: as many as `data` says."""
    count = min(data.validation_questions, int(data.validation_fraction * passages))
    return np.sort(generator(seed, 32).choice(passages, count, replace=False))


def _held_out(config: IctTrainConfig, store: PassageStore) -> tuple[Int64, list[Example]]:
    """Rows of the corpus that are never trained on, and what is measured: their sentences, or a file's."""
    data, seed = config.data, config.run.seed
    if config.validation_file is not None:
        examples = islice(read_examples(config.validation_file), data.validation_questions)
        return np.zeros(0, np.int64), list(examples)
    rows = held_out_rows(data, len(store), seed)
    return rows, [
        Example.labelled(passage.id, sentence, (), [Passage(passage.id, passage.title, rest)])
        for passage, sentence, rest in draw_pairs(store.get_many(rows), data, seed, 33)
    ]


def _method(config: IctTrainConfig, run: BiEncoderRun) -> Method:
    store, _ = open_corpus(config.train_files, run.out / "data", config.data.split)
    usable = _usable_share(store, config)
    held_rows, held_out = _held_out(config, store)
    batches = IctBatches(
        store, held_rows, run.tokenizer, config.data, Epochs.of(config, len(store) - len(held_rows))
    )
    scores = None
    if run.world.is_main and held_out:
        scores = HeldOutScores(config, held_out, run.tokenizer, _held_out_batches, in_batch_objective)
    return run.method(
        batches,
        lambda batch: contrastive_step(run.model, batch, run.world, config.data.chunk_size),
        held_out,
        scores,
        facts={
            "passages": len(store),
            "passages with a sentence to take, in percent": round(100 * usable, 1),
            **({} if scores is None else scores.facts()),
        },
    )


def _held_out_batches(config: IctTrainConfig, data: TrainingArrays, examples: Epochs) -> RetrieverBatches:
    return RetrieverBatches(data, examples, hard_negatives=0, mask_false_negatives=False)


def _usable_share(store: PassageStore, config: IctTrainConfig) -> float:
    """Of a sample of the passages."""
    if len(store) < 2:
        raise DataError(f"a corpus of {len(store)} passages has no negatives; expected two or more")
    rows = generator(config.run.seed, 34).choice(len(store), min(_SAMPLE, len(store)), replace=False)
    usable = len(draw_pairs(store.get_many(np.sort(rows)), config.data, config.run.seed, 34))
    return check_usable(
        usable, len(rows), f"passages have a sentence of {config.data.min_words} words beside another",
        hint="cut the corpus into longer passages, or lower min_words",
    )  # fmt: skip


def _arrays(sequences: Sequence[Sequence[int]]) -> list[Int32]:
    return [np.array(sequence, np.int32) for sequence in sequences]
