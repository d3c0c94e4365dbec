"""Train a static encoder, one vector per token: fit the vectors of any encoder, then learn from questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, normalize

from indexers.index import Index
from indexers.protocols import EncoderIdentity
from rag.core.arrays import Float32, Int32
from rag.core.errors import ConfigError
from rag.core.files import fingerprint
from rag.core.npy import load_npy, save_npy
from rag.data.examples import Example
from rag.training.card import Card
from rag.training.claim import input_checksums
from rag.training.fit import Loss
from rag.training.run import Method, Run, train
from retrievers.encoders.open import load_like, tokenizer_folder
from retrievers.encoders.settings import STATIC, STATIC_LENGTH
from retrievers.encoders.static import StaticEncoder, write_static
from retrievers.encoders.vectors import Vectors, score
from retrievers.examples.batches import Epochs, RetrieverBatch, RetrieverBatches
from retrievers.examples.corpus import open_corpus
from retrievers.examples.data import split_examples
from retrievers.training.ict import IctBatches
from retrievers.training.losses import in_batch_objective
from retrievers.training.static_config import StaticTrainConfig
from retrievers.training.static_start import FITTED_PASSAGES, StaticTokenizer, distilled_tokens
from retrievers.training.validation import CorpusSearch, pool_rank

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


@dataclass(frozen=True, slots=True)
class StaticBatches:
    """The batches of a run: questions, if there are any, with their passages, and sentences with theirs."""

    questions: RetrieverBatches | None
    sentences: IctBatches

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, step: int) -> list[RetrieverBatch]:
        return [part[step] for part in (self.questions, self.sentences) if part is not None]


def train_static(config: StaticTrainConfig) -> Path:
    """Train a static encoder as `config` says, or resume the run; see `rag.training.run.train`.

    The teacher's vectors of single tokens are fitted to its vectors of the index's passages
    (`distilled_tokens`); then in-batch training moves questions towards their passages, and sentences towards
    the passages that they were taken from.

    Returns:
        The folder of the finished encoder, `config.out / "encoder"`, which sentence-transformers
        (StaticEmbedding) and model2vec open too.

    Raises:
        ConfigError: the index has no vector per passage, or fewer dimensions than `dim`.
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
    # model
    identity, seed = index.require_dense().embeddings.encoder, config.seed
    tokens, dim = StaticTokenizer(tokenizer_folder(identity.name)), config.dim
    folder = run.out / "data"
    start = folder / f"start-{fingerprint([index.version, dim, seed])[:16]}.npy"
    if not start.exists():
        folder.mkdir(parents=True, exist_ok=True)
        teacher = load_like(identity)
        index.check_encoder(teacher.identity)
        save_npy(start, distilled_tokens(teacher, index, tokens, dim=dim, seed=seed))
        teacher.close()
    model = TokenVectors(load_npy(start, dtype=np.float32, shape=(tokens.size, dim)))

    # data
    corpus, questions = index.passages, None
    held_out: Sequence[Example] = ()
    if config.corpus:
        corpus, _ = open_corpus(config.corpus, folder, known=input_checksums(run.out))
    if config.train_files:
        split = split_examples(config, folder)
        epochs, held_out = Epochs.of(config, len(split.training)), split.held_out
        questions = RetrieverBatches(split.training, epochs, hard_negatives=config.hard_negatives)
        steps = len(epochs)
        examples = Epochs(len(corpus), config.batch_size, epochs=steps, max_batches=steps, seed=seed)
    else:
        examples = Epochs.of(config, len(corpus))
    sentences = IctBatches(corpus, np.zeros(0, np.int64), examples, keep_sentence=0.1, min_words=4)

    # measuring
    encoder = partial(_encoder, config, tokens)
    search = None
    if held_out:
        search = CorpusSearch(index.passages, held_out, limit=config.validation_passages, seed=seed)
    return Method(
        model, run.master(model), StaticBatches(questions, sentences), partial(_loss, model, tokens),
        export=lambda weights: write_static(
            run.out / "encoder", weights["tokens"].numpy(), tokens.file
        ),
        card=Card("retrievers.training", "static.md", {"teacher": identity.name}),
        evaluate=None if search is None else lambda: _figures(encoder(model), held_out, search),
        facts={
            "teacher": Path(identity.name).name,
            "tokens": tokens.size,
            "dimensions": dim,
            "passages of the corpus": len(corpus),
            "passages fitted to": min(FITTED_PASSAGES, len(index.passages)),
            "training questions": 0 if questions is None else len(questions.data),
            "held-out questions": len(held_out),
        },
    )  # fmt: skip


def _loss(model: TokenVectors, tokens: StaticTokenizer, parts: Sequence[RetrieverBatch]) -> Loss:
    def scored(questions: Vectors, passages: Vectors) -> Tensor:
        return score(questions, passages) / _TEMPERATURE

    values, count = [], 0
    for batch in parts:
        ids = tokens.queries(batch.questions), tokens.passages(batch.passages)
        questions, passages = (Vectors(model(side)) for side in ids)
        values.append(in_batch_objective(questions, passages, batch, scored))
        count += sum(map(len, chain(*ids)))
    return Loss(torch.stack(values).sum(), sum(len(batch.questions) for batch in parts), count)


def _encoder(config: StaticTrainConfig, tokens: StaticTokenizer, model: TokenVectors) -> StaticEncoder:
    identity = EncoderIdentity(
        config.name, "", config.dim, pooling=STATIC, max_length=STATIC_LENGTH, similarity="cosine"
    )  # fmt: skip
    return StaticEncoder(model.tokens.detach().numpy(), tokens.tokenizer, identity)


def _figures(
    encoder: StaticEncoder, held_out: Sequence[Example], search: CorpusSearch
) -> Mapping[str, float]:
    return {"average_rank": pool_rank(encoder, held_out), **search.measure(encoder)}
