"""Train an extractive reader: the recipe, top to bottom."""

from functools import partial
from pathlib import Path
from typing import Any

import torch

from rag.data.examples import Example
from rag.data.selection import hold_out
from rag.runtime.model_files import position_limit
from rag.training.card import Card
from rag.training.distributed import World
from rag.training.fit import Loss, Method, Weights
from rag.training.precision import MasterWeights
from rag.training.run import train
from readers.extractive.files import start_model
from readers.extractive.model import Logits
from readers.extractive.reader import ExtractiveReader
from readers.extractive.settings import ReaderManifest, ReaderSettings
from readers.extractive.training.batches import ReaderBatch, ReaderBatches
from readers.extractive.training.config import ReaderTrainConfig, TrainingSet
from readers.extractive.training.data import load_examples, read_set
from readers.extractive.training.finish import RANGE_QUESTIONS, draw, finish, gold_scores
from readers.extractive.training.losses import marginal_loss, span_loss, teacher_loss
from readers.extractive.training.teacher import Teacher
from readers.manifest import load_manifest

_TABLE_SPANS = 24  # the best eight spans of a table are often variants of one cell


def train_reader(config: ReaderTrainConfig) -> Path:
    """Train a reader as `config` says, or resume the run in `config.out`; see
    `rag.training.run.train`.

    Writes `trained/` (fp32 weights, loadable by `AutoModelForQuestionAnswering`) and `reader/`, the
    finished int8 reader.

    Returns:
        The folder of the finished reader, `config.out / "reader"`.

    Raises:
        ArtifactError: if the encoder cannot be loaded, or its tokenizer does not fit it.
    """
    return train(config, partial(build, config), "reader", one_process="a reader is trained by one")


def build(config: ReaderTrainConfig, world: World) -> Method:
    """The method of `train_reader`."""
    # data
    learnt: list[tuple[TrainingSet, list[Example]]] = []
    held_out: dict[str, list[Example]] = {}
    for part in config.train:
        share = part.held_out if part.labelled else 0.0
        examples, held_out[part.label] = hold_out(
            read_set(part), share, config.seed, lambda e: e.article
        )
        learnt.append((part, examples))
    shown = draw([e for _, examples in learnt for e in examples], RANGE_QUESTIONS, config, 7)

    # networks
    passage_head = config.answer_types or config.selection_weight > 0
    model, tokenizer = start_model(
        config.encoder,
        longest=max(stage.full_tokens for stage in config.stages),
        seed=config.seed,
        dropout=config.dropout,
        freeze_word_embeddings=config.freeze_word_embeddings,
        passage_head=passage_head,
        skim_layer=config.skim_layer,
    )
    teacher = None
    if config.teacher is not None:
        where = {"precision": config.precision, "device": world.device}
        teacher = Teacher.load(config.teacher, tokenizer, passage_head=passage_head, **where)
    master = MasterWeights(model.to(world.device), config.precision)

    # what the networks read
    rows = load_examples(
        learnt, tokenizer, answer_types=config.answer_types, negatives_top_k=config.negatives_top_k
    )
    del learnt, examples
    watched = draw(
        [e for own in held_out.values() for e in own], config.validation_questions, config, 4
    )
    settings = ReaderSettings(
        max_tokens=min(384, position_limit(model.encoder.config.to_dict())),
        question_tokens=config.question_tokens,
        title_tokens=config.title_tokens,
        select=config.normalisation == "passage",
        answer_types=config.answer_types,
        skim_layer=model.skim_layer,
        table_spans=_TABLE_SPANS,
        effort=config.effort,
    )

    manifest = partial(
        load_manifest, ReaderManifest, config.out / "reader"
    )  # of the finished reader

    def evaluate() -> dict[str, float]:
        return gold_scores(
            ExtractiveReader(model, tokenizer, settings, device=world.device), watched
        )

    def export(weights: Weights) -> dict[str, Any]:
        return finish(config, model, weights, tokenizer, held_out, settings, shown)

    facts = {
        "sets": ", ".join(part.label for part in config.train),
        "training questions": len(rows),
        "held-out questions": sum(map(len, held_out.values())),
        "passages": len(rows.texts),
    }
    loss = partial(reader_loss, model, config=config, device=world.device, teacher=teacher)
    batches = ReaderBatches(rows, config)
    measure = evaluate if watched else None
    card = Card("readers.extractive.training", "reader.md", {"load_manifest": manifest})
    return Method(model, master, batches, loss, export, card, evaluate=measure, facts=facts)


def reader_loss(
    module: torch.nn.Module,
    batch: ReaderBatch,
    config: ReaderTrainConfig,
    device: str,
    teacher: Teacher | None = None,
) -> Loss:
    """Forward pass and the sum of the losses of answers, passages, the early head, and a
    teacher.
    """
    moved = {
        name: getattr(batch, name).to(device) for name in ReaderBatch.__slots__ if name != "tokens"
    }
    output = module(moved["input_ids"], moved["attention_mask"], moved["token_type_ids"])
    allowed, labelled, positive = moved["allowed"], moved["labelled"], moved["positive"]
    groups, per_group, _ = allowed.shape
    start, end = _span_logits(output, groups, config.answer_types)  # (B, P, S) each
    value = start.new_zeros(())
    if labelled.any():
        spans = (moved[name][labelled] for name in ("allowed", "starts", "ends", "acceptable"))
        has_answer = moved["has_answer"][labelled]
        loss = span_loss(
            start[labelled],
            end[labelled],
            *spans,
            has_answer=has_answer,
            normalisation=config.normalisation,
        )
        value = labelled.float().mean() * loss
    if config.selection_weight:
        relevance = output.relevance.view(groups, per_group)  # (B, P)
        selection = marginal_loss(relevance, torch.ones_like(positive), positive)
        value = value + config.selection_weight * selection
    if output.skim is not None and config.skim_weight:
        skim, answer_tokens = (
            output.skim.view(groups, -1),
            moved["answer_tokens"].flatten(1),
        )  # (B, P·L)
        inside = allowed[..., : moved["answer_tokens"].shape[-1]].flatten(1)
        value = value + config.skim_weight * marginal_loss(skim, inside, answer_tokens)
    if teacher is None:
        return Loss(value, examples=groups, tokens=batch.tokens)
    read = teacher.logits(moved["input_ids"], moved["attention_mask"])
    rows = groups if config.normalisation == "shared" else groups * per_group
    places = allowed.reshape(rows, -1)
    taught = _span_logits(read, groups, config.answer_types)
    parts = [
        teacher_loss(own.reshape(rows, -1), other.reshape(rows, -1), places, config.temperature) / 2
        for own, other in zip((start, end), taught, strict=True)
    ]
    if config.selection_weight and read.relevance is not None:
        other = read.relevance.view(groups, per_group)
        selection = teacher_loss(relevance, other, torch.ones_like(positive), config.temperature)
        parts.append(config.selection_weight * selection)
    figures = {"answer_loss": value, "teacher_loss": torch.stack(parts).sum()}
    value = value.lerp(figures["teacher_loss"], config.teacher_weight)
    return Loss(value, examples=groups, tokens=batch.tokens, parts=figures)


def _span_logits(output: Logits, groups: int, answer_types: bool) -> list[torch.Tensor]:
    """Start and end logits (B, P, S); "yes" and "no" are positions behind the tokens."""
    sides = [output.start, output.end]
    if answer_types and output.words is not None:
        sides = [torch.cat([side, output.words], -1) for side in sides]
    return [side.unflatten(0, (groups, -1)) for side in sides]
