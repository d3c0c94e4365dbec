"""No network opens with weights that its folder lacks: they would be random."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import BartForQuestionAnswering, DPRReader

from rag.core.errors import ArtifactError
from rag.joint.fillers import MaskedReader
from readers.extractive.files import start_model
from readers.open import open_reader
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.encoders.cross_encoder import CrossEncoder
from tests.published import published_dpr, published_encoder, published_seq2seq
from tests.support.files import change_json, write_modules
from tests.support.messages import refusal
from tests.tiny_causal import causal_folder
from tests.tiny_generator import tiny_seq2seq
from tests.tiny_reader import tiny_encoder, tiny_tokenizer

Make = Callable[[Path], Path]


def of_task(name: str, task: str, **more: Any) -> Make:
    return lambda folder: published_encoder(folder, name, task, **more)


def dpr_reader(folder: Path) -> Path:
    published_dpr(folder, DPRReader)
    return folder


def encode(folder: Path) -> None:
    BiEncoder.load(folder, precision="fp32").encode_questions(["where?"])


def mask(folder: Path) -> None:
    MaskedReader.load(folder, max_tokens=60)


def train(folder: Path) -> None:
    start_model(str(folder), longest=60, seed=0)


ONE = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
BERT = "bert-base-uncased"
ANSWERING = of_task(BERT, "ModelForQuestionAnswering")
MODERN = of_task("ModernBERT-base", "ModelForQuestionAnswering")
JUDGING = of_task(BERT, "ModelForSequenceClassification", **ONE)


LOST: dict[str, tuple[Make, str, Callable[[Path], Any]]] = {
    "head of a reader": (ANSWERING, "qa_outputs", open_reader),
    "head of ModernBERT": (MODERN, "head.dense", open_reader),
    "layer of a reader": (ANSWERING, "layer.1.output", open_reader),
    "head of DPR's reader": (dpr_reader, "span_predictor.qa_", open_reader),
    "layer of a causal model": (causal_folder, "layers.1.mlp", open_reader),
    "layer of T5": (
        lambda folder: published_seq2seq(folder, "t5-small"),
        "decoder.block.1.layer.2",
        open_reader,
    ),
    "head of a cross-encoder": (JUDGING, "classifier", CrossEncoder.load),
    "pooler of a cross-encoder": (JUDGING, "pooler", CrossEncoder.load),
    "attention of an encoder": (tiny_encoder, "layer.0.attention.self.key", encode),
    "layer of MPNet": (of_task("mpnet-base", "Model"), "layer.1.", encode),
    "layer of a model of masks": (of_task(BERT, "ModelForMaskedLM"), "layer.1.output", mask),
    "layer of an encoder to train": (tiny_encoder, "layer.1.output", train),
}


@pytest.mark.parametrize(("make", "lost", "load"), LOST.values(), ids=LOST)
def test_missing_weights_are_refused_by_number_and_name(
    make: Make, lost: str, load: Callable[[Path], Any], tmp_path: Path
) -> None:
    folder = make(tmp_path)
    load(folder)
    file = folder / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(file).items() if lost not in name}
    save_file(kept, file, metadata={"format": "pt"})
    with refusal(ArtifactError):
        load(folder)


def bart_reader(folder: Path) -> Path:
    """As published: with three labels, which BART's class passes over."""
    BartForQuestionAnswering(tiny_seq2seq("bart").config).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    change_json(folder / "config.json", id2label=dict(enumerate("abc")))
    return folder


def undefined(folder: Path) -> Path:
    """A reader with one weight that is NaN."""
    file = ANSWERING(folder) / "model.safetensors"
    weights = load_file(file)
    weights["qa_outputs.weight"][1, 3] = float("nan")
    save_file(weights, file, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    "make", [undefined, of_task(BERT, "ModelForQuestionAnswering", id2label=dict(enumerate("abc")))]
)
def test_readers_of_no_numbers_and_of_other_outputs_are_refused(make: Make, tmp_path: Path) -> None:
    with refusal(ArtifactError):
        open_reader(make(tmp_path))


@pytest.mark.parametrize(
    ("make", "load"),
    [
        (of_task(BERT, "ModelForMaskedLM"), encode),
        (of_task(BERT, "ModelForQuestionAnswering"), encode),
        (of_task("mpnet-base", "ModelForMaskedLM"), encode),
        (JUDGING, encode),
        (ANSWERING, mask),
        (bart_reader, open_reader),
        (causal_folder, open_reader),
    ],
)
def test_heads_of_other_tasks_are_passed_over(
    make: Make, load: Callable[[Path], Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make(tmp_path)
    with caplog.at_level(logging.WARNING):
        load(folder)
    assert "are ignored" not in caplog.text


@pytest.mark.parametrize(
    ("make", "load", "first"),
    [
        (tiny_encoder, encode, "encoder.layer.1.attention"),
        (of_task("mpnet-base", "Model"), encode, "encoder.layer.1.attention"),
        (of_task(BERT, "ModelForMaskedLM"), encode, "bert.encoder.layer.1.attention"),
        (of_task("mpnet-base", "ModelForMaskedLM"), encode, "mpnet.encoder.layer.1.attention"),
        (causal_folder, open_reader, "model.layers.1.input_layernorm.weight"),
    ],
)
def test_layers_that_nothing_reads_are_named(
    make: Make,
    load: Callable[[Path], Any],
    first: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = make(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config.pop("layer_types", None)
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    with caplog.at_level(logging.WARNING):
        load(folder)
    assert "weights that the network of its config.json does not have" in caplog.text
    assert f"the first is {first}" in caplog.text


def test_a_reader_of_dpr_is_no_encoder(tmp_path: Path) -> None:
    folder = dpr_reader(tmp_path)
    with refusal(ArtifactError):
        encode(folder)
    open_reader(folder)


def test_modules_of_the_folder_s_own_code_are_refused(tmp_path: Path) -> None:
    folder = tiny_encoder(tmp_path)
    write_modules(folder, "Transformer", home="custom_st")
    with refusal(ArtifactError):
        encode(folder)


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    """As of jina-colbert-v2, whose layers have names of their own."""
    folder = of_task("xlm-roberta-base", "Model")(tmp_path)
    file = folder / "model.safetensors"
    renamed = {name.replace("layer.", "layers."): t for name, t in load_file(file).items()}
    save_file(renamed, file, metadata={"format": "pt"})
    with refusal(ArtifactError):
        encode(folder)
    code = {"AutoModel": "someone/implementation--modeling_xlm_roberta.Model"}
    change_json(folder / "config.json", auto_map=code)
    with refusal(ArtifactError):
        encode(folder)
