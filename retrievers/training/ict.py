"""Train a retriever from passages alone: a sentence is the query for the passage it was taken from
(ICT).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from indexers.passages import PassageStore
from rag.core.arrays import Int64
from rag.core.errors import DataError
from rag.core.types import Passage, Query
from rag.data.examples import Example
from rag.data.selection import least_held_out
from rag.data.sentences import split_sentences
from rag.runtime.seeds import Stream, generator
from rag.training.distributed import World
from rag.training.fit import Method
from retrievers.examples.batches import (
    OTHER,
    POSITIVE,
    EpochBatches,
    Epochs,
    RetrieverBatch,
    RetrieverBatches,
)
from retrievers.examples.corpus import open_corpus
from retrievers.examples.data import ExampleTable
from retrievers.training.bi_encoder import load_model
from retrievers.training.config import HeldOutConfig, IctTrainConfig
from retrievers.training.recipe import bi_encoder_method


def inverse_cloze(
    text: str, share: float, *, keep: bool = False, min_words: int = 4
) -> tuple[str, str] | None:
    """A sentence of a text and the text without it; None if no sentence can be taken.

    Args:
        share: in [0, 1): which of the sentences of at least `min_words` words.
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
    number = usable[int(share * len(usable))]
    sentence = sentences.pop(number)
    return sentence, text if keep else " ".join(sentences)


@dataclass(frozen=True)
class IctBatches(EpochBatches):
    """The batches of a run: `self[step]` depends on the arguments and the step alone.

    Sentences are drawn when a batch is requested: no passage is kept between visits.

    Attributes:
        rows: the passages of `store` to train on.
        keep_sentence: probability that a sentence stays in its passage.
        min_words: of a sentence.
    """

    store: PassageStore
    rows: Int64
    epochs: Epochs
    keep_sentence: float
    min_words: int

    def __getitem__(self, step: int) -> RetrieverBatch:
        """Batch `step`: sentences, and the passages they are from."""
        passages = self.store.get_many(self.rows[self.epochs[step]])
        draw = generator(self.epochs.seed, Stream.PAIRS, step)
        pairs = draw_pairs(passages, self.keep_sentence, self.min_words, draw)
        if len(pairs) < 2:
            raise DataError(
                f"batch {step}: {len(pairs)} of {len(passages)} passages have a sentence that can be taken "
                "out",
                hint="raise batch_size, cut the corpus into longer passages, or lower min_words",
            )
        labels = torch.full((len(pairs), len(pairs)), OTHER).fill_diagonal_(POSITIVE)
        questions = [Query(sentence) for sentence, _ in pairs]
        return RetrieverBatch(questions, [passage for _, passage in pairs], labels)


def draw_pairs(
    passages: Sequence[Passage], keep_sentence: float, min_words: int, draw: np.random.Generator
) -> list[tuple[str, Passage]]:
    """A sentence drawn from each passage that allows it, and the passage, mostly without the
    sentence.
    """
    pairs = []
    drawn = draw.random((len(passages), 2))
    for passage, (share, chance) in zip(passages, drawn, strict=True):
        keep = chance < keep_sentence
        pair = inverse_cloze(passage.text, share, keep=keep, min_words=min_words)
        if pair is not None:
            sentence, rest = pair
            pairs.append((sentence, replace(passage, text=rest)))
    return pairs


def held_out_rows(config: HeldOutConfig, passages: int, seed: int) -> Int64:
    """Rows of a corpus that are never trained on, in order: the share in `config`, at least
    `least_held_out`.

    A single passage is not held out: it would have no negatives.
    """
    count = 0
    if config.validation_fraction:
        count = max(int(config.validation_fraction * passages), least_held_out(passages))
    count = min(config.validation_questions, count) if count > 1 else 0
    return np.sort(generator(seed, Stream.HELD_OUT).choice(passages, count, replace=False))


def build(config: IctTrainConfig, world: World) -> Method:
    """The method of `rag train ict`.

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
    # data
    store = open_corpus(config.train_files, config.out / "data", config.split)
    held_rows = held_out_rows(config, len(store), config.seed)
    rows = np.setdiff1d(np.arange(len(store)), held_rows)
    draw = generator(config.seed, Stream.HELD_OUT_PAIRS)
    pairs = draw_pairs(store.get_many(held_rows), config.keep_sentence, config.min_words, draw)
    held_out = [Example.labelled(rest.id, sentence, (), [rest]) for sentence, rest in pairs]
    batches = IctBatches(
        store,
        rows,
        Epochs.of(config, len(rows)),
        keep_sentence=config.keep_sentence,
        min_words=config.min_words,
    )

    # model
    retriever = load_model(config, world.device, same_encoder=True)
    return bi_encoder_method(
        config,
        retriever,
        world,
        batches,
        held_out,
        make_batches=_held_out_batches,
        facts={"passages": len(store)},
    )


def _held_out_batches(
    config: IctTrainConfig, data: ExampleTable, *, once: bool = False
) -> RetrieverBatches:
    epochs = Epochs.of(config, len(data), once=once)
    return RetrieverBatches(data, epochs, hard_negatives=0, mask_false_negatives=False)
