"""Train a static encoder, one vector per token: fit the vectors of any encoder, then learn from
questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, normalize

from indexers.index import Index
from indexers.protocols import EncoderIdentity, PassageEncoder
from rag.core.arrays import Float32, Int32, load_npy, save_npy
from rag.core.log import Progress
from rag.core.types import Passage, Query
from rag.data.examples import Example
from rag.runtime.model_files import folder_tokenizer
from rag.runtime.seeds import Stream, generator
from rag.training.card import Card
from rag.training.distributed import World
from rag.training.fit import Loss, Method, Weights
from rag.training.precision import MasterWeights
from retrievers.encoders.open import load_like, tokenizer_folder
from retrievers.encoders.settings import STATIC, STATIC_LENGTH, TITLE_AND_TEXT
from retrievers.encoders.static import StaticEncoder, token_shares, write_static
from retrievers.encoders.tokenization import PassageLayout
from retrievers.encoders.vectors import Vectors, score
from retrievers.examples.batches import Epochs, RetrieverBatch, RetrieverBatches
from retrievers.examples.corpus import open_corpus
from retrievers.examples.data import split_examples
from retrievers.training.config import StaticTrainConfig
from retrievers.training.ict import IctBatches
from retrievers.training.losses import in_batch_loss
from retrievers.training.validation import pool_rank

_FITTED_PASSAGES = 200_000  # of the index, drawn at random
_QUESTION_TOKENS = 64
_PASSAGE_TOKENS = 256  # that are read in training
_AT_ONCE = 2048  # tokens that the teacher encodes, and passages that are read
_STEPS = 20  # of `fit_tokens`
_SMOOTHING = 1e-3  # a of the weights a / (a + p(t))
_RIDGE = 1e-3  # λ of `fit_tokens`
_TEMPERATURE = 0.05  # divides the cosines in the loss


class StaticTokenizer:
    """Questions and passages to token ids, laid out as the finished encoder reads them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._questions = folder_tokenizer(folder)
        self._passages = folder_tokenizer(folder)
        self._questions.enable_truncation(_QUESTION_TOKENS)
        self._passages.enable_truncation(_PASSAGE_TOKENS)
        self.size: int = self._passages.get_vocab_size()
        self._layout = PassageLayout(TITLE_AND_TEXT)

    def text_of(self, token: int) -> str:
        """The text of a token on its own."""
        text: str = self._passages.decode([token], skip_special_tokens=False)
        return text.strip().removeprefix("##")

    def queries(self, queries: Sequence[Query]) -> list[Int32]:
        """Token ids of questions, in order."""
        return _token_ids(self._questions, [query.question for query in queries])

    def passages(self, passages: Sequence[Passage]) -> list[Int32]:
        """Token ids of passages, in order."""
        return _token_ids(self._passages, self._layout.joined(passages))


def _token_ids(tokenizer: Any, texts: list[str]) -> list[Int32]:
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [np.array(encoding.ids, np.int32) for encoding in encodings]


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
        flat = torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *texts]))
        starts = torch.from_numpy(np.cumsum(lengths) - lengths)
        return normalize(embedding_bag(flat, self.tokens, starts, mode="mean"), dim=1)


@dataclass(frozen=True, slots=True)
class StaticBatches:
    """The batches of a run: questions with their passages, and sentences with theirs."""

    questions: RetrieverBatches
    sentences: IctBatches

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, step: int) -> list[RetrieverBatch]:
        return [self.questions[step], self.sentences[step]]


def build(config: StaticTrainConfig, index: Index, world: World) -> Method:
    """The method of `rag train static`. sentence-transformers (StaticEmbedding) and model2vec open
    the finished encoder too.

    The teacher's vectors of single tokens are fitted to its vectors of the index's passages
    (`distilled_tokens`); then in-batch training moves questions towards their passages, and
    sentences towards the passages that they were taken from.
    """
    # data
    seed = config.seed
    folder = config.out / "data"
    folder.mkdir(parents=True, exist_ok=True)
    corpus = index.passages
    if config.corpus:
        corpus = open_corpus(config.corpus, folder)
    split = split_examples(config, folder)
    epochs = Epochs.of(config, len(split.training))
    steps = len(epochs)
    in_corpus = Epochs(len(corpus), config.batch_size, epochs=steps, max_batches=steps, seed=seed)
    batches = StaticBatches(
        RetrieverBatches(split.training, epochs, hard_negatives=config.hard_negatives),
        IctBatches(corpus, np.arange(len(corpus)), in_corpus, keep_sentence=0.1, min_words=4),
    )

    # model
    identity = index.require_dense().encoder
    tokens = StaticTokenizer(tokenizer_folder(identity.name))
    start = folder / "start.npy"
    if not start.exists():
        teacher = load_like(identity)
        index.check_encoder(teacher.identity)
        save_npy(start, distilled_tokens(teacher, index, tokens, dim=config.dim, seed=seed))
    model = TokenVectors(load_npy(start, dtype=np.float32, shape=(tokens.size, config.dim)))

    def export(weights: Weights) -> None:
        write_static(config.out / "encoder", weights["tokens"].numpy(), tokens.folder)

    return Method(
        model,
        MasterWeights(model, config.precision),
        batches,
        partial(_loss, model, tokens),
        export=export,
        card=Card("retrievers.training", "static.md", {"teacher": identity.name}),
        evaluate=partial(_measure, config, model, tokens, split.held_out)
        if split.held_out
        else None,
        facts={
            "teacher": Path(identity.name).name,
            "tokens": tokens.size,
            "dimensions": config.dim,
            "passages of the corpus": len(corpus),
            "held-out questions": len(split.held_out),
            "training questions": len(split.training),
        },
        makes_ahead=True,
    )


