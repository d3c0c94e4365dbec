"""Train an extractive reader: the recipe, top to bottom."""

from functools import partial
from pathlib import Path
from typing import Any

import torch

from rag.data.examples import Example
from rag.data.selection import hold_out
from rag.runtime.model_files import model_folder, position_limit, read_config
from rag.training.fit import Loss
from rag.training.run import Method, Run, Trained, train
from readers.extractive.reader import ExtractiveReader
from readers.extractive.settings import ReaderSettings
from readers.extractive.training.batches import ReaderBatch, ReaderBatches
from readers.extractive.training.config import ReaderTrainConfig, TrainingSet
from readers.extractive.training.data import load_examples, read_set
from readers.extractive.training.finish import (
    RANGE_QUESTIONS,
    check_held_out,
    draw,
    finish,
    reader_card,
    reading_scores,
)
from readers.extractive.training.losses import selection_loss, skim_loss, span_loss
from readers.extractive.training.start import start_model

_TABLE_SPANS = 24  # the best eight spans of a table are often variants of one cell


def train_reader(config: ReaderTrainConfig) -> Path:
    """Train a reader as `config` says, or resume the run in `config.out`; see `rag.training.run.train`.

    Writes `trained/` (fp32 weights, loadable by `AutoModelForQuestionAnswering`) and `reader/`, the finished
    int8 reader.

    Returns:
        The folder of the finished reader, `config.out / "reader"`.

    Raises:
        ArtifactError: if the encoder cannot be loaded, or its tokenizer does not fit it.
    """
    return train(config, partial(_method, config), "reader", one_process="a reader is trained by one")


def _method(config: ReaderTrainConfig, run: Run) -> Method:
    # model
    model, tokenizer = start_model(
        config.encoder,
        longest=max(stage.full_tokens for stage in config.stages),
        seed=config.seed,
        dropout=config.dropout,
        freeze_word_embeddings=config.freeze_word_embeddings,
        passage_head=config.answer_types or config.selection_weight > 0,
        skim_layer=config.skim_layer,
    )
    master = run.master(model.to(run.device))

    # data
    learnt: list[tuple[TrainingSet, list[Example]]] = []
    held_out: dict[str, list[Example]] = {}
    for one in config.train:
        kept, held_out[one.label] = hold_out(
            read_set(one), one.held_out, config.seed, lambda example: example.article
        )
        learnt.append((one, kept))
    check_held_out(config, held_out)
    examples = load_examples(
        learnt, tokenizer, answer_types=config.answer_types, negatives_top_k=config.negatives_top_k
    )
    shown = draw([e for _, kept in learnt for e in kept], RANGE_QUESTIONS, config, 7)
    del learnt
    watched = draw([e for found in held_out.values() for e in found], config.validation_questions, config, 4)
    settings = ReaderSettings(
        max_tokens=min(384, position_limit(read_config(model_folder(config.encoder)))),
        question_tokens=config.question_tokens,
        title_tokens=config.title_tokens,
        select=config.normalisation == "passage",
        answer_types=config.answer_types,
        skim_layer=model.skim_layer,
        table_spans=_TABLE_SPANS,
        effort=config.effort,
    )

    def evaluate() -> dict[str, float]:
        return reading_scores(ExtractiveReader(model, tokenizer, settings, device=run.device), watched)

    def export(trained: Trained) -> dict[str, Any]:
        return finish(config, model, trained.weights, tokenizer, held_out, settings, shown)

    return Method(
        model, master, ReaderBatches(examples, config),
        lambda batch: reader_loss(model, batch, config, run.device), export, reader_card(config),
        evaluate=evaluate if watched else None,
        facts={
            "sets": ", ".join(one.label for one in config.train),
            "training questions": len(examples),
            "held-out questions": sum(map(len, held_out.values())),
            "passages": len(examples.texts),
        },
    )  # fmt: skip


def reader_loss(module: torch.nn.Module, batch: ReaderBatch, config: ReaderTrainConfig, device: str) -> Loss:
    """Forward pass and the sum of the losses that `config.objective` asks for."""
    moved: dict[str, Any] = {
        name: getattr(batch, name).to(device) for name in ReaderBatch.__slots__ if name != "tokens"
    }
    output = module(moved["input_ids"], moved["attention_mask"], moved["token_type_ids"])
    groups, per_group, _ = moved["allowed"].shape
    start = output.start.unflatten(0, (groups, per_group))  # (B, P, L)
    end = output.end.unflatten(0, (groups, per_group))
    if config.answer_types:  # "yes" and "no" are positions behind the tokens
        words = output.words.unflatten(0, (groups, per_group))  # (B, P, 2)
        start, end = torch.cat([start, words], -1), torch.cat([end, words], -1)
    value = span_loss(
        start,
        end,
        moved["allowed"],
        moved["starts"],
        moved["ends"],
        moved["acceptable"],
        has_answer=moved["has_answer"],
        normalisation=config.normalisation,
    )
    if config.selection_weight:
        relevance = output.relevance.unflatten(0, (groups, per_group))  # (B, P)
        value = value + config.selection_weight * selection_loss(relevance, moved["positive"])
    if output.skim is not None and config.skim_weight:
        skim = output.skim.unflatten(0, (groups, per_group))  # (B, P, L)
        allowed = moved["allowed"][..., : skim.shape[-1]]
        value = value + config.skim_weight * skim_loss(skim, allowed, moved["wanted"])
    return Loss(value, examples=groups, tokens=batch.tokens)
