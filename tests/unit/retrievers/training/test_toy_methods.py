"""One toy method for each seam of training: its loss falls, and retrieval of questions it never saw rises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rag.core.types import Passage
from rag.data.examples import (
    Candidate,
    Example,
    read_examples,
    write_examples,
)
from rag.training.config import OptimConfig, RunConfig
from rag.training.distributed import World
from rag.training.fit import Loss, fit
from rag.training.precision import MasterWeights
from rag.training.run_log import read_metrics
from retrievers.encoders.vectors import Vectors
from retrievers.examples.batches import Epochs, RetrieverBatch, RetrieverBatches, TargetBatches
from retrievers.examples.data import TrainingArrays
from retrievers.examples.tokens import RetrieverTokenizer
from retrievers.training.bi_encoder import BiEncoderModel
from retrievers.training.losses import in_batch_objective
from retrievers.training.step import ChunkedEncoding, contrastive_step
from retrievers.training.target_losses import kl_loss, target_objective
from tests.token_towers import token_model
from tests.unit.retrievers.conftest import cipher_examples
from tests.worlds import run_world

HELD_OUT = 40


def load(folder: Path, **settings: Any) -> tuple[BiEncoderModel, RetrieverTokenizer]:
    settings |= {"question_tokens": 16, "passage_tokens": 16}
    model = BiEncoderModel.from_folder(folder, pooling="mean", normalize=True, dropout=0.0, **settings)
    return model, RetrieverTokenizer(model.settings.question, model.settings.passage, query_tokens=32)


def train(
    model: BiEncoderModel,
    batches: Any,
    out: Path,
    *,
    objective: Any = in_batch_objective,
    world: World | None = None,
    chunk: int | None = None,
) -> None:
    """Train, and see that the loss falls."""

    def loss(_: torch.nn.Module, batch: RetrieverBatch) -> Loss:
        return contrastive_step(model, batch, world, chunk, objective=objective)

    settings = (OptimConfig(learning_rate=0.003), RunConfig(log_every_steps=1))
    fit(model, MasterWeights(model), batches, loss, *settings, out, world=world)
    losses = [record["loss"] for record in read_metrics(out / "metrics.jsonl") if "loss" in record]
    assert np.mean(losses[-5:]) < 0.6 * np.mean(losses[:5])


@torch.no_grad()
def mrr(model: BiEncoderModel, tokenizer: RetrieverTokenizer, examples: Sequence[Example]) -> float:
    """Of the right passage among those of all examples."""

    def encoded(tower: Any, ids: list[list[int]]) -> Vectors:
        texts = [np.array(row, np.int32) for row in ids]
        return ChunkedEncoding(
            tower, texts, list(map(len, texts)), chunk_rows=64, chunk_tokens=4096, keep_graphs=False, seed=0
        ).vectors

    model.eval()
    right = [example.positives[0] for example in examples]
    questions = encoded(model.question, tokenizer.queries([example.query for example in examples]))
    passages = encoded(model.passage, tokenizer.passages([p.title for p in right], [p.text for p in right]))
    scores = model.score(questions, passages)
    model.train()
    return float((1 / (1 + (scores > scores.diagonal()[:, None]).sum(1))).mean())


def test_float_targets_without_positives(tmp_path: Path, tiny_bert: Path) -> None:
    examples = cipher_examples(240, negatives=7)
    draw = np.random.default_rng(1)
    aimed = []
    for example in examples[HELD_OUT:]:
        listed = [Candidate(example.positives[0], "retrieved", target=4.0 + draw.random())]
        listed += [replace(c, role="retrieved", target=draw.random()) for c in example.negatives]
        aimed.append(replace(example, candidates=tuple(draw.permutation(np.array(listed, object)))))
    write_examples(tmp_path / "ctxs.json", aimed)
    read = list(read_examples(tmp_path / "ctxs.json", needs="targets"))
    assert not any(example.positives for example in read)

    model, tokenizer = load(tiny_bert, shared=True, temperature=0.2)
    before = mrr(model, tokenizer, examples[:HELD_OUT])
    batches = TargetBatches(
        TrainingArrays.build(read, tokenizer), Epochs(len(read), 20, epochs=8), per_question=6
    )
    assert all((~np.isnan(batches[0].targets)).sum(1) == 6)
    train(model, batches, tmp_path / "run", objective=target_objective(kl_loss))
    assert mrr(model, tokenizer, examples[:HELD_OUT]) > before + 0.3


def test_a_query_of_question_and_passage(tmp_path: Path, tiny_bert: Path) -> None:
    """The question names one half of what is sought, the passage found before it the other half."""
    examples = []
    for example in cipher_examples(240, negatives=0):
        *words, one, two, three, four = example.question.split()
        found = Passage("", "", f"river {three} {four}")
        examples.append(replace(example, question=" ".join((*words, one, two)), context=(found,)))
    model, tokenizer = load(tiny_bert, shared=False, temperature=0.05)
    alone = [replace(example, context=()) for example in examples[:HELD_OUT]]
    before = mrr(model, tokenizer, examples[:HELD_OUT])
    data = TrainingArrays.build(examples[HELD_OUT:], tokenizer)
    train(model, RetrieverBatches(data, Epochs(len(data), 40, epochs=20), hard_negatives=0), tmp_path / "run")
    after = mrr(model, tokenizer, examples[:HELD_OUT])
    assert after > before + 0.3
    assert after > mrr(model, tokenizer, alone) + 0.2


def late_interaction(world: World, folder: Path, out: Path) -> tuple[float, float]:
    examples = cipher_examples(240, negatives=1)
    model = token_model(folder, shared=False, temperature=0.3, dropout=0.0)
    tokenizer = RetrieverTokenizer(model.settings.question, model.settings.passage)
    before = mrr(model, tokenizer, examples[:HELD_OUT])
    data = TrainingArrays.build(examples[HELD_OUT:], tokenizer)
    train(model, RetrieverBatches(data, Epochs(len(data), 20, epochs=14)), out, world=world, chunk=8)
    return before, mrr(model, tokenizer, examples[:HELD_OUT])


def test_a_vector_a_token_through_the_cache_in_two_processes(tmp_path: Path, tiny_bert: Path) -> None:
    (before, after), other = run_world(2, tmp_path / "ranks", late_interaction, tiny_bert, tmp_path / "run")
    assert (before, after) == other
    assert after > before + 0.3
