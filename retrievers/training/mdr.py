"""Train a retriever over hops (MDR): the recipe, top to bottom."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from indexers.index import Index
from rag.core.arrays import Int64
from rag.core.files import hash64
from rag.core.types import Passage, Question
from rag.data.examples import Example
from rag.data.questions import draw_sample, read_questions
from rag.training.fit import FitHooks, Loss, Method
from retrievers.encoders.vectors import Vectors
from retrievers.examples.batches import RetrieverBatch
from retrievers.examples.data import ExampleTable
from retrievers.examples.hops import (
    HopBatches,
    HopEpochs,
    PassageFinder,
    hop_examples,
    passage_finder,
)
from retrievers.training.bi_encoder import BiEncoderModel, score_rows
from retrievers.training.config import MdrTrainConfig
from retrievers.training.losses import Score, in_batch_loss, in_batch_objective
from retrievers.training.recipe import BiEncoderRun, train_bi_encoder

_MOST_EXAMPLES = 24  # per question: four orders of six hops


def train_mdr(config: MdrTrainConfig) -> Path:
    """Train a retriever as `config` says (over an index in one process); see `train_bi_encoder`.

    Every hop is a query of its own: the first is the question, each later one the question and the
    passages so far.

    Source:
        Xiong et al. 2021, "Answering Complex Open-Domain Questions with Multi-Hop Dense Retrieval".

    Note:
        The paper has two hops, this any number; its order of bridge questions is the data set's,
        here it follows from the passages (`hop_orders`). Its second stage trains the question
        encoder against a bank of passage vectors that does not change: that is negatives "index",
        with the whole corpus as the bank.
    """
    one_process = "only questions are encoded" if config.keeps_index else ""
    return train_bi_encoder(config, _method, one_process=one_process)


def _method(config: MdrTrainConfig, run: BiEncoderRun) -> Method:
    bank, is_against_index = run.bank, config.negatives == "index"
    index = Index.open(config.index) if bank is None and config.index is not None else bank
    split = run.split_examples(
        partial(_hops, config, None if index is None else passage_finder(index.passages)),
        per_question=_MOST_EXAMPLES,
        fixes_vectors=not is_against_index,
    )
    data = split.training
    batches, facts = hop_batches(config, data), {"training examples (hops)": len(data)}
    method = partial(run.method, held_out=split.held_out, facts=facts, make_batches=hop_batches)
    if is_against_index:
        assert bank is not None
        step = partial(index_step, run.model, data, index=bank, depth=config.depth)
        return method(batches.examples, step)
    if not config.queue_size:
        return method(batches, run.loss(in_batch_objective))
    queue = MomentumQueue(run, data, size=config.queue_size, momentum=config.momentum)
    loss_over_queue = run.loss(queue.objective)

    def queued_step(batch: RetrieverBatch) -> Loss:
        loss = loss_over_queue(batch)
        queue.push(batch)
        return loss

    return method(batches, queued_step, hooks=queue)


def hop_batches(config: MdrTrainConfig, data: ExampleTable, *, once: bool = False) -> HopBatches:
    """Batches of all hops of `config.batch_size` questions."""
    epochs = HopEpochs.of(config, data.ids, once=once)
    return HopBatches(
        data,
        epochs,
        hard_negatives=config.hard_negatives,
        mask_false_negatives=config.mask_false_negatives,
    )


def index_step(
    model: BiEncoderModel, data: ExampleTable, examples: Int64, *, index: Index, depth: int
) -> Loss:
    """Loss of each hop's passage against what its query retrieves in the index at this step.

    Passages of the question's later hops are masked.

        L = −(1/N) Σ_i log( exp s_{i,t(i)} / (exp s_{i,t(i)} + Σ_{retrieved j, not masked} exp
        s_{ij}) )
    """
    hops = data.take(examples)
    golds = [
        torch.tensor([index.passages.row_of(passage.id) for passage in hop.positives])
        for hop in hops
    ]
    gold = pad_sequence(
        golds, batch_first=True, padding_value=-1
    ).numpy()  # (N, G), the next one first
    texts = model.tokenizer.queries([hop.query for hop in hops])
    queries = model.encode_questions(texts)  # (N, D)
    _, hits = index.require_dense().vectors.search(
        queries.detach().float().cpu().numpy(), depth
    )  # (N, K)
    left_out = (hits[:, :, None] == gold[:, None, :]).any(axis=2)
    rows = np.concatenate([gold[:, :1], np.where(left_out, -1, hits)], axis=1)  # (N, 1 + K)
    scores = score_rows(model, index, queries, rows)
    value = in_batch_loss(scores, torch.zeros(len(rows), dtype=torch.int64, device=queries.device))
    return Loss(value, examples=len(rows), tokens=sum(map(len, texts)))


def _hops(
    config: MdrTrainConfig, find: PassageFinder | None, files: Sequence[Path]
) -> Iterator[Example]:
    """The hops of question sets; ids begin with the number of their file."""
    questions: Iterable[Question] = (
        replace(question, id=f"{number}:{question.id}")
        for number, file in enumerate(files)
        for question in read_questions(file)
    )
    if config.train_questions and files == config.train_files:
        questions = draw_sample(questions, config.train_questions, config.seed)
    return hop_examples(questions, max_hops=config.max_hops, find=find)


class MomentumQueue(FitHooks):
    """Vectors of the last `size` passages of the training batches, first in, first out.

    Their vectors come from a copy of the passage tower whose weights follow the trained ones after
    every step, θ' ← m θ' + (1 − m) θ, without dropout. Queue and copy are saved in the checkpoint,
    so that a resumed run gives the same result.

    Args:
        run: its processes encode their shares of the passages, and all have the whole queue.
        data: the training examples, for the positives of each question, which are never its
            negatives.
        momentum: m of the update.

    Source: Xiong et al. 2021, "Answering Complex Open-Domain Questions with Multi-Hop Dense
        Retrieval" (memory bank); He et al. 2020, "Momentum Contrast for Unsupervised Visual
        Representation Learning".

    Note:
        The published code starts with a queue of random vectors and never updates the copy (m = 1);
        here the queue starts empty.
    """

    def __init__(
        self, run: BiEncoderRun, data: ExampleTable, *, size: int, momentum: float
    ) -> None:
        self.model, self.master, self.world, self.data = run.model, run.master, run.world, data
        self.size, self.momentum = size, momentum
        self._tower = copy.deepcopy(self.model.passage).requires_grad_(False).eval()
        side = "question." if self.model.shared else "passage."
        trained, named = self.master.state(), self._tower.named_parameters()
        self._names = {key: tensor for name, tensor in named if (key := f"{side}{name}") in trained}
        self._weights = {name: trained[name].clone() for name in self._names}
        self.vectors = torch.zeros((0, self.model.dim), device=self.world.device)
        self.keys = np.zeros(0, np.int64)

    def objective(
        self, questions: Vectors, passages: Vectors, batch: RetrieverBatch, score: Score
    ) -> Tensor:
        """`in_batch_loss` over the passages of the batch and the queue."""
        scores = torch.cat(
            [score(questions, passages), score(questions, Vectors(self.vectors))], dim=1
        )
        examples = self.data.take(batch.examples)
        queued = np.stack([np.isin(self.keys, _keys(example.positives)) for example in examples])
        ignored = torch.from_numpy(np.concatenate([batch.ignored, queued], axis=1)).to(
            scores.device
        )
        return in_batch_loss(scores, torch.from_numpy(batch.positives).to(scores.device), ignored)

    @torch.no_grad()
    def push(self, batch: RetrieverBatch) -> None:
        """Append the passages of a batch to the queue; those already in it move to its end."""
        passages = batch.passages[self.world.share(len(batch.passages), "passages")]
        if self.model.fixed is not None:
            own = self.model.fixed_vectors(passages).values
        else:
            rows, _ = self.model.chunk()
            ids = self.model.tokenizer.passages(passages)
            parts = [self._tower(ids[start : start + rows]) for start in range(0, len(ids), rows)]
            own = torch.cat([part.values for part in parts])
        new = self.world.all_gather(own.float())
        keys = _keys(batch.passages)
        stays = ~np.isin(self.keys, keys)
        self.vectors = torch.cat([self.vectors[torch.from_numpy(stays).to(new.device)], new])[
            -self.size :
        ]
        self.keys = np.concatenate([self.keys[stays], keys])[-self.size :]

    @torch.no_grad()
    def before_step(self, step: int) -> None:
        """Let the weights of the copy follow the step that was taken."""
        if step == 0:
            return
        now = self.master.state()
        for name, tensor in self._names.items():
            tensor.copy_(self._weights[name].lerp_(now[name], 1.0 - self.momentum))

    def extra_state(self) -> Mapping[str, Tensor]:
        """The queue and the copy's weights."""
        return {"queue": self.vectors, "keys": torch.from_numpy(self.keys), **self._weights}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore the queue and the copy's weights from a checkpoint."""
        self.vectors = state["queue"].to(self.world.device)
        self.keys = state["keys"].numpy()
        for name, tensor in self._names.items():
            tensor.copy_(self._weights[name].copy_(state[name]))


def _keys(passages: Sequence[Passage]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """A 64-bit hash of each passage's title and text."""
    return np.array([hash64(f"{p.title}\0{p.text}".encode()) for p in passages], np.uint64).view(
        np.int64
    )
