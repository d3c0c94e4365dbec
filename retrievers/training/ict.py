"""Train a retriever from passages alone: a sentence is the query for the passage it was taken from (ICT)."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import Field, model_validator

from indexers.passages import PassageStore
from rag.core.arrays import Int64
from rag.core.errors import DataError
from rag.core.log import get_logger
from rag.core.types import Passage, Query
from rag.data.examples import Example, read_examples
from rag.data.selection import check_usable, least_held_out
from rag.data.sentences import split_sentences
from rag.runtime.seeds import generator
from rag.training.claim import input_checksums
from rag.training.run import Method
from retrievers.examples.batches import Epochs, RetrieverBatch, RetrieverBatches
from retrievers.examples.corpus import open_corpus
from retrievers.examples.data import ExampleTable
from retrievers.training.config import CorpusConfig, EncodedConfig, HeldOutConfig
from retrievers.training.losses import in_batch_objective
from retrievers.training.recipe import BiEncoderRun, train_bi_encoder

log = get_logger(__name__)

_SAMPLE = 1000  # passages looked at before training


class IctTrainConfig(EncodedConfig, CorpusConfig, HeldOutConfig):
    """Settings of `rag train ict`.

    Attributes:
        train_files: the corpus: a built index, or files and folders of documents.
        validation_file: questions with positives, to measure retrieval for real questions; None scores
            held-out passages.
        index: index that is searched for these questions at each validation.
        batch_size: passages in a step; each is the negative of all others. Passages from which no sentence
            can be taken are left out.
        validation_questions: maximum number of held-out passages, or of questions of `validation_file`, that
            are scored.
        keep_sentence: probability that the sentence stays in its passage too.
    """

    recipe: ClassVar[str] = "ict"
    trains: ClassVar[str] = "retrievers.training.ict:train_ict"

    train_files: tuple[Path, ...] = Field(min_length=1)
    validation_file: Path | None = None
    batch_size: int = Field(default=256, ge=2)
    chunk_size: int | None = Field(default=64, ge=1)
    keep_sentence: float = Field(default=0.1, ge=0, le=1)

    @property
    def keeps_index(self) -> bool:
        """Never: a passage without its sentence has no vector in an index."""
        return False

    @model_validator(mode="after")
    def _cross_check_ict(self) -> "IctTrainConfig":
        if self.index is not None and self.validation_file is None:
            raise ValueError("index is searched for the questions of a validation_file: set it too")
        return self


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

    Args:
        store: the corpus.
        held_out: rows that are never trained on, ascending.
        examples: decides which of the other passages are in each batch; its seed decides every choice.
        keep_sentence, min_words: see `IctTrainConfig` and `CorpusConfig`.
    """

    def __init__(
        self,
        store: PassageStore,
        held_out: Int64,
        examples: Epochs,
        *,
        keep_sentence: float,
        min_words: int,
    ) -> None:
        self._store, self.examples = store, examples
        self._keep, self._min_words = keep_sentence, min_words
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
        rows = chosen + np.searchsorted(self._gaps, chosen, side="right")  # skip the held-out rows
        drawn = draw_pairs(
            self._store.get_many(rows), self._keep, self._min_words, self.examples.seed, 31, step
        )
        if len(drawn) < 2:
            raise DataError(
                f"batch {step}: {len(drawn)} of {len(rows)} passages have a sentence that can be taken out",
                hint="raise batch_size, cut the corpus into longer passages, or lower min_words",
            )
        questions = [Query(sentence) for _, sentence, _ in drawn]
        passages = [Passage(passage.id, passage.title, rest) for passage, _, rest in drawn]
        return RetrieverBatch(
            questions, passages, np.arange(len(drawn)), np.zeros((len(drawn), len(passages)), bool),
            np.zeros((2, 0), np.int64), rows,
        )  # fmt: skip


