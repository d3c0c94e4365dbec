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

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from indexers.index import Index
from rag.core.arrays import Bool, Int64
from rag.core.types import Query, Question
from rag.data.selection import check_usable
from rag.data.text import exact_match
from rag.joint.config import OrqaTrainConfig
from rag.joint.finding import LiveIndex
from rag.joint.questions import JUDGED, answer_rank, questions_of, retrieval_figures
from rag.runtime.model_files import position_limit
from rag.runtime.seeds import generator
from rag.training.distributed import World
from rag.training.fit import Loss, Method, Weights
from rag.training.precision import MasterWeights, part
from rag.training.run import train
from readers.answers import first_answers
from readers.extractive.files import start_model
from readers.extractive.layout import (
    pair_template,
    row_tensors,
    rows_of_pairs,
    span_scores,
    tokenize_texts,
)
from readers.extractive.model import SpanModel
from readers.extractive.reader import ExtractiveReader
from readers.extractive.settings import ReaderSettings
from readers.extractive.training.finish import export_int8
from readers.extractive.training.losses import marginal_loss
from readers.manifest import Calibration
from readers.protocols import ReadRequest
from retrievers.examples.batches import Epochs
from retrievers.examples.data import answer_matcher
from retrievers.training.bi_encoder import BiEncoderModel, adopt_index, load_model, score_rows
from retrievers.training.recipe import encoder_card, export_frozen, frozen_form

_SAMPLE = 500  # training questions looked up before training
_NEVER = -1000.0  # null bias of a reader that was never shown passages without an answer


def early_loss(retrieval: Tensor, answered: Tensor) -> Tensor:
    """−log of the share of P(p|q) on passages that hold an answer; a mean over questions that have
    one.

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
    """−log of the share of P(p, s|q) on right spans; a mean over questions that have one.

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
        return train(
            adopted,
            partial(build, adopted, index),
            "encoder",
            one_process="only questions are encoded",
        )


def build(config: OrqaTrainConfig, index: Index, world: World) -> Method:
    """The method of `train_orqa`."""
    # model
    retriever = load_model(config, world.device, freeze_passages=True)
    reader, tokenizer = start_model(
        config.reader,
        longest=config.reader_tokens,
        seed=config.seed,
        dropout=config.reader_dropout,
        freeze_word_embeddings=config.freeze_word_embeddings,
    )
    module = nn.ModuleDict({"retriever": retriever, "reader": reader.to(world.device)})
    master = MasterWeights(module, config.precision)

    # data
    questions, held_out = questions_of(config)
    tokens = retriever.tokenizer.queries([Query(question.text) for question in questions])
    task = _Task(config, retriever, reader, tokenizer, index, questions, tokens)
    share = task.answered_share()

    def export(weights: Weights) -> None:
        export_frozen(index, retriever, part(weights, "retriever"))
        with Index.open(config.out / "index") as reissued:
            encoder = reissued.require_dense().encoder.to_json()
        export_int8(
            config.out / "reader",
            reader,
            part(weights, "reader"),
            tokenizer,
            name=f"{config.name}-reader",
            settings=task.settings,
            calibration=Calibration(null_bias=_NEVER),
            retriever={"kind": "dense", "encoder": encoder},
        )

    return Method(
        model=module,
        master=master,
        batches=Epochs.of(config, len(questions)),
        loss=task.loss,
        export=export,
        card=encoder_card(retriever.config, frozen_form(retriever)),
        evaluate=partial(task.measure, held_out) if held_out else None,
        facts={
            "training questions": len(questions),
            "held-out questions": len(held_out),
            "questions with an answer among the first passages, in percent": round(100 * share, 1),
            "passages of the index": len(index.passages),
        },
    )


