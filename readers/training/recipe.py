"""Train an extractive reader: the recipe, top to bottom."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoTokenizer

from rag.core.errors import MismatchedArtifactError
from rag.core.files import atomic_write_json, directory_lock, read_json
from rag.core.log import get_logger
from rag.runtime.fit import FitSettings, Loss, fit
from rag.runtime.hardware import resolve_device, use_threads
from rag.runtime.precision import MasterWeights, resolve_precision
from rag.runtime.seeds import generator, seed_everything
from readers.embedded import embedded_encoder
from readers.model import SpanModel
from readers.training.batches import ReaderBatch, ReaderBatches
from readers.training.config import ReaderTrainConfig
from readers.training.data import load_examples, read_squad, split_by_article
from readers.training.evaluation import gold_paragraph_scores
from readers.training.losses import shared_span_loss

__all__ = ["train_reader"]


def train_reader(config: ReaderTrainConfig) -> Path:
    """Train a reader as `config` says, or resume the run that `config.out` holds.

    Returns:
        The folder of the finished reader, `config.out / "reader"`.

    Raises:
        ConfigError: if the configuration cannot work.
        DataError: if an input file is wrong.
        MismatchedArtifactError: if `config.out` holds a run with another configuration.
    """
    with directory_lock(config.out):
        return _train(config)


def _train(config: ReaderTrainConfig) -> Path:
    log = get_logger(__name__)
    _claim(config)
    seed_everything(config.seed)
    use_threads(config.threads)
    folder = config.encoder or str(embedded_encoder())
    tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True)

    questions = read_squad(config.train_file)
    train, validation = split_by_article(questions, config.validation_articles, config.seed)
    examples = load_examples(
        train, tokenizer, negatives_file=config.negatives_file, top_k=config.negatives_top_k
    )
    batches = ReaderBatches(examples, config)
    chosen = generator(config.seed, 4).permutation(len(validation))[: config.validation_questions]
    watched = [validation[int(i)] for i in chosen]
    log.info(
        "%d questions to train on, %d held out (%d articles), %d passages, %d steps",
        *(len(examples), len(validation), config.validation_articles, len(examples.texts), len(batches)),
    )

    device = resolve_device()
    model = SpanModel.from_encoder(folder, seed=config.seed, dropout=0.0).to(device)
    if config.freeze_word_embeddings:
        model.encoder.get_input_embeddings().weight.requires_grad_(False)
    full = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.to_compute(resolve_precision(config.precision, device))
    master = MasterWeights(model, full)

    def compute_loss(module: torch.nn.Module, batch: ReaderBatch) -> Loss:
        inputs = (batch.input_ids, batch.attention_mask, batch.token_type_ids)
        start, end = module(*(tensor.to(device) for tensor in inputs))  # (B·P, L)
        shape = batch.allowed.shape
        value = shared_span_loss(
            start.reshape(shape), end.reshape(shape), batch.allowed.to(device),
            batch.starts.to(device), batch.ends.to(device), batch.acceptable.to(device), config.answers,
        )
        return Loss(value, examples=shape[0], tokens=batch.tokens)

    settings = FitSettings(
        learning_rate=config.learning_rate, warmup_fraction=config.warmup_fraction,
        weight_decay=config.weight_decay, clip_norm=config.clip_norm,
        evaluate_every_steps=config.evaluate_every_steps, save_every_s=config.save_every_s,
    )
    result = fit(
        model, master, batches, compute_loss, settings, config.out,
        evaluate=lambda module: gold_paragraph_scores(module, tokenizer, watched),  # type: ignore[arg-type]
    )
    log.info("trained %d steps, last loss %.4f", result.steps, result.loss)
    return config.out / "reader"


def _claim(config: ReaderTrainConfig) -> None:
    """Write the configuration beside the run, or check that the run there has the same one."""
    wanted = config.model_dump(mode="json")
    path = config.out / "config.json"
    if path.exists():
        found = read_json(path)
        differing = sorted(key for key in wanted.keys() | found.keys() if wanted.get(key) != found.get(key))
        differing = [key for key in differing if key not in ("out", "threads", "save_every_s")]
        if differing:
            raise MismatchedArtifactError(
                f"{config.out} holds a run with other values of {', '.join(differing)}",
                hint="choose another --out, or repeat the command that started the run",
            )
    atomic_write_json(path, wanted)
