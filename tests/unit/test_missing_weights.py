"""No network opens with weights that its folder lacks: they would be random."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import DPRReader

from rag.core.errors import ArtifactError
from rag.joint.fillers import MaskedReader
from readers.extractive.files import start_model
from readers.open import open_reader
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.encoders.cross_encoder import CrossEncoder
from tests.published import published_dpr, published_encoder, published_seq2seq
from tests.tiny_causal import causal_folder
from tests.tiny_reader import tiny_encoder

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


@pytest.mark.parametrize(
    ("make", "lost", "count", "first", "load"),
    [
        (ANSWERING, "qa_outputs", 2, "qa_outputs.bias", open_reader),
        (MODERN, "head.dense", 1, "head.dense.weight", open_reader),
        (ANSWERING, "layer.1.output", 4, "bert.encoder.layer.1.output.", open_reader),
        (dpr_reader, "span_predictor.qa_", 4, "span_predictor.qa_classifier.bias", open_reader),
        (causal_folder, "layers.1.mlp", 3, "model.layers.1.mlp.down_proj.weight", open_reader),
        (
            lambda folder: published_seq2seq(folder, "t5-small"),
            "decoder.block.1.layer.2",
            3,
            "decoder.block.1.layer.2.",
            open_reader,
        ),
        (JUDGING, "classifier", 2, "classifier.bias", CrossEncoder.load),
        (JUDGING, "pooler", 2, "bert.pooler.dense.bias", CrossEncoder.load),
        (tiny_encoder, "layer.0.attention.self.key", 2, "encoder.layer.0.attention", encode),
        (of_task("mpnet-base", "Model"), "layer.1.", 16, "encoder.layer.1.", encode),
        (of_task(BERT, "ModelForMaskedLM"), "layer.1.output", 4, "bert.encoder.layer.1.", mask),
        (tiny_encoder, "layer.1.output", 4, "encoder.layer.1.output", train),
    ],
)
def test_missing_weights_are_refused_by_number_and_name(
    make: Make, lost: str, count: int, first: str, load: Callable[[Path], Any], tmp_path: Path
) -> None:
    folder = make(tmp_path)
    load(folder)
    file = folder / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(file).items() if lost not in name}
    save_file(kept, file, metadata={"format": "pt"})
    with pytest.raises(ArtifactError, match=rf"lacks {count} weights .*the first is {first}"):
        load(folder)


@pytest.mark.parametrize(
    ("make", "load"),
    [
        (of_task(BERT, "ModelForMaskedLM"), encode),
        (of_task(BERT, "ModelForQuestionAnswering"), encode),
        (of_task("mpnet-base", "ModelForMaskedLM"), encode),
        (JUDGING, encode),
        (ANSWERING, mask),
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
    with pytest.raises(ArtifactError, match=rf"makes no vectors[\s\S]*--reader {folder}"):
        encode(folder)
    open_reader(folder)


def test_modules_of_the_folder_s_own_code_are_refused(tmp_path: Path) -> None:
    folder = tiny_encoder(tmp_path)
    modules = [{"idx": 0, "name": "0", "path": "", "type": "custom_st.Transformer"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ArtifactError, match=r"\(custom_st.Transformer\) needs its own code"):
        encode(folder)


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    """As of jina-colbert-v2, whose layers have names of their own."""
    folder = of_task("xlm-roberta-base", "Model")(tmp_path)
    file = folder / "model.safetensors"
    renamed = {name.replace("layer.", "layers."): t for name, t in load_file(file).items()}
    save_file(renamed, file, metadata={"format": "pt"})
    with pytest.raises(ArtifactError, match=r"lacks 32 weights .*the first is encoder\.layer\.0"):
        encode(folder)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "someone/implementation--modeling_xlm_roberta.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ArtifactError, match="needs its own code from the repository"):
        encode(folder)