class _Task:
    """Questions over the index: what a step minimises, and what is measured."""

    def __init__(
        self,
        config: OrqaTrainConfig,
        retriever: BiEncoderModel,
        reader: SpanModel,
        tokenizer: Any,
        index: Index,
        questions: Sequence[Question],
        tokens: Sequence[Sequence[int]],
    ) -> None:
        self.config, self.retriever, self.reader, self.tokenizer = (
            config,
            retriever,
            reader,
            tokenizer,
        )
        self.index, self.live_index, self.questions, self.tokens = (
            index,
            LiveIndex(index),
            questions,
            tokens,
        )
        limit = position_limit(reader.encoder.config.to_dict())
        self.settings = ReaderSettings(
            max_tokens=min(config.reader_tokens, limit),
            question_tokens=config.reader_question_tokens,
            title_tokens=config.title_tokens,
            max_answer_tokens=config.max_answer_tokens,
            score_weight=retriever.scale,
        )
        self._template = pair_template(tokenizer)

    def loss(self, chosen: Int64) -> Loss:
        """Both losses of some questions."""
        ids = [self.tokens[number] for number in chosen.tolist()]
        vectors = self.retriever.encode_questions(ids)  # (B, D)
        rows = self.live_index.search(vectors, self.config.early)  # (B, C)
        retrieval = score_rows(self.retriever, self.index, vectors, rows)  # (B, C)
        answered = np.stack(
            [self.answered(n, row) for n, row in zip(chosen.tolist(), rows, strict=True)]
        )
        early = early_loss(retrieval, torch.from_numpy(answered).to(retrieval.device))
        first = rows[:, : self.config.read]
        full, read_right, tokens = self._reader_loss(
            chosen, first, retrieval[:, : self.config.read]
        )
        return Loss(
            early + full,
            examples=len(chosen),
            tokens=tokens + sum(map(len, ids)),
            parts={
                "early": early,
                "full": full,
                "found": float(answered.any(1).mean()),
                "read": read_right,
            },
        )

    def answered(self, number: int, rows: Int64) -> Bool:
        """(C,) which passages hold an answer of training question `number`; −1 holds none."""
        there = np.flatnonzero(rows >= 0)
        answered = np.zeros(len(rows), bool)
        question = self.questions[number]
        matcher = answer_matcher(question)
        passages = self.index.passages.get_many(rows[there])
        answered[there] = [matcher.matches(passage.text) for passage in passages]
        return answered

    def _reader_loss(
        self, chosen: Int64, rows: Int64, retrieval: Tensor
    ) -> tuple[Tensor, float, int]:
        """The reader's loss, the share of questions with a right span, and how many tokens it
        took.
        """
        shape = rows.shape  # (B, K)
        unique, inverse = np.unique(np.maximum(rows, 0), return_inverse=True)
        passages = self.index.passages.get_many(unique)
        questions = tokenize_texts(
            self.tokenizer, [self.questions[number].text for number in chosen.tolist()]
        )
        titles = tokenize_texts(self.tokenizer, [passage.title for passage in passages])
        texts = tokenize_texts(self.tokenizer, [passage.text for passage in passages])
        pairs = [(place // shape[1], int(u)) for place, u in enumerate(inverse.reshape(-1))]
        windows = rows_of_pairs(self._template, self.settings, pairs, questions, titles, texts)
        first = {row.group: row for row in reversed(windows)}  # of a long passage its first window
        empty = replace(windows[0], text_from=0, text_to=0)  # for texts without a token
        chosen_rows = [first.get(group, empty) for group in range(len(pairs))]
        ids, mask, types, text = row_tensors(self._template, chosen_rows)
        longest = self.config.max_answer_tokens
        right = torch.zeros(*ids.shape, longest, dtype=torch.bool)  # (B·K, L, W)
        for group, (place, number) in enumerate(pairs):
            row, question = chosen_rows[group], self.questions[int(chosen[place])]
            matcher = answer_matcher(question)
            for begin, last in texts.located(
                number, matcher.places(passages[number].text), longest
            ):
                if row.text_from + last < row.text_to:
                    right[group, row.text_from + begin, last - begin] = True
        device = retrieval.device
        logits = self.reader(ids.to(device), mask.to(device), types.to(device))
        start, end = (values.unflatten(0, shape) for values in (logits.start, logits.end))
        text, right = text.unflatten(0, shape).to(device), right.unflatten(0, shape).to(device)
        right &= retrieval.isfinite()[:, :, None, None]
        value = full_loss(retrieval, start, end, text, right)
        return value, float(right.flatten(1).any(1).float().mean()), int(mask.sum())

    @torch.no_grad()
    def answered_share(self) -> float:
        """Share of a sample of questions that have an answer among their first C passages now.

        Raises:
            DataError: none has.
        """
        count = min(_SAMPLE, len(self.questions))
        sample = generator(self.config.seed, 41).choice(len(self.questions), count, replace=False)
        self.retriever.eval()
        vectors = self.retriever.encode_questions([self.tokens[int(n)] for n in sample])
        self.retriever.train()
        rows = self.live_index.search(vectors, self.config.early)
        usable = sum(self.answered(int(n), row).any() for n, row in zip(sample, rows, strict=True))
        what = f"training questions have an answer among their first {self.config.early} passages"
        hint = "check that the answers are of this corpus, or start from a better retriever: `rag train ict`"
        return check_usable(int(usable), count, what, hint=hint)

    @torch.no_grad()
    def measure(self, questions: Sequence[Question]) -> dict[str, float]:
        """Exact match and retrieval of held-out questions, in percent."""
        retriever = self.retriever.eval()
        vectors = retriever.ask([Query(question.text) for question in questions])
        k = self.config.read
        rows = self.live_index.search(vectors, max(JUDGED, k))
        scores = score_rows(retriever, self.index, vectors, rows) / retriever.scale
        passages = self.live_index.passages_of(rows)
        first = [listed[:JUDGED] for listed in passages]
        figures = retrieval_figures(list(map(answer_rank, questions, first)))
        reader = ExtractiveReader(
            self.reader.eval(), self.tokenizer, self.settings, device=retriever.device
        )
        requests = []
        for question, listed, row in zip(questions, passages, scores.tolist(), strict=True):
            best = listed[:k]
            requests.append(ReadRequest.of(question.text, best, row[: len(best)]))
        answers = first_answers(reader, requests)
        right = sum(
            text is not None and exact_match(text, question.answers, question.answer_profile)
            for question, text in zip(questions, answers, strict=True)
        )
        return {"em": 100.0 * right / len(questions), **figures}
