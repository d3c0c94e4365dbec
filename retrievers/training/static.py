"""Train a static encoder, one vector per token: fit the vectors of any encoder, then learn from questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, normalize

from indexers.index import Index
from indexers.passages import PassageStore
from indexers.protocols import EncoderIdentity
from rag.core.arrays import Float32, Int32
from rag.core.errors import ConfigError
from rag.core.files import fingerprint
from rag.core.log import get_logger
from rag.core.npy import load_npy, save_npy
from rag.core.types import Passage, Query
from rag.data.examples import Example
from rag.runtime.model_files import folder_tokenizer
from rag.runtime.seeds import generator
from rag.training.card import Card
from rag.training.claim import input_checksums
from rag.training.fit import Loss
from rag.training.refresh import Refresh
from rag.training.run import Method, Run, Trained, train
from retrievers.encoders.layout import PassageLayout
from retrievers.encoders.open import load_like, tokenizer_folder
from retrievers.encoders.static import LAYOUT, MAX_LENGTH, POOLING, StaticEncoder, write_static
from retrievers.encoders.vectors import Vectors, score
from retrievers.encoders.word_cache import WordCache
from retrievers.examples.batches import Epochs, RetrieverBatch, RetrieverBatches
from retrievers.examples.corpus import open_corpus
from retrievers.examples.data import ExampleTable, split_examples
from retrievers.training.ance_refresher import negatives_refresher, take_up_negatives
from retrievers.training.ict import IctBatches
from retrievers.training.losses import Objective, in_batch_objective, pairwise_objective
from retrievers.training.recipe import examples_key
from retrievers.training.static_config import StaticTrainConfig
from retrievers.training.static_start import distilled_tokens, to_one_scale
from retrievers.training.static_teacher import TeacherTargets, teacher_vectors
from retrievers.training.target_losses import kl_loss, target_objective
from retrievers.training.validation import CorpusSearch, pool_rank

log = get_logger(__name__)

_AT_ONCE = 4096  # passages that are read and tokenised at once
_FITTED_PASSAGES = 200_000  # of the index, drawn at random, whose vectors the tokens are fitted to
_QUESTION_TOKENS, _PASSAGE_TOKENS = 64, 256  # that are read in training
_TEMPERATURE = 0.05  # divides the cosines in the loss


class TokenVectors(nn.Module):
    """The vectors of a vocabulary; the vector of a text is their mean, scaled to unit length.

    Args:
        vectors: (V, D) to start from.
    """

    def __init__(self, vectors: Float32) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.from_numpy(np.array(vectors, np.float32)))

    def to_compute(self, dtype: torch.dtype) -> TokenVectors:
        """Stay in fp32, since no matrix product would gain from another type. Returns self."""
        return self

    def forward(self, texts: Sequence[Int32]) -> Tensor:
        """(n, D) of n texts' token ids."""
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        flat = np.concatenate(texts).astype(np.int64) if len(texts) else np.zeros(0, np.int64)
        starts = torch.from_numpy(np.cumsum(lengths) - lengths)
        return normalize(embedding_bag(torch.from_numpy(flat), self.tokens, starts, mode="mean"), dim=1)


class StaticTokenizer:
    """Questions and passages to token ids, laid out as the finished encoder reads them."""

    def __init__(self, folder: Path) -> None:
        file = folder / "tokenizer.json"
        self.tokenizer = folder_tokenizer(folder)
        self.file, self.size = file, self.tokenizer.get_vocab_size()
        self._layout = PassageLayout(LAYOUT)
        self._questions = WordCache(self.tokenizer, _QUESTION_TOKENS)
        self._passages = WordCache(self.tokenizer, _PASSAGE_TOKENS)

    def queries(self, queries: Sequence[Query]) -> list[Int32]:
        """Token ids of questions, in order."""
        return _rows(*self._questions([query.question for query in queries]))

    def passages(self, passages: Sequence[Passage]) -> list[Int32]:
        """Token ids of passages, in order."""
        titles, texts = [p.title for p in passages], [p.text for p in passages]
        return _rows(*self._passages(self._layout.render(titles, texts)[0]))


WeightedBatch = tuple[float, Objective, RetrieverBatch]
"""Weight and objective of a batch, and the batch."""


@dataclass(frozen=True, slots=True)
class StaticBatches:
    """The batches of a run: questions with their passages, and sentences with theirs, or one of both.

    Attributes:
        objective: the loss of questions; that of sentences is always in-batch, with `weight`.
    """

    questions: RetrieverBatches | None
    sentences: IctBatches | None
    objective: Objective
    weight: float

    def __len__(self) -> int:
        return len(self.questions if self.questions is not None else self.sentences or ())

    def __getitem__(self, step: int) -> list[WeightedBatch]:
        parts: list[tuple[float, Objective, Any]] = [
            (1.0, self.objective, self.questions), (self.weight, in_batch_objective, self.sentences)
        ]  # fmt: skip
        return [(weight, loss, part[step]) for weight, loss, part in parts if part is not None]