def draw_pairs(
    passages: Sequence[Passage], keep_sentence: float, min_words: int, *keys: int
) -> list[tuple[Passage, str, str]]:
    """Each passage that allows it, with a sentence drawn from it and its text without that sentence."""
    drawn = generator(*keys).random((len(passages), 2))
    pairs = []
    for passage, (place, kept) in zip(passages, drawn.tolist(), strict=True):
        keep = kept < keep_sentence
        pair = inverse_cloze(passage.text, place, keep=keep, min_words=min_words)
        if pair is not None:
            pairs.append((passage, *pair))
    return pairs


def train_ict(config: IctTrainConfig) -> Path:
    """Train a retriever as `config` says; see `train_bi_encoder`.

    A random sentence of a passage is the question; the passage, mostly without it, is the positive, and the
    other passages of the batch are negatives: thousands with the gradient cache (`chunk_size`).

    Raises:
        DataError: the corpus is empty, or its passages have no sentences to take.

    Source:
        Lee et al. 2019, "Latent Retrieval for Weakly Supervised Open Domain Question Answering", section 5.

    Note:
        In the published code a passage of one sentence is used where that sentence stays in it; here never.
    """
    return train_bi_encoder(config, _method)


def held_out_rows(config: HeldOutConfig, passages: int, seed: int) -> Int64:
    """Rows of a corpus that are never trained on, in order: the share in `config`, at least `least_held_out`.

    A single passage is not held out: it would have no negatives.
    """
    count = 0
    if config.validation_fraction:
        count = max(int(config.validation_fraction * passages), least_held_out(passages))
    count = min(config.validation_questions, count) if count > 1 else 0
    return np.sort(generator(seed, 32).choice(passages, count, replace=False))


def _held_out(config: IctTrainConfig, store: PassageStore) -> tuple[Int64, list[Example]]:
    """Rows of the corpus that are never trained on, and what is measured: their sentences, or a file's."""
    seed = config.seed
    if config.validation_file is not None:
        examples = islice(read_examples(config.validation_file), config.validation_questions)
        return np.zeros(0, np.int64), list(examples)
    rows = held_out_rows(config, len(store), seed)
    return rows, [
        Example.labelled(passage.id, sentence, (), [Passage(passage.id, passage.title, rest)])
        for passage, sentence, rest in draw_pairs(
            store.get_many(rows), config.keep_sentence, config.min_words, seed, 33
        )
    ]


def _method(config: IctTrainConfig, run: BiEncoderRun) -> Method:
    store, _ = open_corpus(config.train_files, run.out / "data", config.split, input_checksums(run.out))
    usable = _usable_share(store, config)
    held_rows, held_out = _held_out(config, store)
    examples = Epochs.of(config, len(store) - len(held_rows))
    batches = IctBatches(
        store, held_rows, examples, keep_sentence=config.keep_sentence, min_words=config.min_words
    )
    scores = run.held_out_scores(held_out, _held_out_batches)
    facts = {
        "passages": len(store), "passages with a sentence to take, in percent": round(100 * usable, 1)
    }  # fmt: skip
    return run.method(batches, run.loss(in_batch_objective), held_out, scores, facts=facts)


def _held_out_batches(config: IctTrainConfig, data: ExampleTable, examples: Epochs) -> RetrieverBatches:
    return RetrieverBatches(data, examples, hard_negatives=0, mask_false_negatives=False)


def _usable_share(store: PassageStore, config: IctTrainConfig) -> float:
    """Share of a sample of passages that have a sentence to take."""
    if len(store) < 2:
        raise DataError(f"a corpus of {len(store)} passages has no negatives; expected two or more")
    rows = generator(config.seed, 34).choice(len(store), min(_SAMPLE, len(store)), replace=False)
    usable = len(
        draw_pairs(store.get_many(np.sort(rows)), config.keep_sentence, config.min_words, config.seed, 34)
    )
    return check_usable(
        usable, len(rows), f"passages have a sentence of {config.min_words} words beside another",
        hint="cut the corpus into longer passages, or lower min_words",
    )  # fmt: skip
