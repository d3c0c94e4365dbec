"""Train a retriever over hops (MDR)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from indexers.gold import CorpusTexts
from indexers.index import Index
from rag.core.arrays import Int64
from rag.core.types import Question
from rag.data.examples import Example
from rag.data.questions import read_questions
from rag.training.distributed import World
from rag.training.fit import Loss, Method
from retrievers.examples.batches import check_negatives
from retrievers.examples.data import ExampleTable, split_examples
from retrievers.examples.hops import (
    HopBatches,
    HopEpochs,
    PassageFinder,
    hop_examples,
    passage_finder,
)
from retrievers.training.bi_encoder import BiEncoderModel, load_model, score_rows
from retrievers.training.config import MdrTrainConfig
from retrievers.training.recipe import bi_encoder_method


def build(config: MdrTrainConfig, world: World) -> Method:
    """The method of `rag train mdr`, which over an index runs in one process.

    Every hop is a query of its own: the first is the question, each later one the question and the
    passages so far.

    Source:
        Xiong et al. 2021, "Answering Complex Open-Domain Questions with Multi-Hop Dense Retrieval".

    Note:
        The paper has two hops, this any number; where a data set does not state the order of bridge
        questions, it follows from the passages (`hop_orders`). Its second stage trains the question
        encoder against a memory bank, passage vectors that do not change: that is negatives
        "index", with the whole corpus in the bank. Its code reads questions without their last
        question mark, which is read here.
    """
    # data
    find = None
    texts = None
    if config.index is not None:
        index = Index.open(config.index)
        texts = CorpusTexts(index.passages)
        find = passage_finder(index, texts)
    split = split_examples(
        config,
        config.out / "data",
        partial(_read_hops, config, find),
    )
    data = split.training
    hops = hop_batches(config, data)
    batches: HopBatches | HopEpochs = hops

    # model
    retriever = load_model(config, world.device)
    step = None
    if config.negatives == "index":
        assert texts is not None
        step = partial(
            index_step, retriever.model, data, index=index, texts=texts, depth=config.depth
        )
        batches = hops.epochs
    else:
        check_negatives(hops)

    return bi_encoder_method(
        config,
        retriever,
        world,
        batches,
        split.held_out,
        make_batches=hop_batches,
        step=step,
        facts={"training examples (hops)": len(data)},
    )


def hop_batches(config: MdrTrainConfig, data: ExampleTable, *, once: bool = False) -> HopBatches:
    """Batches of all hops of `config.batch_size` questions."""
    return HopBatches(
        data,
        HopEpochs.of(config, data.column("id").tolist(), once=once),
        hard_negatives=config.hard_negatives,
        mask_false_negatives=config.mask_false_negatives,
    )


def index_step(
    model: BiEncoderModel,
    data: ExampleTable,
    examples: Int64,
    *,
    index: Index,
    texts: CorpusTexts,
    depth: int,
) -> Loss:
    """Loss of each hop's passage against what its query retrieves in the index at this step.

    Passages of the question's later hops are masked, and copies of its passages.

        L = −(1/N) Σ_i log( exp s_{i,t(i)} / (exp s_{i,t(i)} + Σ_{retrieved j, not masked} exp
        s_{ij}) )
    """
    hops = data.take(examples)
    golds = []
    for hop in hops:
        golds.append(torch.tensor([*chain.from_iterable(map(texts.find, hop.positives))]))
    # (N, G), the next one first
    gold = pad_sequence(golds, batch_first=True, padding_value=-1).numpy()
    token_ids = model.tokenizer.queries([hop.query for hop in hops])
    queries = model.encode_query_tokens(token_ids)  # (N, D)
    vectors = queries.detach().float().cpu().numpy()
    _, hits = index.require_dense().vectors.search(vectors, depth)  # (N, K)
    left_out = (hits[:, :, None] == gold[:, None, :]).any(axis=2)
    rows = np.concatenate([gold[:, :1], np.where(left_out, -1, hits)], axis=1)  # (N, 1 + K)
    scores = score_rows(model, index, queries, rows)
    first = torch.zeros(len(rows), dtype=torch.int64, device=queries.device)
    value = cross_entropy(scores, first)
    return Loss(value, examples=len(rows), tokens=sum(map(len, token_ids)))


def _read_hops(
    config: MdrTrainConfig, find: PassageFinder | None, files: Sequence[Path]
) -> Iterator[Example]:
    """The hops of question sets; ids begin with the number of their file."""

    def read() -> Iterator[Question]:
        for number, file in enumerate(files):
            for question in read_questions(file):
                yield replace(question, id=f"{number}:{question.id}")

    return hop_examples(read(), max_hops=config.max_hops, find=find)
