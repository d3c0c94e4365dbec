"""transformers' RAG checkpoints become one folder, with their own question encoder over an index."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DPRConfig, DPRContextEncoder, DPRQuestionEncoder, RagConfig, RagTokenForGeneration
from typer.testing import CliRunner

from indexers.build import build_index
from indexers.settings import BuildSettings
from rag.cli.main import app
from rag.core.errors import ArtifactError, ConfigError, MismatchedArtifactError
from rag.core.types import Passage
from rag.joint.rag_import import import_rag
from rag.pipeline import Pipeline
from readers.open import open_reader
from retrievers.encoders.bi_encoder import BiEncoder
from tests.tiny_generator import tiny_seq2seq
from tests.tiny_reader import tiny_tokenizer

SHAPE = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 64,
}  # fmt: skip
PASSAGES = [
    Passage(str(n), "city", f"the {word} is near the river") for n, word in enumerate(("tower", "castle"))
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Any]:
    """(checkpoint, index by the passage encoder that belongs to it, the model)."""
    place = tmp_path_factory.mktemp("rag")
    tokenizer, generator = tiny_tokenizer(), tiny_seq2seq("bart")
    torch.manual_seed(0)
    shape = DPRConfig(vocab_size=len(tokenizer), **SHAPE)
    config = RagConfig(
        question_encoder=shape.to_dict(), generator=generator.config.to_dict(), n_docs=2,
        max_combined_length=40, bos_token_id=2, eos_token_id=3, pad_token_id=0,
    )  # fmt: skip
    model = RagTokenForGeneration(config, question_encoder=DPRQuestionEncoder(shape), generator=generator)
    model.save_pretrained(place / "rag")
    path = place / "rag" / "config.json"  # as published: fields that transformers no longer writes
    stated = json.loads(path.read_text())
    stated["generator"] |= {"prefix": " ", "max_length": 12, "num_beams": 4, "forced_bos_token_id": 5}
    path.write_text(json.dumps(stated))
    for part in ("question_encoder", "generator"):
        tokenizer.save_pretrained(place / "rag" / f"{part}_tokenizer")
    DPRContextEncoder(shape).save_pretrained(place / "passages")
    tokenizer.save_pretrained(place / "passages")
    encoder = BiEncoder.load(place / "passages", precision="fp32")
    build_index(PASSAGES, place / "index", encoder=encoder, settings=BuildSettings(probes=2))
    return place / "rag", place / "index", model.eval()


def test_a_checkpoint_answers_with_its_own_question_encoder(
    made: tuple[Path, Path, Any], tmp_path: Path
) -> None:
    source, index, model = made
    done = CliRunner().invoke(
        app, ["import", str(source), "--out", str(tmp_path / "r"), "--index", str(index)]
    )
    assert done.exit_code == 0, done.output
    settings = json.loads((tmp_path / "r" / "reader.json").read_text())["settings"]
    assert settings["mode"] == "rag-token"
    assert (settings["max_passages"], settings["passage_tokens"]) == (100, 40)  # n_docs is of training
    row = settings["template"].format(title="city", text=PASSAGES[0].text, question="where?")
    assert row == " city / the tower is near the river // where?"
    assert settings["answer_tokens"] == 12
    assert open_reader(tmp_path / "r", precision="fp32").seq2seq.prefix == [5]  # type: ignore[attr-defined]
    pipeline = Pipeline.open(index, reader=str(tmp_path / "r"), precision="fp32")
    question = "how many meters has the tower?"
    found = pipeline.retrieve([question], 2)[0]
    tokens = tiny_tokenizer()([question], return_tensors="pt")
    with torch.no_grad():
        vector = model.rag.question_encoder(tokens["input_ids"], tokens["attention_mask"])[0].numpy()
    vectors = BiEncoder.load(index.parent / "passages", precision="fp32").encode_passages(
        [p.title for p in PASSAGES], [p.text for p in PASSAGES]
    )
    expected = sorted((vector @ vectors.T)[0].tolist(), reverse=True)
    assert [hit.score for hit, _ in found] == pytest.approx(expected, rel=1e-4)
    assert pipeline.ask(question, top_k=2).question == question
    assert np.isfinite(expected).all()


def test_what_is_no_checkpoint_or_does_not_fit_is_refused(
    made: tuple[Path, Path, Any], tmp_path: Path
) -> None:
    source, index, _ = made
    with pytest.raises(ArtifactError, match="no RAG checkpoint"):
        import_rag(index.parent / "passages", tmp_path / "a")
    wider = DPRConfig(vocab_size=len(tiny_tokenizer()), **{**SHAPE, "hidden_size": 48})
    DPRContextEncoder(wider).save_pretrained(tmp_path / "wide")
    tiny_tokenizer().save_pretrained(tmp_path / "wide")
    other = BiEncoder.load(tmp_path / "wide", precision="fp32")
    build_index(PASSAGES, tmp_path / "index", encoder=other, settings=BuildSettings(probes=2))
    with pytest.raises(MismatchedArtifactError, match="vectors have 32 dimensions"):
        import_rag(source, tmp_path / "b", tmp_path / "index")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("pickled", [False, True])
def test_damaged_weights_are_named(made: tuple[Path, Path, Any], tmp_path: Path, pickled: bool) -> None:
    shutil.copytree(made[0], tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    content = weights.read_bytes()
    if pickled:
        weights.unlink()
        weights = weights.with_name("pytorch_model.bin")
        torch.save({"a": torch.ones(9000)}, weights)
        content = weights.read_bytes()
    weights.write_bytes(content[:3000])
    with pytest.raises(ArtifactError, match="no RAG checkpoint of transformers, or a damaged one"):
        import_rag(tmp_path / "cut", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").write_text("a file")
    with pytest.raises(ConfigError, match="is a file, expected a folder"):
        import_rag(made[0], tmp_path / "out")


def test_a_checkpoint_that_names_no_kind_says_what_it_is_read_as(
    made: tuple[Path, Path, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(made[0], tmp_path / "plain")
    config = tmp_path / "plain" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "architectures": ["RagModel"]}))
    import_rag(tmp_path / "plain", tmp_path / "out")
    assert "names neither RAG-Sequence nor RAG-Token: taking RAG-Sequence" in caplog.text