def train_static(config: StaticTrainConfig) -> Path:
    """Train a static encoder as `config` says, or resume the run; see `rag.training.run.train`.

    The teacher's vectors of single tokens are fitted to its vectors of the index's passages
    (`distilled_tokens`); then in-batch training moves questions towards their passages, and sentences towards
    the passages that they were taken from. With `refresh_every_steps` each question's hard negatives are
    those passages of the index that the encoder itself ranked high when it was last looked at, as in
    `train_ance`.

    Returns:
        The folder of the finished encoder, `config.out / "encoder"`, which sentence-transformers
        (StaticEmbedding) and model2vec open too.

    Raises:
        ConfigError: the index has no vector per passage, or fewer dimensions than `dim`; `start` has other
            tokens or dimensions.
    """
    with Index.open(config.index) as index:
        if index.embeddings is None:
            raise ConfigError(
                f"{config.index} has no vector per passage to learn from",
                hint="build it with --retriever dense or hybrid",
            )
        if config.dim > index.embeddings.dim:
            raise ConfigError(
                f"dim is {config.dim}, and the vectors of {config.index} have {index.embeddings.dim} "
                "dimensions",
                hint="lower dim",
            )
        return train(
            config, partial(_method, config, index), "encoder", one_process="one table of vectors is trained"
        )


def _method(config: StaticTrainConfig, index: Index, run: Run) -> Method:
    identity = index.require_dense().embeddings.encoder
    teacher = load_like(identity)
    index.check_encoder(teacher.identity)
    tokens = StaticTokenizer(tokenizer_folder(identity.name))
    folder = run.out / "data"
    start = folder / f"start-{_start_key(config, index)[:16]}.npy"
    if not start.exists():
        folder.mkdir(parents=True, exist_ok=True)
        save_npy(start, _start(config, index, teacher, tokens))
    model = TokenVectors(load_npy(start, dtype=np.float32, shape=(tokens.size, config.dim)))

    split = split_examples(config, folder) if config.train_files else None
    data, refreshes = None if split is None else split.training, bool(config.refresh_every_steps)
    targets = None
    if split is not None and config.loss == "teacher":
        targets = TeacherTargets(*teacher_vectors(teacher, index, split.training, folder, split.key))
    teacher.close()
    held_out = () if split is None else split.held_out
    corpus = index.passages
    if config.corpus:
        corpus, _ = open_corpus(config.corpus, folder, known=input_checksums(run.out))
    batches = _batches(config, data, corpus, targets)
    search = None
    if held_out:
        search = CorpusSearch(index.passages, held_out, limit=config.validation_passages, seed=config.seed)
    encoder = partial(_encoder, config, tokens)
    hooks: tuple[Refresh, ...] = ()
    if refreshes and split is not None and batches.questions is not None:
        hooks = (_refresh(config, run, examples_key(split, index), index, batches.questions, model, tokens),)
    return Method(
        model, run.master(model), batches, partial(_loss, model, tokens),
        export=lambda trained: _export(config, run.out / "encoder", tokens, trained),
        card=Card("retrievers.training", "static.md", {"teacher": identity.name}),
        evaluate=None if search is None else lambda: _figures(encoder(model), held_out, search),
        hooks=hooks,
        facts={
            "teacher": Path(identity.name).name,
            "tokens": tokens.size,
            "dimensions": config.dim,
            "passages of the corpus": len(corpus),
            "passages fitted to": min(_FITTED_PASSAGES, len(index.passages)),
            "training questions": 0 if data is None else len(data),
            "held-out questions": len(held_out),
            **({"negatives": f"mined anew every {config.refresh_every_steps} steps"} if refreshes else {}),
        },
    )  # fmt: skip


def _refresh(
    config: StaticTrainConfig,
    run: Run,
    key: str,
    index: Index,
    batches: RetrieverBatches,
    model: TokenVectors,
    tokens: StaticTokenizer,
) -> Refresh:
    """Snapshots out, negatives in, as in `train_ance`."""

    def write_snapshot(folder: Path) -> None:
        vectors = model.tokens.detach().numpy()
        write_static(folder / "encoder", vectors, tokens.file)

    return Refresh(
        config, negatives_refresher, write_snapshot,
        partial(take_up_negatives, batches, index.passages, key=key),
        world=run.world, key=key, must_wait=lambda: not batches.data.has_negatives,
    )  # fmt: skip


