r"""Train question encoder and span reader together, from answers alone, over a fixed index (ORQA).

    L = −log Σ_{p in the first C, a in p} P(p|q) − log Σ_{p in the first K, spans s of p that are a}
    P(p, s|q)

    P(p|q)    = softmax over the first C passages of S(q, p)
    P(p, s|q) = softmax over all spans of the first K passages of S(q, p) + start(q, p, s) + end(q,
    p, s)

S is the inner product of the question's vector, which is learned, and the passage's, which is
fixed. A question contributes to a term only if one of that term's passages contains its answer.

Source:
    Lee et al. 2019, "Latent Retrieval for Weakly Supervised Open Domain Question Answering",
    sections 4 and 6.

Note:
    A span's score is the sum of two logits, as in every reader here; the paper has a small network
    over both ends. Answers may also be regular expressions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from indexers.index import Index
from rag.core.arrays import Int64
from rag.core.types import Question
from rag.data.questions import draw_sample
from rag.data.selection import check_usable
from rag.joint.config import OrqaTrainConfig
from rag.joint.finders import LearningFinder
from rag.joint.live_index import LiveIndex
from rag.joint.questions import holding_answers, questions_of
from rag.runtime.model_files import position_limit
from rag.training.distributed import World
from rag.training.fit import Loss, Method, Weights
from rag.training.precision import MasterWeights, part
from rag.training.run import train
from readers.extractive.files import start_model
from readers.extractive.layout import (
    Row,
    pair_template,
    row_tensors,
    span_scores,
    tokenize_texts,
)
from readers.extractive.model import SpanModel
from readers.extractive.reader import ExtractiveReader
from readers.extractive.settings import ReaderSettings
from readers.extractive.training.finish import export_int8
from readers.extractive.training.losses import marginal_loss
from readers.manifest import Calibration
from retrievers.examples.batches import Epochs
from retrievers.examples.data import answer_matcher
from retrievers.training.bi_encoder import BiEncoderModel, adopt_index, load_model, score_rows
from retrievers.training.recipe import encoder_card, export_retriever

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Training questions looked up before training.
_SAMPLE = 500
# Null bias of a reader that was never shown passages without an answer.
_NEVER = -1000.0


def early_loss(retrieval: Tensor, answered: Tensor) -> Tensor:
    """−log of the share of P(p|q) on passages that hold an answer; a mean over questions that have
    such passages.

    Args:
        retrieval: (B, C) S(q, p), −inf where there are fewer passages.
        answered: (B, C) bool.

    Example:
        >>> answered = torch.tensor([[True, True, False, False], [False] * 4])
        >>> round(float(early_loss(torch.zeros(2, 4), answered)), 4)
        0.6931
    """
    return marginal_loss(retrieval, retrieval.isfinite(), answered)


def full_loss(retrieval: Tensor, start: Tensor, end: Tensor, text: Tensor, right: Tensor) -> Tensor:
    """−log of the share of P(p, s|q) on right spans; a mean over questions that have any.

    Args:
        retrieval: (B, K) S(q, p), −inf where there are fewer passages.
        start, end: (B, K, L) logits.
        text: (B, K, L) bool, tokens that a span may hold.
        right: (B, K, L, W) bool, by first token and length − 1; W is the longest span.
    """
    joint = span_scores(start, end, text, text, right.shape[-1]) + retrieval[:, :, None, None]
    return marginal_loss(joint.flatten(1), joint.isfinite().flatten(1), right.flatten(1))


def train_orqa(config: OrqaTrainConfig) -> Path:
    """Train as `config` says, or resume the run in `config.out`; see `rag.training.run.train`.

    Writes `index/`, the index for the trained encoder, and `reader/`, which adds the retrieval
    score to a span's as in training: `rag evaluate --index OUT/index --reader OUT/reader`.

    Returns:
        The folder of the finished encoder, `config.out / "encoder"`.

    Raises:
        DataError: no answer is in any passage that is retrieved.
        MismatchedArtifactError: the index was built with another encoder.
    """
    with Index.open(config.index) as index:
        adopted = adopt_index(config, index, same_encoder=True)
        recipe = partial(build, adopted, index=index)
        return train(adopted, recipe, "encoder", one_process="only questions are encoded")


def build(config: OrqaTrainConfig, world: World, *, index: Index) -> Method:
    """The method of `train_orqa`."""
    # model
    trained = load_model(config, world.device, passage_index=index)
    retriever = trained.model
    reader, tokenizer = start_model(
        config.reader,
        longest=config.reader_tokens,
        seed=config.seed,
        dropout=config.reader_dropout,
        freeze_word_embeddings=config.freeze_word_embeddings,
    )
    module = nn.ModuleDict({"retriever": retriever, "reader": reader.to(world.device)})
    master = MasterWeights(module, config.precision)
    settings = ReaderSettings(
        max_tokens=min(config.reader_tokens, position_limit(reader.encoder.config.to_dict())),
        max_answer_tokens=config.max_answer_tokens,
        score_weight=retriever.scale,
    )

    # data
    questions, held_out = questions_of(config)
    task = OrqaTask(config, retriever, reader, tokenizer, settings, index, questions)
    share = task.answered_share()

    def export(weights: Weights) -> None:
        export_retriever(trained, part(weights, "retriever"))
        with Index.open(config.out / "index") as reissued:
            encoder = reissued.require_dense().encoder.to_json()
        export_int8(
            config.out / "reader",
            reader,
            part(weights, "reader"),
            tokenizer,
            name=f"{config.name}-reader",
            settings=settings,
            calibration=Calibration(null_bias=_NEVER),
            retriever={"kind": "dense", "encoder": encoder},
        )

    return Method(
        model=module,
        master=master,
        batches=Epochs.of(config, len(questions)),
        loss=task.loss,
        export=export,
        card=encoder_card(trained),
        evaluate=partial(task.measure, held_out) if held_out else None,
        facts={
            "training questions": len(questions),
            "held-out questions": len(held_out),
            "questions with an answer among the first passages, in percent": round(100 * share, 1),
            "passages of the index": len(index.passages),
        },
    )


@dataclass
class OrqaTask:
    """Questions over the index: what a step minimises, and what is measured.

    Attributes:
        settings: how the finished reader reads, and how it reads in training.
        questions: the training questions.
    """

    config: OrqaTrainConfig
    retriever: BiEncoderModel
    reader: SpanModel
    tokenizer: PreTrainedTokenizerBase
    settings: ReaderSettings
    index: Index
    questions: Sequence[Question]

    def __post_init__(self) -> None:
        self._template = pair_template(self.tokenizer)
        self._live_index = LiveIndex(self.index)
        self._finder = LearningFinder(self.retriever, self._live_index, top_k=self.config.read)

    def loss(self, numbers: Int64) -> Loss:
        """Both losses of the training questions with these numbers."""
        questions = [self.questions[number] for number in numbers.tolist()]
        vectors = self._finder.vectors(questions)  # (B, D)
        rows = self._live_index.search(vectors, self.config.early)  # (B, C)
        retrieval = score_rows(self.retriever, self.index, vectors, rows)  # (B, C)
        answered = self._answered(questions, rows)
        early = early_loss(retrieval, answered.to(retrieval.device))

        count = self.config.read
        full, share_right, n_tokens = self._reader_loss(
            questions, rows[:, :count], retrieval[:, :count]
        )
        found = answered.any(1).float().mean()
        parts = {"early": early, "full": full, "found": found, "read": share_right}
        return Loss(early + full, len(questions), n_tokens, parts=parts)

    def _answered(self, questions: Sequence[Question], rows: Int64) -> Tensor:
        """(B, C) bool, which passages hold an answer of their question; row −1 holds none."""
        found = (self.index.passages.get_many(row[row >= 0]) for row in rows)
        return holding_answers(questions, found, rows.shape)

    def _reader_loss(
        self, questions: Sequence[Question], rows: Int64, retrieval: Tensor
    ) -> tuple[Tensor, Tensor, int]:
        """The reader's loss over passages of the index, the share of questions with a right span,
        and how many tokens it took.

        Of a long passage the reader reads its beginning.

        Args:
            rows, retrieval: (B, K) the passages and their scores.
        """
        passages = self.index.passages.get_many(np.maximum(rows, 0).ravel())
        heads = tokenize_texts(self.tokenizer, [question.text for question in questions])
        titles = tokenize_texts(self.tokenizer, [passage.title for passage in passages])
        texts = tokenize_texts(self.tokenizer, [passage.text for passage in passages])
        longest = self.config.max_answer_tokens
        matchers = list(map(answer_matcher, questions))
        read: list[Row] = []
        # Of each right span the row, the first token and its length − 1.
        spans: list[tuple[int, int, int]] = []
        for number, passage in enumerate(passages):
            b = number // rows.shape[1]
            head = heads.tokens(b)[: self.settings.question_tokens]
            title = titles.tokens(number)[: self.settings.title_tokens]
            room = self.settings.max_tokens - self._template.size(head, title)
            row = self._template.row(head, title, texts.tokens(number)[:room])
            places = matchers[b].places(passage.text)
            for first, last in texts.located(number, places, longest):
                if last < room:
                    spans.append((number, row.text_from + first, last - first))
            read.append(row)
        ids, mask, types, text = row_tensors(self._template, read)
        right = torch.zeros(*ids.shape, longest, dtype=torch.bool)  # (B·K, L, W)
        right[tuple(torch.tensor(spans).long().view(-1, 3).T)] = True
        device = retrieval.device
        logits = self.reader(ids.to(device), mask.to(device), types.to(device))
        start = logits.start.unflatten(0, rows.shape)  # (B, K, L)
        end = logits.end.unflatten(0, rows.shape)
        text = text.unflatten(0, rows.shape).to(device)
        right = right.unflatten(0, rows.shape).to(device)
        right &= retrieval.isfinite()[:, :, None, None]
        share_right = right.flatten(1).any(1).float().mean()
        return full_loss(retrieval, start, end, text, right), share_right, int(mask.sum())

    @torch.no_grad()
    def answered_share(self) -> float:
        """Share of a sample of questions that have an answer among their first C passages now.

        Raises:
            DataError: none has.
        """
        sample = draw_sample(self.questions, _SAMPLE, self.config.seed)
        self.retriever.eval()
        vectors = self._finder.vectors(sample)
        self.retriever.train()
        rows = self._live_index.search(vectors, self.config.early)
        usable = int(self._answered(sample, rows).any(1).sum())
        what = f"training questions have an answer among their first {self.config.early} passages"
        hint = "check that the answers are of this corpus, or start from a better retriever: `rag train ict`"
        return check_usable(usable, len(sample), what, hint=hint)

    def measure(self, questions: Sequence[Question]) -> dict[str, float]:
        """Answers and retrieval of held-out questions, in percent."""
        self.retriever.eval()
        reader = ExtractiveReader(
            self.reader.eval(), self.tokenizer, self.settings, device=self.retriever.device
        )
        return self._finder.evaluate(questions, reader, self.config.batch_size)[1]
