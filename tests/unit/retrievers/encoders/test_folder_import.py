"""Folders with pickled weights: every tensor comes over, whatever class would read them in transformers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import DPRConfig, DPRContextEncoder, RobertaModel

from rag.core.errors import ArtifactError, ConfigError, IncompleteArtifactError
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.encoders.folder_import import import_folder
from retrievers.encoders.open import passage_budget
from tests.commands import exit_code
from tests.tiny_reader import tiny_encoder, tiny_roberta, tiny_tokenizer

_TEXTS = ["the tower is near the river", "a castle"]


def _pickle(folder: Path, parts: int = 1) -> Path:
    """Put pickled weights in the place of model.safetensors, in several parts with their index."""
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    if parts == 1:
        torch.save(state, folder / "pytorch_model.bin")
        return folder
    names = sorted(state)
    files = {name: f"pytorch_model-{n % parts + 1:05}-of-{parts:05}.bin" for n, name in enumerate(names)}
    for file in set(files.values()):
        torch.save({name: state[name] for name in names if files[name] == file}, folder / file)
    index = {"metadata": {"total_size": 1}, "weight_map": files}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return folder


def test_a_passage_tower_of_dpr_keeps_its_weights(tmp_path: Path) -> None:
    torch.manual_seed(3)
    shape = DPRConfig(
        vocab_size=len(tiny_tokenizer()), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=48, max_position_embeddings=64, projection_dim=8,
    )  # fmt: skip
    model = DPRContextEncoder(shape).eval()
    model.save_pretrained(tmp_path / "dpr")
    tiny_tokenizer().save_pretrained(tmp_path / "dpr")
    _pickle(tmp_path / "dpr")
    with pytest.raises(ArtifactError, match="pickle files are not loaded") as refused:
        BiEncoder.load(tmp_path / "dpr", precision="fp32")
    assert f"rag import {tmp_path / 'dpr'} --out" in str(refused.value.hint)
    out = import_folder(tmp_path / "dpr", tmp_path / "out")
    assert not list(out.rglob("*.bin"))
    tokens = tiny_tokenizer()(["the tower"], ["is near"], return_tensors="pt")
    with torch.no_grad():
        expected = model(
            tokens["input_ids"], token_type_ids=torch.zeros_like(tokens["input_ids"])
        ).pooler_output
    found = BiEncoder.load(out, precision="fp32").encode_passages(["the tower"], ["is near"])
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


def test_the_head_of_ance_comes_over(tmp_path: Path) -> None:
    tiny_roberta(tmp_path / "ance")
    model = RobertaModel.from_pretrained(tmp_path / "ance", add_pooling_layer=False).eval()
    torch.manual_seed(4)
    head, norm = torch.nn.Linear(32, 32), torch.nn.LayerNorm(32)
    torch.nn.init.normal_(norm.weight)
    state = {
        f"roberta.{name}": tensor for name, tensor in load_file(tmp_path / "ance/model.safetensors").items()
    }
    state |= {f"embeddingHead.{name}": tensor.detach() for name, tensor in head.state_dict().items()}
    state |= {f"norm.{name}": tensor.detach() for name, tensor in norm.state_dict().items()}
    (tmp_path / "ance/model.safetensors").unlink()
    torch.save(state, tmp_path / "ance/pytorch_model.bin")
    out = import_folder(tmp_path / "ance", tmp_path / "out")
    encoder = BiEncoder.load(out, precision="fp32")
    ids = encoder._query.tokenizer(_TEXTS)
    with torch.no_grad():
        expected = [norm(head(model(torch.tensor([one]))[0][:, 0]))[0].numpy() for one in ids]
    np.testing.assert_allclose(encoder.encode_questions(_TEXTS), np.stack(expected), atol=1e-5)


def test_parts_and_the_modules_of_sentence_transformers(tmp_path: Path) -> None:
    source = _pickle(tiny_encoder(tmp_path / "st"), parts=3)
    torch.manual_seed(5)
    dense = torch.nn.Linear(32, 8)
    modules = ("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense")
    listed = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in modules]
    (source / "modules.json").write_text(json.dumps(listed))
    for path, config in (("1_Pooling", {"pooling_mode_cls_token": True}), ("2_Dense", {"in_features": 32})):
        (source / path).mkdir()
        (source / path / "config.json").write_text(json.dumps(config))
    torch.save(
        {f"linear.{n}": t for n, t in dense.state_dict().items()}, source / "2_Dense/pytorch_model.bin"
    )
    out = import_folder(source, tmp_path / "out")
    assert len(list(out.glob("model-0000?-of-00003.safetensors"))) == 3
    plain = BiEncoder.load(tiny_encoder(tmp_path / "plain"), precision="fp32", pooling="cls")
    with torch.no_grad():
        expected = dense(torch.from_numpy(np.asarray(plain.encode_questions(_TEXTS))))
    found = BiEncoder.load(out, precision="fp32").encode_questions(_TEXTS)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    (source / "pytorch_model-00002-of-00003.bin").unlink()
    with pytest.raises(IncompleteArtifactError, match=r"pytorch_model-00002-of-00003.bin is missing, 2 of 3"):
        import_folder(source, tmp_path / "more")
    assert not (tmp_path / "more").exists()


def test_the_oldest_layout_of_sentence_transformers_is_converted_and_opens(tmp_path: Path) -> None:
    """The model in a folder of its own, a layer behind it, and at the top a file with a version alone."""
    source = tmp_path / "old"
    tiny_encoder(source / "0_Transformer")
    modules = ("0_Transformer", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense")
    listed = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in modules]
    for name, content in (
        ("modules.json", listed),
        ("config.json", {"__version__": "0.3.8"}),
        ("0_Transformer/sentence_bert_config.json", {"max_seq_length": 20}),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": True}),
        ("2_Dense/config.json", {"activation_function": "torch.nn.modules.activation.Tanh"}),
    ):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(json.dumps(content))
    torch.save({"linear.weight": torch.randn(8, 32)}, source / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(ArtifactError, match=r"2_Dense has its weights only as") as refused:
        BiEncoder.load(source)
    assert f"rag import {source} --out" in refused.value.hint
    out = import_folder(source, tmp_path / "new")
    assert BiEncoder.load(out, precision="fp32").encode_questions(_TEXTS).shape == (2, 8)
    budget, count = passage_budget(out)
    assert (budget, count(_TEXTS[1])) == (17, 2)


def test_what_cannot_be_converted_is_refused(tmp_path: Path) -> None:
    plain = tiny_encoder(tmp_path / "plain")
    with pytest.raises(ConfigError, match="nothing to convert"):
        import_folder(plain, tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArtifactError, match="no weights to convert"):
        import_folder(tmp_path / "empty", tmp_path / "out")
    (plain / "config.json").write_text("{")
    with pytest.raises(ArtifactError, match=r"config\.json"):
        import_folder(plain, tmp_path / "out")
    (plain / "config.json").write_text('{"model_type": "bert"}')
    file = _pickle(plain) / "pytorch_model.bin"
    file.write_bytes(file.read_bytes()[:-5000])
    with pytest.raises(ArtifactError, match="damaged"):
        import_folder(plain, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_refuses_options_without_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rag.core.log.setup_logging", lambda level: None)
    source = _pickle(tiny_encoder(tmp_path / "one"))
    assert exit_code("import", source, "--out", tmp_path / "a", "--base", "bert-base-uncased")
    assert "--base has no use with a model's folder" in capsys.readouterr().err
    assert exit_code("import", source, "--out", tmp_path / "a") == 0
    assert "rag index … --encoder" in capsys.readouterr().out
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert exit_code("import", tmp_path / "model.gguf", "--out", tmp_path / "b", "--index", tmp_path)
    assert "--index has no use with a GGUF file" in capsys.readouterr().err
