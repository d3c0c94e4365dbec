"""Train a generative reader: the recipe, top to bottom, and the folder that it leaves."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from rag.core.errors import ConfigError, DataError
from rag.core.files import atomic_path
from rag.core.optional import require
from rag.data.examples import Example
from rag.data.selection import hold_out
from rag.runtime.model_files import save_tokenizer
from rag.training.card import Card
from rag.training.distributed import World
from rag.training.fit import Loss, Method, Weights
from rag.training.precision import MasterWeights
from readers.answers import reading_scores
from readers.extractive.files import load_span_model
from readers.generative.files import check_rows, load_generator
from readers.generative.model import Seq2Seq
from readers.generative.reader import GenerativeReader
from readers.generative.settings import GeneratorManifest, GeneratorSettings, encode_rows
from readers.generative.training.config import GeneratorTrainConfig
from readers.generative.training.data import (
    GeneratorBatches,
    Row,
    best_ranked,
    usable_examples,
)
from readers.generative.warm_start import warm_start

_SEEN = 128  # questions from whose passages a generator is made
_WATCHED = 200  # held-out questions that a validation while training reads


def build(config: GeneratorTrainConfig, world: World) -> Method:
    """The method of `rag train generator`.

    It writes `reader/`: a folder that transformers opens with `AutoModelForSeq2SeqLM`, with
    tokenizer and `reader.json`. Several processes (torchrun) share every batch.

    Raises:
        ArtifactError, ConfigError: the model or reader to start from is wrong.
    """
    examples, held_out = _examples(config)
    seq2seq, settings = _start(config, examples, world.device)
    model = seq2seq.model.to(world.device)
    _freeze(model, config.frozen)
    merge = _adapt(model, config.lora) if config.lora else None
    master = MasterWeights(model, config.precision)
    if config.checkpoint_layers:
        model.gradient_checkpointing_enable()
    passages = []
    for example in held_out:
        best = best_ranked(example, config.stages[-1].passages)
        passages.append([candidate.passage for candidate in best])

    def evaluate() -> dict[str, float]:
        model.eval()
        reader = GenerativeReader(seq2seq, settings)
        return reading_scores(reader, held_out[:_WATCHED], passages[:_WATCHED])

    def export(weights: Weights) -> dict[str, float]:
        final = settings.model_copy(update={"beams": config.beams})
        if merge is not None:
            set_weights(seq2seq, weights, torch.float32)
            weights = merge()
        set_weights(seq2seq, weights)
        figures = reading_scores(GenerativeReader(seq2seq, final), held_out, passages)
        manifest = GeneratorManifest(name=config.name, settings=final)
        save_reader(config.out / "reader", seq2seq, weights, manifest)
        return {**figures, "questions": float(len(held_out))}

    return Method(
        model,
        master,
        GeneratorBatches(config, settings, seq2seq, examples),
        partial(batch_loss, seq2seq, batch_tokens=config.batch_tokens),
        export,
        reader_card(settings),
        evaluate=evaluate,
        facts={
            "training questions": len(examples),
            "held-out questions": len(held_out),
            "parameters, in millions": round(model.num_parameters() / 1e6, 1),
        },
    )


def _examples(config: GeneratorTrainConfig) -> tuple[list[Example], list[Example]]:
    """The examples to learn from, and those held out."""
    examples = usable_examples(config.train_files)
    validation = None
    if config.validation_file is not None:
        validation = usable_examples([config.validation_file])
    examples, held_out = hold_out(
        examples,
        config.validation_questions,
        config.seed,
        lambda example: example.question,
        validation,
    )
    if not examples:
        raise DataError(
            f"all questions of the training files are in {config.validation_file} too",
            hint="give other questions to learn from",
        )
    return examples, held_out[: config.validation_questions]


def batch_loss(seq2seq: Seq2Seq, batch: Sequence[Row], batch_tokens: int) -> Loss:
    """Cross-entropy of the targets' tokens, averaged over the tokens of the batch: transformers'
    loss.
    """
    rows = [passages for passages, _ in batch]
    targets = [target for _, target in batch]
    special = 1 + len(seq2seq.prefix)  # tokens around each target
    n_predicted = sum(map(len, targets)) + special * len(targets)
    memory = seq2seq.encode(rows, batch_tokens)
    value = -seq2seq.token_log_probs(memory, seq2seq.targets(targets)).sum() / n_predicted
    tokens = sum(map(len, chain.from_iterable(rows))) + sum(map(len, targets))
    return Loss(value, examples=len(rows), tokens=tokens, terms=n_predicted)


def _start(
    config: GeneratorTrainConfig, examples: Sequence[Example], device: str
) -> tuple[Seq2Seq, GeneratorSettings]:
    """The network to train, a checkpoint or one that is made from an extractive reader, and its
    settings.
    """
    layout: dict[str, Any] = {
        "mode": "fid",
        "beams": 1,
        "question_tokens": config.question_tokens,
        "answer_tokens": config.answer_tokens,
        "no_answer": config.no_answer,
        "batch_tokens": config.batch_tokens,
        "passage_tokens": max(stage.passage_tokens for stage in config.stages),
        "max_passages": max(stage.passages for stage in config.stages),
    }
    if config.template:
        layout["template"] = config.template
    if config.model is not None:
        seq2seq, manifest = load_generator(
            config.model, device=device, trains=True, dropout=config.dropout, **layout
        )
        if config.checkpoint_layers and not seq2seq.model.config.is_encoder_decoder:
            raise ConfigError(
                "checkpoint_layers is on, and a causal model keeps the keys and values of its prompts",
                hint="switch it off; lora and a smaller batch_size save memory",
            )
        return seq2seq, manifest.settings
    source = config.encoder or "shipped"
    loaded = load_span_model(source)
    if loaded is None:
        raise ConfigError(
            f"{source} is no extractive reader, from which a generator is made",
            hint='name a folder of `rag train reader` or "shipped", or a checkpoint as {model}',
            arguments=["model"],
        )
    reader, tokenizer = loaded
    settings = GeneratorSettings(**layout)
    questions = [example.question for example in examples[:_SEEN]]
    passages = [example.passages[:1] for example in examples[:_SEEN]]
    rows = encode_rows(tokenizer, settings, questions, passages)
    seq2seq = warm_start(
        reader,
        tokenizer,
        list(chain.from_iterable(rows)),
        decoder_layers=config.decoder_layers,
        dropout=config.dropout,
        device=device,
    )
    check_rows(seq2seq.model, settings)
    return seq2seq, settings


def _adapt(model: Any, rank: int) -> Callable[[], dict[str, torch.Tensor]]:
    """Put adapters into the linear layers; returns what merges them in again and gives all weights.

    Source: Hu et al. 2022, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1.
    """
    peft = require("peft", extra="lora")
    settings = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
    adapted = peft.get_peft_model(model, settings)  # inside the model itself

    def merge() -> dict[str, torch.Tensor]:
        adapted.merge_and_unload()
        return {name: parameter.detach() for name, parameter in model.named_parameters()}

    return merge


def _freeze(model: torch.nn.Module, beginnings: Sequence[str]) -> None:
    parameters = dict(model.named_parameters())
    for beginning in beginnings:
        # Of whole words between dots.
        names = [name for name in parameters if f"{name}.".startswith(f"{beginning}.")]
        if not names:
            raise ConfigError(
                f"frozen names {beginning!r}, but no parameter has such a name",
                hint=f"for example {next(iter(parameters))}",
            )
        for name in names:
            parameters[name].requires_grad_(False)


@torch.no_grad()
def set_weights(
    seq2seq: Seq2Seq, weights: Mapping[str, torch.Tensor], dtype: torch.dtype | None = None
) -> None:
    """Give the model these weights, rounded to `dtype` or else its own, and end its training."""
    parameters = dict(seq2seq.model.to(dtype).named_parameters())
    for name, tensor in weights.items():
        parameters[name].copy_(tensor)
    seq2seq.model.eval()


def save_reader(
    folder: Path,
    seq2seq: Seq2Seq,
    weights: Mapping[str, torch.Tensor],
    manifest: GeneratorManifest,
    *,
    add: Callable[[Path], object] = lambda _: None,
) -> None:
    """Write a folder that transformers opens, with `reader.json`, atomically; one that exists is
    replaced.

    The model is converted to fp32 and gets `weights`; `add` writes further files before the end.
    """
    model = seq2seq.model.float()
    set_weights(seq2seq, weights)
    with atomic_path(folder, folder=True) as temporary:
        model.save_pretrained(temporary)
        save_tokenizer(seq2seq.tokenizer, temporary)
        manifest.save(temporary)
        add(temporary)


def reader_card(settings: GeneratorSettings) -> Card:
    """The model card of a reader with these settings."""
    return Card("readers.generative.training", "generator.md", {"reader": settings})
