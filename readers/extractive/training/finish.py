"""After the last step: fp32 weights for further training, int8 ones to ship; ranking, confidence,
figures.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerBase

from rag.core.files import atomic_path, atomic_write_json, read_json
from rag.data.examples import Example
from rag.runtime.fast.fast_bert import FastBert, RangeRecorder
from rag.runtime.model_files import embedded_word_embeddings, save_tokenizer
from rag.runtime.seeds import Stream, generator
from readers.answers import reading_scores
from readers.extractive.files import WORD_EMBEDDINGS, load_parts, row_scale, save_int8
from readers.extractive.model import MODERNBERT, FastSpanModel, SpanModel
from readers.extractive.reader import ExtractiveReader
from readers.extractive.settings import ReaderManifest, ReaderSettings
from readers.extractive.training.calibrate import tune
from readers.extractive.training.config import ReaderTrainConfig
from readers.extractive.training.data import read_set
from readers.manifest import Calibration
from readers.protocols import Reader

WEIGHTS_FILE = "weights.int8.safetensors"
RANGES_FILE = "ranges.safetensors"
_PASSAGES = 2  # per question, to measure activation ranges on
_KEPT = ("position_embeddings", "token_type_embeddings", "qa_outputs", "passage_head")
_RETRIEVED = 5  # retrieved passages that are read for a question without gold ones
RANGE_QUESTIONS = 200  # on whose passages the ranges of activations are measured


def finish(
    config: ReaderTrainConfig,
    model: SpanModel,
    weights: dict[str, torch.Tensor],
    tokenizer: PreTrainedTokenizerBase,
    held_out: Mapping[str, Sequence[Example]],
    settings: ReaderSettings,
    learnt: Sequence[Example],
) -> dict[str, object]:
    """Write `trained/` and `reader/` into `config.out`.

    Args:
        weights: the trained fp32 weights by the model's names.
        held_out: held-out questions by set.
        settings: from which the tuning of ranking and confidence starts.
        learnt: examples of the training, to measure ranges of activations on.

    Returns:
        Figures by name.
    """
    export_trained(config.out / "trained", model, weights, tokenizer)
    sets = _serving(config, held_out)
    figures: dict[str, Any] = {}
    # The folder appears only with ranking and confidence.
    with atomic_path(config.out / "reader", folder=True) as folder:
        export_int8(folder, model, weights, tokenizer, name=config.name, settings=settings)
        manifest = add_ranges(folder, learnt)
        reader = ExtractiveReader.load(folder, precision=config.precision)
        for label, examples in held_out.items():
            validated = draw(examples, config.validation_questions, config, Stream.VALIDATION)
            if validated:
                figures[f"gold passages, held-out {label}"] = gold_scores(reader, validated)
        if sets:
            chosen, calibration, figures["retrieved, held-out"] = tune(reader, sets)
            changes = {"settings": chosen, "calibration": calibration}
            manifest.model_copy(update=changes).save(folder)
    return figures


def _serving(
    config: ReaderTrainConfig, held_out: Mapping[str, Sequence[Example]]
) -> dict[str, Sequence[Example]]:
    """By set, held-out questions with what a retriever found for them and nothing else."""
    sets: dict[str, Sequence[Example]] = {}
    for part in (*config.train, *config.calibrate):
        is_learnt = part in config.train
        ids = {example.id for example in held_out.get(part.label, ())}
        if is_learnt and not (ids and part.retrieved):
            continue
        examples = []
        for example in read_set(part, serving=True):
            if example.candidates and (example.id in ids or not is_learnt):
                examples.append(example)
        if examples:
            sets[part.label] = draw(
                examples, config.calibration_questions, config, Stream.CALIBRATION
            )
    return sets


def draw(
    examples: Sequence[Example], count: int, config: ReaderTrainConfig, stream: Stream
) -> list[Example]:
    """`count` examples (or all, if fewer) in an order that depends on the seed and the stream alone."""
    order = generator(config.seed, stream).permutation(len(examples))[:count]
    return [examples[int(i)] for i in order]


def gold_scores(reader: Reader, examples: Sequence[Example]) -> dict[str, float]:
    """`answer_scores` of questions with their gold passages alone, or else with their first few
    others.
    """
    passages = [example.positives or example.passages[:_RETRIEVED] for example in examples]
    return reading_scores(reader, examples, passages)


def export_trained(
    folder: Path,
    model: SpanModel,
    weights: Mapping[str, torch.Tensor],
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    """Write fp32 weights under Hugging Face's names: `AutoModelForQuestionAnswering` loads the
    folder.

    Args:
        weights: fp32 tensors by the model's names.
    """
    encoder: Any = model.encoder
    names = {"encoder": encoder.base_model_prefix}
    if encoder.config.model_type == MODERNBERT:
        names |= {"qa_outputs": "classifier", "transform": "head"}
    folder.mkdir(parents=True, exist_ok=True)
    floats = {}
    for name, tensor in weights.items():
        module, dot, rest = name.partition(".")
        if tensor.is_floating_point():
            floats[names.get(module, module) + dot + rest] = tensor.float().contiguous()
    with atomic_path(folder / "model.safetensors") as temporary:
        save_file(floats, temporary, metadata={"format": "pt"})
    _describe(folder, model, tokenizer)


def export_int8(
    folder: Path,
    model: SpanModel,
    weights: Mapping[str, torch.Tensor],
    tokenizer: PreTrainedTokenizerBase,
    *,
    name: str,
    settings: ReaderSettings,
    calibration: Calibration = Calibration(),  # noqa: B008
    retriever: dict[str, object] | None = None,
) -> None:
    """Write the reader that ships: int8 weights, tokenizer, configuration, `reader.json` last.

    Word embeddings that are still those of the embedded encoder are left out: half of the file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    keep = [key for key in weights if any(part in key for part in _KEPT)]
    left_out = WORD_EMBEDDINGS if _has_embedded_words(weights) else None
    stored = {name: tensor for name, tensor in weights.items() if name != left_out}
    save_int8(stored, folder / WEIGHTS_FILE, keep=keep)
    _describe(folder, model, tokenizer)
    ReaderManifest(
        name=name,
        weights_file=WEIGHTS_FILE,
        word_embeddings="all-MiniLM-L6-v2" if left_out else None,
        settings=settings,
        calibration=calibration,
        retriever=retriever,
    ).save(folder)


