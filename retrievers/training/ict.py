"""Train a retriever from passages alone: a sentence is the query for the passage it was taken from
(ICT).
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from indexers.passages import PassageStore
from rag.core.arrays import Int64
from rag.core.errors import DataError
from rag.core.types import Passage, Query
from rag.data.examples import Example
from rag.data.selection import least_held_out
from rag.data.sentences import split_sentences
from rag.runtime.seeds import generator
from rag.training.fit import Method
from retrievers.examples.batches import OTHER, POSITIVE, Epochs, RetrieverBatch, RetrieverBatches
from retrievers.examples.corpus import open_corpus
from retrievers.examples.data import ExampleTable
from retrievers.training.config import HeldOutConfig, IctTrainConfig
from retrievers.training.recipe import BiEncoderRun, train_bi_encoder


def inverse_cloze(
    text: str, place: float, *, keep: bool = False, min_words: int = 4
) -> tuple[str, str] | None:
    """A sentence of a text and the text without it; None if no sentence can be taken.

    Args:
        place: in [0, 1): which of the sentences of at least `min_words` words.
        keep: leave the sentence in the text.

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

    Sentences are drawn when a batch is requested: no passage is kept between visits.
    """

    def __init__(
        self,
        store: PassageStore,
        rows: Int64,
        examples: Epochs,
        *,
        keep_sentence: float,
        min_words: int,
    ) -> None:
        self._store = store
        self._rows = rows
        self.examples = examples
        self._keep = keep_sentence
        self._min_words = min_words
        self.batch_size = examples.batch_size

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, step: int) -> RetrieverBatch:
        """Batch `step`: sentences, and the passages they are from."""
        rows = self._rows[self.examples[step]]
        pairs = draw_pairs(
            self._store.get_many(rows), self._keep, self._min_words, self.examples.seed, 31, step
        )
        if len(pairs) < 2:
            raise DataError(
                f"batch {step}: {len(pairs)} of {len(rows)} passages have a sentence that can be taken out",
                hint="raise batch_size, cut the corpus into longer passages, or lower min_words",
            )
        questions = [Query(sentence) for sentence, _ in pairs]
        passages = [passage for _, passage in pairs]
        labels = torch.full((len(pairs), len(pairs)), OTHER).fill_diagonal_(POSITIVE)
        return RetrieverBatch(questions, passages, labels)


def draw_pairs(
    passages: Sequence[Passage], keep_sentence: float, min_words: int, *keys: int
) -> list[tuple[str, Passage]]:
    """A sentence drawn from each passage that allows it, and the passage, mostly without the
    sentence.
    """
    pairs = []
    for passage, (place, chance) in zip(
        passages, generator(*keys).random((len(passages), 2)), strict=True
    ):
        pair = inverse_cloze(passage.text, place, keep=chance < keep_sentence, min_words=min_words)
        if pair is not None:
            pairs.append((pair[0], replace(passage, text=pair[1])))
    return pairs


def train_ict(config: IctTrainConfig) -> Path:
    """Train a retriever as `config` says; see `train_bi_encoder`.

    A random sentence of a passage is the question; the passage, mostly without it, is the positive,
    and the other passages of the batch are negatives: thousands with the gradient cache
    (`chunk_size`).

    Source:
        Lee et al. 2019, "Latent Retrieval for Weakly Supervised Open Domain Question Answering",
        section 5.

    Note:
        In the published code a passage of one sentence is used where that sentence stays in it;
        here never.
    """
    return train_bi_encoder(config, build)


def held_out_rows(config: HeldOutConfig, passages: int, seed: int) -> Int64:
    """Rows of a corpus that are never trained on, in order: the share in `config`, at least
    `least_held_out`.

    A single passage is not held out: it would have no negatives.
    """
    count = 0
    if config.validation_fraction:
        count = max(int(config.validation_fraction * passages), least_held_out(passages))
    count = min(config.validation_questions, count) if count > 1 else 0
    return np.sort(generator(seed, 32).choice(passages, count, replace=False))


def build(run: BiEncoderRun) -> Method:
    """The method of `train_ict`."""
    config = run.config
    store = open_corpus(config.train_files, config.out / "data", config.split)
    held_rows = held_out_rows(config, len(store), config.seed)
    rows = np.setdiff1d(np.arange(len(store)), held_rows)
    pairs = draw_pairs(
        store.get_many(held_rows), config.keep_sentence, config.min_words, config.seed, 33
    )
    held_out = [Example.labelled(rest.id, sentence, (), [rest]) for sentence, rest in pairs]
    epochs = Epochs.of(config, len(rows))
    batches = IctBatches(
        store, rows, epochs, keep_sentence=config.keep_sentence, min_words=config.min_words
    )
    facts = {"passages": len(store)}
    return run.method(batches, held_out, facts, make_batches=_held_out_batches)


def _held_out_batches(
    config: IctTrainConfig, data: ExampleTable, *, once: bool = False
) -> RetrieverBatches:
    examples = Epochs.of(config, len(data), once=once)
    return RetrieverBatches(data, examples, hard_negatives=0, mask_false_negatives=False)