def _start_key(config: StaticTrainConfig, index: Index) -> str:
    """Fingerprint of all that decides the result of `_start`."""
    given = StaticEncoder.load(config.start).identity.weights_sha256 if config.start else ""
    return fingerprint([index.version, given, config.dim, config.fit_steps, config.seed])


def _start(config: StaticTrainConfig, index: Index, teacher: Any, tokens: StaticTokenizer) -> Float32:
    """Token vectors of `config.start`, or distilled from a sample of the index, see `distilled_tokens`."""
    embeddings = index.require_dense().embeddings
    count = min(_FITTED_PASSAGES, len(index.passages))
    rows = np.sort(generator(config.seed, 41).choice(len(index.passages), count, replace=False))
    parts = []
    for first in range(0, count, _AT_ONCE):
        parts += tokens.passages(index.passages.get_many(rows[first : first + _AT_ONCE]))
    lengths = np.fromiter(map(len, parts), np.int64, count)
    flat = np.concatenate(parts)
    shares = np.repeat(1 / np.maximum(lengths, 1), lengths).astype(np.float32)
    bags = csr_matrix((shares, flat, np.append(0, np.cumsum(lengths))), shape=(count, tokens.size))
    counts = np.bincount(flat, minlength=tokens.size)
    if config.start:
        given = StaticEncoder.load(config.start).vectors
        if given.shape != (tokens.size, config.dim):
            raise ConfigError(
                f"start {config.start} has {given.shape[0]} vectors of {given.shape[1]} dimensions, expected "
                f"{tokens.size} of {config.dim}",
                hint="give an encoder with the teacher's tokenizer, and its number of dimensions as dim",
            )
        return to_one_scale(given, counts)
    log.info("fitting %d tokens to the vectors of %d passages", tokens.size, count)
    return distilled_tokens(
        teacher, tokens.tokenizer, bags, embeddings.rows(rows), counts,
        dim=config.dim, steps=config.fit_steps,
    )  # fmt: skip


def _batches(
    config: StaticTrainConfig,
    data: ExampleTable | None,
    store: PassageStore,
    targets: TeacherTargets | None,
) -> StaticBatches:
    questions = None
    if data is not None:
        questions = RetrieverBatches(
            data, Epochs.of(config, len(data)), hard_negatives=config.hard_negatives, targets=targets
        )
    sentences = None
    if config.sentences:
        if questions is None:
            once = Epochs.of(config, len(store))
        else:
            steps, size = len(questions), min(config.batch_size, len(store))
            once = Epochs(
                len(store), size, epochs=1 + steps / (len(store) // size), max_batches=steps,
                seed=config.seed,
            )  # fmt: skip
        sentences = IctBatches(store, np.zeros(0, np.int64), once, keep_sentence=0.1, min_words=4)
    objectives: dict[str, Objective] = {
        "in_batch": in_batch_objective,
        "pairwise": pairwise_objective,
        "teacher": target_objective(kl_loss, nll_weight=config.nll_weight),
    }
    objective = objectives[config.loss]
    return StaticBatches(questions, sentences, objective, config.sentences if questions is not None else 1.0)


def _loss(model: TokenVectors, tokens: StaticTokenizer, parts: Sequence[WeightedBatch]) -> Loss:
    def scored(questions: Vectors, passages: Vectors) -> Tensor:
        return score(questions, passages) / _TEMPERATURE

    values, count = [], 0
    for weight, objective, batch in parts:
        ids = tokens.queries(batch.questions), tokens.passages(batch.passages)
        questions, passages = (Vectors(model(side)) for side in ids)
        values.append(weight * objective(questions, passages, batch, scored))
        count += sum(map(len, chain(*ids)))
    return Loss(torch.stack(values).sum(), sum(len(batch.questions) for *_, batch in parts), count)


def _encoder(config: StaticTrainConfig, tokens: StaticTokenizer, model: TokenVectors) -> StaticEncoder:
    identity = EncoderIdentity(
        config.name, "", config.dim, pooling=POOLING, max_length=MAX_LENGTH, similarity="cosine",
        layout=LAYOUT,
    )  # fmt: skip
    return StaticEncoder(model.tokens.detach().numpy(), tokens.tokenizer, identity)


def _figures(
    encoder: StaticEncoder, held_out: Sequence[Example], search: CorpusSearch
) -> Mapping[str, float]:
    return {"average_rank": pool_rank(encoder, held_out), **search.measure(encoder)}


def _export(config: StaticTrainConfig, folder: Path, tokens: StaticTokenizer, trained: Trained) -> None:
    write_static(folder, trained.weights["tokens"].numpy(), tokens.file, stored=config.stored)


def _rows(values: Int32, bounds: Any) -> list[Int32]:
    return np.split(values, bounds[1:-1])
