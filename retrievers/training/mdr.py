"""Train a retriever over hops (MDR): the recipe, top to bottom."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from indexers.index import Index
from rag.core.arrays import Int64
from rag.core.errors import ConfigError, DataError
from rag.core.types import Question
from rag.data.examples import Example
from rag.data.questions import draw_sample, read_questions
from rag.training.fit import Loss
from rag.training.run import Method
from retrievers.examples.batches import RetrieverBatch
from retrievers.examples.data import TrainingSet
from retrievers.examples.hops import (
    HopBatches,
    HopEpochs,
    PassageFinder,
    hop_examples,
    mined_hops,
    passage_finder,
)
from retrievers.training.bi_encoder import BiEncoderModel, adopt_index
from retrievers.training.frozen import score_rows
from retrievers.training.losses import in_batch_loss, in_batch_objective
from retrievers.training.momentum import MomentumQueue
from retrievers.training.path_scores import PathScores
from retrievers.training.recipe import BiEncoderRun, known_vectors, train_model
from retrievers.training.recipe_configs import MdrTrainConfig
from retrievers.training.split import ExampleSplit, divide, file_sums
from retrievers.training.step import contrastive_step

_MOST_EXAMPLES = 24  # per question: four orders of six hops


def train_mdr(config: MdrTrainConfig) -> Path:
    """Train a retriever as `config` says (with negatives "index" in one process); see `train_model`.

    Every hop is a query of its own: the first is the question, each later one the question and the passages
    so far.

    Source:
        Xiong et al. 2021, "Answering Complex Open-Domain Questions with Multi-Hop Dense Retrieval".

    Note:
        The paper has two hops, this any number; its order of bridge questions is the data set's, here it
        follows from the passages (`hop_orders`). Its second stage trains the question encoder against a bank
        of passage vectors that does not change: that is negatives "index", with the whole corpus as the bank.
    """
    if config.index is None:
        return train_model(config, partial(_method, config, index=None))
    with Index.open(config.index) as index:
        if not config.keeps_index:
            return train_model(config, partial(_method, config, index=index))
        adopted = adopt_index(config, index)
        return train_model(
            adopted, partial(_method, adopted, index=index), bank=index,
            one_process="only questions are encoded",
        )  # fmt: skip


def _method(config: MdrTrainConfig, run: BiEncoderRun, *, index: Index | None) -> Method:
    """The training method for the kind of negatives: index, batch, or batch with a queue."""
    settings, world, model, bank = config.data, run.world, run.model, run.bank
    split = split_hops(config, run.out / "data", index)
    negatives_index = bank if settings.negatives == "index" else None
    if bank is not None and negatives_index is None:
        model.known = known_vectors(bank, split.training(), run.tokenizer)
    data = TrainingSet.build(
        split.training(),
        run.tokenizer,
        corpus=() if negatives_index is None else negatives_index.passages,
        folder=run.out / "data",
        key=split.key if negatives_index is None else f"{split.key} {negatives_index.version}",
    )
    examples = HopEpochs(
        data.ids, settings.batch_size, epochs=config.optim.epochs, max_batches=config.optim.max_batches,
        seed=config.run.seed,
    )  # fmt: skip
    scores = None
    if world.is_main and split.held_out:
        searched = None if bank is None or bank.dense is None else (bank.dense, bank.passages)
        scores = PathScores(run.tokenizer, split.held_out, most=settings.validation_questions, index=searched)
    facts = {"training examples (hops)": len(data)}
    if negatives_index is not None:
        step = partial(index_step, model, data, index=negatives_index, depth=settings.depth)
        return run.method(examples, step, split.held_out, scores, facts=facts)
    batches = HopBatches(
        data,
        examples,
        hard_negatives=settings.hard_negatives,
        mask_false_negatives=settings.mask_false_negatives,
    )
    queue = None
    if settings.queue_size:
        queue = MomentumQueue(
            model, run.master, data, size=settings.queue_size, momentum=settings.momentum, world=world
        )

    def batch_step(batch: RetrieverBatch) -> Loss:
        objective = in_batch_objective if queue is None else queue.objective
        loss = contrastive_step(model, batch, world, settings.chunk_size, objective=objective)
        if queue is not None:
            queue.push(batch)
        return loss

    return run.method(batches, batch_step, split.held_out, scores, () if queue is None else (queue,), facts)


def index_step(
    model: BiEncoderModel, data: TrainingSet, examples: Int64, *, index: Index, depth: int
) -> Loss:
    """Loss of each hop's passage against what its query retrieves in the index at this step.

    Passages of the question's later hops are masked.

        L = −(1/N) Σ_i log( exp s_{i,t(i)} / (exp s_{i,t(i)} + Σ_{retrieved j, not masked} exp s_{ij}) )

    Args:
        data: built with the index's passages as its corpus; every positive is one of them.
        examples: (N,) hops.
        depth: number of passages retrieved for each.
    """
    texts = data.questions.take(examples)
    positives = (np.asarray(data.positives[example].values) for example in examples.tolist())
    golds = [torch.from_numpy(data.canonical[rows]) for rows in positives]
    # (N, G), the next one first
    gold = pad_sequence(golds, batch_first=True, padding_value=-1).long().numpy()
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
    data, files, held_out = config.data, config.train_files, config.validation_file
    find = None if index is None else passage_finder(index.passages)
    version = "" if index is None else index.version
    sums = file_sums([*files, *([held_out] if held_out else [])])
    return divide(
        folder, [sums, held_out is not None, data.max_hops, data.any_order, data.train_questions, version],
        _hops(config, files, find, data.train_questions),
        None if held_out is None else _hops(config, (held_out,), find),
        fraction=data.validation_fraction, most_held_out=data.validation_questions * _MOST_EXAMPLES,
        seed=config.run.seed,
    )  # fmt: skip


def _hops(
    config: MdrTrainConfig, files: tuple[Path, ...], find: PassageFinder | None, sample: int = 0
) -> Iterator[Example]:
    """The hops of question sets and those of `rag mine --hops`; ids begin with the number of their file."""
    settings = config.data
    mined = {n: listed for n, file in enumerate(files) if (listed := mined_hops(file, find=find))}
    if mined and (sample or settings.any_order):
        what = "train_questions draws" if sample else "any_order orders"
        raise ConfigError(
            f"{what} whole questions, and {files[min(mined)]} holds mined hops",
            hint="give the question set itself, or draw when mining: rag mine --hops … --sample N",
        )
    questions: Iterable[Question] = (
        replace(question, id=f"{number}:{question.id}")
        for number, file in enumerate(files)
        if number not in mined
        for question in read_questions(file)
    )
    if sample:
        questions = draw_sample(questions, sample, config.run.seed)
    hops: Iterable[Example] = (
        replace(hop, id=f"{number}:{hop.id}") for number, listed in mined.items() for hop in listed
    )
    if len(mined) < len(files):
        made = hop_examples(questions, max_hops=settings.max_hops, find=find, any_order=settings.any_order)
        hops = chain(made, hops)
    is_empty = True
    for hop in hops:
        is_empty = False
        yield hop
    if is_empty:
        raise DataError(
            f"{', '.join(map(str, files))}: no question can be trained on; the warnings say why",
            hint="give gold passages; where a set names them without their text, --index has the texts",
        )
