"""Train an extractive reader: the recipe, top to bottom."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from rag.core.errors import MismatchedArtifactError
from rag.core.files import atomic_write_json, atomic_write_text, directory_lock, read_json
from rag.core.log import get_logger
from rag.core.types import Passage
from rag.runtime.checkpoints import latest_checkpoint
from rag.runtime.embedded import embedded_encoder_dir
from rag.runtime.fit import FitSettings, Loss, fit
from rag.runtime.hardware import resolve_device, use_threads
from rag.runtime.precision import MasterWeights, resolve_precision
from rag.runtime.seeds import generator, seed_everything
from readers.extractive import ExtractiveReader
from readers.model import SpanModel
from readers.settings import Calibration, ReaderSettings, read_manifest
from readers.training.batches import ReaderBatch, ReaderBatches
from readers.training.calibrate import HeldOut, tune
from readers.training.card import model_card
from readers.training.config import ReaderTrainConfig
from readers.training.data import SquadQuestion, load_examples, read_results, read_squad, split_by_article
from readers.training.evaluation import gold_paragraph_scores
from readers.training.export import export_int8, export_trained
from readers.training.losses import shared_span_loss

__all__ = ["train_reader"]

_FINISHING = frozenset(
    {"out", "threads", "save_every_s", "held_out_file", "test_file", "name", "calibration_questions"}
)


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
        _claim(config)
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
    watched = _sample(held_out, config.validation_questions, config.seed, 4)
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
    settings = ReaderSettings()

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
    return _finish(config, model, weights, tokenizer, held_out)


def _finish(
    config: ReaderTrainConfig,
    model: SpanModel,
    weights: dict[str, torch.Tensor],
    tokenizer: Any,
    held_out: Sequence[SquadQuestion],
) -> Path:
    """Export, choose the ranking and calibrate on held-out questions, score, describe."""
    log = get_logger(__name__)
    trained, finished = config.out / "trained", config.out / "reader"
    export_trained(trained, model, weights, tokenizer)

    def export(settings: ReaderSettings, calibration: Calibration) -> ExtractiveReader:
        export_int8(
            finished, model, weights, tokenizer, name=config.name, settings=settings, calibration=calibration
        )
        return ExtractiveReader.load(finished, precision=config.precision)

    reader = export(ReaderSettings(), Calibration())
    figures: dict[str, Any] = {"gold paragraph, held-out": gold_paragraph_scores(reader, held_out)}
    results = config.held_out_file or config.negatives_file
    if results is not None:
        chosen = _sample(held_out, config.calibration_questions, config.seed, 5)
        tuned = tune(reader, _retrieved(results, chosen))
        reader = export(tuned.settings, tuned.calibration)
        figures["retrieved, held-out"] = tuned.figures
    if config.test_file is not None:
        test = read_squad(config.test_file)
        original = ExtractiveReader.load(trained, precision="fp32", titled=True)
        figures["gold paragraph, test, trained weights (fp32)"] = gold_paragraph_scores(original, test)
        figures["gold paragraph, test, shipped weights (fp32 arithmetic)"] = gold_paragraph_scores(
            ExtractiveReader.load(finished, precision="fp32"), test
        )
        figures["gold paragraph, test, shipped weights"] = gold_paragraph_scores(reader, test)
    for name, value in figures.items():
        log.info("%s: %s", name, value)
    atomic_write_json(config.out / "figures.json", figures)
    manifest = read_manifest(finished)
    atomic_write_text(finished / "README.md", model_card(config, manifest, figures))
    return finished


def _retrieved(path: Path, questions: Sequence[SquadQuestion]) -> list[HeldOut]:
    results = read_results(path, {question.question for question in questions})
    found = []
    for question in questions:
        ctxs = results.get(question.question)
        if ctxs:
            found.append(
                HeldOut(
                    question.question,
                    question.answers,
                    tuple(Passage(str(n), ctx["title"], ctx["text"]) for n, ctx in enumerate(ctxs)),
                    tuple(float(ctx["score"]) for ctx in ctxs),
                    tuple(bool(ctx["has_answer"]) for ctx in ctxs),
                )
            )
    return found


def _sample(questions: Sequence[SquadQuestion], count: int, seed: int, key: int) -> list[SquadQuestion]:
    order = generator(seed, key).permutation(len(questions))[:count]
    return [questions[int(i)] for i in order]


def _claim(config: ReaderTrainConfig) -> None:
    """Write the configuration beside the run, or check that the run there was started with the same one."""
    wanted = config.model_dump(mode="json")
    path = config.out / "config.json"
    if path.exists() and latest_checkpoint(config.out / "checkpoints") is not None:
        found = read_json(path)
        keys = (wanted.keys() | found.keys()) - _FINISHING
        differing = sorted(key for key in keys if wanted.get(key) != found.get(key))
        if differing:
            raise MismatchedArtifactError(
                f"{config.out} holds a run with other values of {', '.join(differing)}",
                hint="choose another --out, or repeat the command that started the run",
            )
    atomic_write_json(path, wanted)
