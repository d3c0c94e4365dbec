"""Train an extractive reader: the recipe, top to bottom."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoTokenizer

from rag.core.files import directory_lock
from rag.core.log import get_logger
from rag.runtime.embedded import embedded_encoder_dir
from rag.runtime.hardware import resolve_device, use_threads
from rag.runtime.precision import resolve_precision
from rag.runtime.seeds import seed_everything
from rag.training.claim import claim_run
from rag.training.fit import FitSettings, Loss, fit
from rag.training.precision import MasterWeights
from readers.extractive.model import SpanModel, longest_row
from readers.extractive.reader import ExtractiveReader
from readers.extractive.settings import ReaderSettings
from readers.training.batches import ReaderBatch, ReaderBatches
from readers.training.config import ReaderTrainConfig
from readers.training.data import load_examples, read_squad, split_by_article
from readers.training.evaluation import gold_paragraph_scores
from readers.training.finish import finish, sample_questions
from readers.training.losses import shared_span_loss

__all__ = ["train_reader"]


def train_reader(config: ReaderTrainConfig) -> Path:
    """Train a reader as `config` says, or resume the run that `config.out` holds.

    Writes into `config.out`: `config.json`, `metrics.jsonl`, `checkpoints/`, `trained/` (fp32 weights,
    loadable by `AutoModelForQuestionAnswering`), `figures.json`, and `reader/`, the finished int8 reader
    with its model card.

    Returns:
        The folder of the finished reader, `config.out / "reader"`.

    Raises:
        DataError: if an input file is wrong.
        ConfigError: if the configuration cannot work.
        MismatchedArtifactError: if `config.out` holds a run with another configuration.
    """
    with directory_lock(config.out):
        claim_run(config, config.out)
        return _train(config)


def _train(config: ReaderTrainConfig) -> Path:
    log = get_logger(__name__)
    seed_everything(config.seed)
    use_threads(config.threads)
    device = resolve_device()
    folder = config.encoder or str(embedded_encoder_dir())
    tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True)

    # data
    train, held_out = split_by_article(read_squad(config.train_file), config.validation_articles, config.seed)
    examples = load_examples(
        train, tokenizer, negatives_file=config.negatives_file, top_k=config.negatives_top_k
    )
    batches = ReaderBatches(examples, config)
    watched = sample_questions(held_out, config.validation_questions, config.seed, 4)
    log.info(
        "%d questions to train on, %d held out (%d articles), %d passages, %d steps",
        *(len(examples), len(held_out), config.validation_articles, len(examples.texts), len(batches)),
    )

    # model
    model = SpanModel.from_encoder(folder, seed=config.seed, dropout=0.0).to(device)
    if config.freeze_word_embeddings:
        model.encoder.get_input_embeddings().weight.requires_grad_(False)  # type: ignore[operator]
    full = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.to_compute(resolve_precision(config.precision, device))
    master = MasterWeights(model, full)
    settings = ReaderSettings(max_tokens=min(384, longest_row(model.encoder.config)))

    def compute_loss(module: torch.nn.Module, batch: ReaderBatch) -> Loss:
        inputs = (batch.input_ids, batch.attention_mask, batch.token_type_ids)
        start, end = module(*(tensor.to(device) for tensor in inputs))  # (B·P, L)
        shape = batch.allowed.shape
        value = shared_span_loss(
            start.reshape(shape),
            end.reshape(shape),
            batch.allowed.to(device),
            batch.starts.to(device),
            batch.ends.to(device),
            batch.acceptable.to(device),
            config.answers,
        )
        return Loss(value, examples=shape[0], tokens=batch.tokens)

    def evaluate(_: torch.nn.Module) -> dict[str, float]:
        return gold_paragraph_scores(ExtractiveReader(model, tokenizer, settings, device=device), watched)

    # optimisation
    result = fit(
        model,
        master,
        batches,
        compute_loss,
        FitSettings(
            learning_rate=config.learning_rate,
            warmup_fraction=config.warmup_fraction,
            weight_decay=config.weight_decay,
            clip_norm=config.clip_norm,
            evaluate_every_steps=config.evaluate_every_steps,
            save_every_s=config.save_every_s,
        ),
        config.out,
        evaluate=evaluate,
    )
    weights = {**full, **result.weights}
    return finish(config, model, weights, tokenizer, held_out, settings)
