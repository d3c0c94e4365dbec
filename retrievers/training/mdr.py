"""Train a retriever over hops (MDR): the recipe, top to bottom."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from indexers.index import Index
from rag.core.arrays import Int64
from rag.core.types import Question
from rag.data.examples import Example
from rag.data.questions import draw_sample, read_questions
from rag.training.fit import Loss, Method
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
    return train_bi_encoder(config, build, one_process=one_process)


def build(run: BiEncoderRun) -> Method:
    """The method of `train_mdr`."""
    config = run.config
    bank = run.bank
    is_against_index = config.negatives == "index"
    index = Index.open(config.index) if bank is None and config.index is not None else bank
    split = run.split_examples(
        partial(_hops, config, None if index is None else passage_finder(index.passages)),
        per_question=_MOST_EXAMPLES,
        fixes_vectors=not is_against_index,
    )
    data = split.training
    batches = hop_batches(config, data)
    facts = {"training examples (hops)": len(data)}
    method = partial(run.method, held_out=split.held_out, facts=facts, make_batches=hop_batches)
    if is_against_index:
        assert bank is not None
        step = partial(index_step, run.model, data, index=bank, depth=config.depth)
        return method(batches.examples, step=step)
    return method(batches)


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
    first = torch.zeros(len(rows), dtype=torch.int64, device=queries.device)
    value = cross_entropy(scores, first)
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