def _measure(
    config: StaticTrainConfig,
    model: TokenVectors,
    tokens: StaticTokenizer,
    held_out: Sequence[Example],
) -> Mapping[str, float]:
    """{"average_rank"} of the encoder with the present vectors."""
    identity = EncoderIdentity(
        config.name, "", config.dim, pooling=STATIC, max_length=STATIC_LENGTH, similarity="cosine"
    )
    vectors = model.tokens.detach().numpy()
    encoder = StaticEncoder(vectors, folder_tokenizer(tokens.folder), identity)
    rank = pool_rank(held_out, encoder.encode_queries, encoder.encode_passages)
    return {"average_rank": rank}


def _loss(model: TokenVectors, tokens: StaticTokenizer, parts: Sequence[RetrieverBatch]) -> Loss:
    value = torch.zeros(())
    questions = 0
    count = 0
    for batch in parts:
        question_ids = tokens.queries(batch.questions)
        passage_ids = tokens.passages(batch.passages)
        scores = score(Vectors(model(question_ids)), Vectors(model(passage_ids)))
        value = value + in_batch_loss(scores / _TEMPERATURE, batch)
        questions += len(question_ids)
        count += sum(map(len, question_ids)) + sum(map(len, passage_ids))
    return Loss(value, questions, count)


def fit_tokens(
    bags: csr_matrix, targets: Float32, start: Float32, ridge: float, *, steps: int
) -> Float32:
    r"""Fit token vectors W (V, D) whose means approximate the targets, by conjugate gradients from
    `start`.

        W = argmin ‖X W − T‖² + λ ‖W − W₀‖²

    Every dimension is a separate linear system with the same matrix XᵀX + λ; all are solved
    together. Tokens that occur in no passage stay at W₀.

    Args:
        bags: X (n, V), the share of each token in each passage.
        targets: T (n, D).
        start: W₀ (V, D).
        ridge: λ.
        steps: number of iterations.

    Source:
        Hestenes and Stiefel 1952, "Methods of Conjugate Gradients for Solving Linear Systems".
    """
    turned = bags.T.tocsr()
    fitted = start.copy()
    rest = np.asarray(turned @ (targets - bags @ fitted), np.float32)  # of XᵀT + λW₀ − (XᵀX + λ)W
    along = rest.copy()
    length = _squares(rest, 0)
    for _ in range(steps):
        image = np.asarray(turned @ (bags @ along), np.float32) + np.float32(ridge) * along
        step = length / np.maximum(np.einsum("vd,vd->d", along, image, dtype=np.float64), 1e-30)
        fitted += step.astype(np.float32) * along
        rest -= step.astype(np.float32) * image
        new = _squares(rest, 0)
        along = rest + (new / np.maximum(length, 1e-30)).astype(np.float32) * along
        length = new
    return fitted


def distilled_tokens(
    teacher: PassageEncoder, index: Index, tokens: StaticTokenizer, *, dim: int, seed: int
) -> Float32:
    """Token vectors (V, dim): the teacher's of each token alone, weighted by frequency, then fitted
    to its vectors of passages that are drawn from the index.

    Of the teacher's dimensions the `dim` axes that best preserve inner products are kept. The
    vectors are scaled so that the mean squared length over the tokens of the passages is 1: cosines
    do not depend on the scale, but this way one learning rate suits all teachers.

    Source:
        Tulkens and van Dongen 2024, "Model2Vec: Fast State-of-the-Art Static Embeddings": vectors
        of single tokens, principal components, weights by frequency; the weights a / (a + p(t)) are
        those of Arora et al. 2017, "A Simple but Tough-to-Beat Baseline for Sentence Embeddings",
        equation 3.
    """
    count = min(_FITTED_PASSAGES, len(index.passages))
    rows = np.sort(
        generator(seed, Stream.FREQUENCIES).choice(len(index.passages), count, replace=False)
    )
    parts: list[Int32] = []
    for first in range(0, count, _AT_ONCE):
        parts += tokens.passages(index.passages.get_many(rows[first : first + _AT_ONCE]))
    flat = np.concatenate(parts)
    bounds = np.append(0, np.cumsum(list(map(len, parts)), dtype=np.int64))
    bags = token_shares(flat, bounds, tokens.size)
    counts = np.bincount(flat, minlength=tokens.size)
    frequencies = counts / max(1, counts.sum())  # (V,) p(t)

    targets = index.require_dense().embeddings.rows(rows)
    # Not centred: search compares vectors as they are.
    moments = targets.T.astype(np.float64) @ targets
    axes = np.ascontiguousarray(np.linalg.eigh(moments)[1][:, ::-1][:, :dim], np.float32)
    texts = list(map(tokens.text_of, range(tokens.size)))
    alone = np.empty((len(texts), dim), np.float32)  # (V, dim)
    with Progress(len(texts), "tokens", "encode tokens") as progress:
        for first in range(0, len(texts), _AT_ONCE):
            part = texts[first : first + _AT_ONCE]
            encoded = teacher.encode_passages([""] * len(part), part)
            alone[first : first + len(part)] = np.asarray(encoded, np.float32) @ axes
            progress.update(len(part))
    start = alone * np.asarray(_SMOOTHING / (_SMOOTHING + frequencies), np.float32)[:, None]
    aims = targets @ axes
    means = np.asarray(bags @ start, np.float32)
    # The length that brings the means closest to the targets.
    start *= np.float32((means * aims).sum() / max(float((means**2).sum()), 1e-30))
    fitted = fit_tokens(bags, aims, start, _RIDGE, steps=_STEPS)
    return fitted / np.float32(np.sqrt(max(float(frequencies @ _squares(fitted, 1)), 1e-30)))


def _squares(values: Float32, axis: int) -> Any:
    return np.square(values, dtype=np.float64).sum(axis)
