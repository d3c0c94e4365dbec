"""GGUF files become transformers folders with the values that their blocks stand for."""

import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rag.core.errors import ArtifactError, ConfigError
from rag.runtime.gguf import import_gguf, is_gguf
from readers.open import reader_kind
from tests.commands import exit_code
from tests.tiny_causal import causal_tokenizer, tiny_causal, write_gguf

TEXT = "<|im_start|>user\nhow many meters has the tower<|im_end|>\n"


def test_weights_tokens_and_chat_template_survive(tmp_path: Path) -> None:
    model = tiny_causal()
    out = import_gguf(write_gguf(tmp_path / "tiny.gguf", model), tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(out)
    ids = causal_tokenizer()(TEXT, return_tensors="pt")["input_ids"]
    assert tokenizer(TEXT)["input_ids"] == ids[0].tolist()
    assert tokenizer.chat_template == causal_tokenizer().chat_template
    imported = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    with torch.no_grad():
        assert torch.allclose(imported(ids).logits, model(ids).logits, atol=1e-4)
    assert imported.generation_config.eos_token_id == 2
    assert reader_kind(out) == "llm"


def test_quantised_blocks_out_of_a_wheel_by_the_command(tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType.Q4_1
    model = tiny_causal()
    file = write_gguf(tmp_path / "tiny.gguf", model, kind=kind)
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(file, "tiny/model.gguf")
        archive.writestr("tiny/__init__.py", "raise SystemExit('code of the package was run')")
    assert is_gguf(wheel)
    assert exit_code("import", wheel, "--out", tmp_path / "out") == 0
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).state_dict()
    for name, tensor in model.state_dict().items():
        values = tensor.numpy()
        if values.ndim == 2:  # the order of rows does not change what a row's blocks hold
            values = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
        assert np.array_equal(found[name].numpy(), values), name


def test_what_cannot_be_converted_is_said(tmp_path: Path) -> None:
    model, out = tiny_causal(), tmp_path / "out"
    with pytest.raises(ArtifactError, match="not supported"):
        import_gguf(write_gguf(tmp_path / "other.gguf", model, arch="clip"), out)
    with pytest.raises(ArtifactError, match=r"missing, as model\.norm\.weight"):
        import_gguf(write_gguf(tmp_path / "less.gguf", model, drop="output_norm.weight"), out)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(b"<html>not found</html>")
    with pytest.raises(ArtifactError, match="begins with"):
        import_gguf(cut, out)
    cut.write_bytes(write_gguf(tmp_path / "whole.gguf", model).read_bytes()[:5000])
    with pytest.raises(ArtifactError, match="cannot convert"):
        import_gguf(cut, out)
    part = write_gguf(tmp_path / "m-00001-of-00003.gguf", model, drop="output_norm.weight")
    with pytest.raises(ConfigError, match="one of 3 parts"):
        import_gguf(part, out)
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.write(tmp_path / "whole.gguf", "a.gguf")
        archive.write(tmp_path / "whole.gguf", "b.gguf")
    with pytest.raises(ConfigError, match="holds 2 GGUF files"):
        import_gguf(tmp_path / "two.zip", out)
    assert not out.exists()
