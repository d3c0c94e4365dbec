"""Train a retriever over hops (MDR): the recipe, top to bottom."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch.nn.utils.rnn import pad_sequence

from indexers.index import Index
from rag.core.arrays import Int64
from rag.core.errors import DataError
from rag.core.types import Question
from rag.data.examples import Example
from rag.data.questions import draw_sample, read_questions
from rag.training.fit import Loss
from rag.training.run import Method
from retrievers.examples.batches import RetrieverBatch
from retrievers.examples.data import ExampleSplit, ExampleTable, divide, file_sums
from retrievers.examples.hops import (
    HopBatches,
    HopEpochs,
    PassageFinder,
    hop_examples,
    passage_finder,
)
from retrievers.training.bi_encoder import BiEncoderModel
from retrievers.training.config import ContrastiveConfig
from retrievers.training.frozen import score_rows
from retrievers.training.losses import in_batch_loss, in_batch_objective
from retrievers.training.momentum import MomentumQueue
from retrievers.training.path_scores import PathScores
from retrievers.training.recipe import BiEncoderRun, train_bi_encoder

_MOST_EXAMPLES = 24  # per question: four orders of six hops


class MdrTrainConfig(ContrastiveConfig):
    """Settings of `rag train mdr`.

    Attributes:
        train_files: question sets with gold passages (HotpotQA, 2WikiMultiHopQA, MuSiQue, MDR's files, JSON
            Lines with `gold_passage_ids`), of which those with one gold passage are trained on as one hop.
        validation_file: a question set.
        index: its passages stand for the gold passages.
        batch_size: number of questions in a step, each with all its hops.
        max_hops: questions that need more are left out.
        query_tokens: maximum query length with passages, special tokens included.
        negatives: "batch" uses the other passages of the batch and trains all towers; with `frozen`
            "passage" it trains the question tower alone, on the vectors of `index` if that is given. "index"
            uses the passages that the question tower retrieves from `index` at that step, and trains only the
            question tower. If passage vectors do not change, OUT/index is the index for the trained encoder.
        depth: number of passages retrieved for each hop with negatives "index".
        queue_size: number of passage vectors of earlier batches that serve as further negatives; 0 for none.
        momentum: momentum of the copy of the passage tower that computes these; with 1 it never changes.

    `select_by` may be "path1" or "path10": the share of held-out questions whose passages are the best
    path, or one of the best ten, among the passages of the index with negatives "index", else of the held-out
    questions.
    """

    recipe: ClassVar[str] = "mdr"
    trains: ClassVar[str] = "retrievers.training.mdr:train_mdr"
    measured: ClassVar[tuple[str, ...]] = ("path1", "path10")

    max_hops: int = Field(default=4, ge=1, le=6)
    query_tokens: int = Field(default=256, ge=8, le=4096)
    negatives: Literal["batch", "index"] = "batch"
    depth: int = Field(default=200, ge=1)
    hard_negatives: int = Field(default=2, ge=0)
    queue_size: int = Field(default=0, ge=0)
    momentum: float = Field(default=0.999, ge=0, le=1)

    @property
    def longest_query(self) -> int:
        """Maximum query length with passages."""
        return self.query_tokens

    @property
    def keeps_index(self) -> bool:
        """Whether training uses the vectors of `index` for the passages and leaves them unchanged."""
        return self.negatives == "index" or super().keeps_index

    @model_validator(mode="after")
    def _cross_check_mdr(self) -> "MdrTrainConfig":
        if self.negatives == "index" and (self.index is None or self.shared):
            raise ValueError("negatives=index needs an index, and shared=false: its vectors stay as they are")
        if self.negatives == "index" and self.queue_size:
            raise ValueError("negatives=index needs no queue of passage vectors: set queue_size=0")
        if self.hold_out == "title":
            raise ValueError("hold_out=title: the hops of a question have different titles; use question")
        return self


def train_mdr(config: MdrTrainConfig) -> Path:
    """Train a retriever as `config` says (over an index in one process); see `train_bi_encoder`.

    Every hop is a query of its own: the first is the question, each later one the question and the passages
    so far.

    Source:
        Xiong et al. 2021, "Answering Complex Open-Domain Questions with Multi-Hop Dense Retrieval".

    Note:
        The paper has two hops, this any number; its order of bridge questions is the data set's, here it
        follows from the passages (`hop_orders`). Its second stage trains the question encoder against a bank
        of passage vectors that does not change: that is negatives "index", with the whole corpus as the bank.
    """
    one_process = "only questions are encoded" if config.keeps_index else ""
    return train_bi_encoder(config, _method, one_process=one_process)


def _method(config: MdrTrainConfig, run: BiEncoderRun) -> Method:
    bank, model = run.bank, run.model
    if bank is None and config.index is not None:
        with Index.open(config.index) as index:
            split = split_hops(config, run.out / "data", index)
    else:
        split = split_hops(config, run.out / "data", bank)
    searched = None if bank is None or bank.dense is None else (bank.dense, bank.passages)
    scores = None
    if run.world.is_main and split.held_out:
        most = config.validation_questions
        scores = PathScores(split.held_out, most=most, index=searched)

    data = split.training
    examples = HopEpochs(
        data.ids, config.batch_size, epochs=config.epochs, max_batches=config.max_batches,
        seed=config.seed,
    )  # fmt: skip
    facts = {"training examples (hops)": len(data)}
    if config.negatives == "index":
        assert bank is not None
        step = partial(index_step, model, data, index=bank, depth=config.depth)
        return run.method(examples, step, split.held_out, scores, facts=facts)
    run.with_fixed_vectors(split)
    batches = HopBatches(
        data, examples, hard_negatives=config.hard_negatives,
        mask_false_negatives=config.mask_false_negatives,
    )  # fmt: skip
    if not config.queue_size:
        return run.method(batches, run.loss(in_batch_objective), split.held_out, scores, facts=facts)
    queue = MomentumQueue(
        model, run.master, data, size=config.queue_size, momentum=config.momentum, world=run.world
    )
    loss_over_queue = run.loss(queue.objective)

    def queued_step(batch: RetrieverBatch) -> Loss:
        loss = loss_over_queue(batch)
        queue.push(batch)
        return loss

    return run.method(batches, queued_step, split.held_out, scores, [queue], facts)


def index_step(
    model: BiEncoderModel, data: ExampleTable, examples: Int64, *, index: Index, depth: int
) -> Loss:
    """Loss of each hop's passage against what its query retrieves in the index at this step.

    Passages of the question's later hops are masked.

        L = −(1/N) Σ_i log( exp s_{i,t(i)} / (exp s_{i,t(i)} + Σ_{retrieved j, not masked} exp s_{ij}) )

    Args:
        data: its positives are passages of the index.
        examples: (N,) hops.
        depth: number of passages retrieved for each.
    """
    hops = data.take(examples)
    golds = [torch.tensor([index.passages.row_of(passage.id) for passage in hop.positives]) for hop in hops]
    gold = pad_sequence(golds, batch_first=True, padding_value=-1).numpy()  # (N, G), the next one first
    texts = model.tokenizer.queries([hop.query for hop in hops])
    queries = model.encode_questions(texts)  # (N, D)
    _, hits = index.require_dense().vectors.search(queries.detach().float().cpu().numpy(), depth)  # (N, K)
    left_out = (hits[:, :, None] == gold[:, None, :]).any(axis=2)
    rows = np.concatenate([gold[:, :1], np.where(left_out, -1, hits)], axis=1)  # (N, 1 + K)
    scores = score_rows(model, index, queries, rows)
    value = in_batch_loss(scores, torch.zeros(len(rows), dtype=torch.int64, device=queries.device))
    return Loss(value, examples=len(rows), tokens=sum(map(len, texts)))


def split_hops(config: MdrTrainConfig, folder: Path, index: Index | None) -> ExampleSplit:
    """The examples of `config.train_files`; all hops of a question are on the same side.

    Args:
        config: configuration of the run; its `train_questions` counts questions, not hops.
        folder: where the examples of all hops are stored.
        index: its passages stand for the gold passages; questions with one that is not there are left out.
    """
    files, held_out = config.train_files, config.validation_file
    find = None if index is None else passage_finder(index.passages)
    version = "" if index is None else index.version
    sums = file_sums([*files, *([held_out] if held_out else [])])
    return divide(
        folder,
        [sums, held_out is not None, config.max_hops, config.train_questions, version],
        _hops(config, files, find, config.train_questions),
        None if held_out is None else _hops(config, (held_out,), find),
        fraction=config.validation_fraction, most_held_out=config.validation_questions * _MOST_EXAMPLES,
        seed=config.seed,
    )  # fmt: skip


def _hops(
    config: MdrTrainConfig, files: tuple[Path, ...], find: PassageFinder | None, sample: int = 0
) -> Iterator[Example]:
    """The hops of question sets; ids begin with the number of their file."""
    questions: Iterable[Question] = (
        replace(question, id=f"{number}:{question.id}")
        for number, file in enumerate(files)
        for question in read_questions(file)
    )
    if sample:
        questions = draw_sample(questions, sample, config.seed)
    is_empty = True
    for hop in hop_examples(questions, max_hops=config.max_hops, find=find):
        is_empty = False
        yield hop
    if is_empty:
        raise DataError(
            f"{', '.join(map(str, files))}: no question can be trained on; the warnings say why",
            hint="give gold passages; where a set names them without their text, --index has the texts",
        )