def _has_embedded_words(weights: Mapping[str, torch.Tensor]) -> bool:
    """Whether the word embeddings are the embedded encoder's, up to the rounding of int8."""
    trained = weights.get(WORD_EMBEDDINGS)
    embedded = embedded_word_embeddings()
    if trained is None or trained.shape != embedded.shape:
        return False
    step = row_scale(embedded)[:, None]
    return bool(((trained.cpu().float() - embedded).abs() <= 0.6 * step).all())


def _describe(folder: Path, model: SpanModel, tokenizer: Any) -> None:
    encoder: Any = model.encoder
    config = json.loads(encoder.config.to_json_string(use_diff=True))
    family = type(encoder).__name__.removesuffix("Model")
    config["architectures"] = [f"{family}ForQuestionAnswering"]
    save_tokenizer(tokenizer, folder)
    tokenizer_config = read_json(folder / "tokenizer_config.json")
    # How model and tokenizer were opened here is nobody's business.
    for content in (config, tokenizer_config):
        for key in ("_name_or_path", "dtype", "is_local", "local_files_only"):
            content.pop(key, None)
    atomic_write_json(folder / "config.json", config)
    atomic_write_json(folder / "tokenizer_config.json", tokenizer_config)


def add_ranges(folder: Path, examples: Sequence[Example]) -> ReaderManifest:
    """Measure the ranges of a finished reader's activations and store them beside its weights.

    Args:
        examples: read with their first passages; a few hundred are enough, none of them from a test
            set.

    Returns:
        The content of its `reader.json`, with no ranges for a network that int8 inference does not
        cover.
    """
    parts = load_parts(folder)
    manifest = parts.manifest
    if not FastBert.supports(parts.weights.config):
        return manifest
    model = FastSpanModel(parts.weights, "fp32")
    model.encoder = recorder = RangeRecorder(parts.weights.encoder, parts.weights.config)
    reader = ExtractiveReader(model, parts.tokenizer, manifest.settings)
    passages = [example.passages[:_PASSAGES] for example in examples]
    reader.score([example.question for example in examples], passages)
    with atomic_path(folder / RANGES_FILE) as temporary:
        save_file({name: tensor.clone() for name, tensor in recorder.ranges.items()}, temporary)
        temporary.chmod(0o644)
    manifest = manifest.model_copy(update={"ranges_file": RANGES_FILE})
    manifest.save(folder)
    return manifest
