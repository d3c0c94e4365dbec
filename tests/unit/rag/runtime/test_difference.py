"""Encoders stored as a difference, against the encoders that they stand for."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from rag.runtime import model_files
from rag.runtime.backbone import load_backbone
from rag.runtime.model_files import DIFFERENCE_FILE, weights_sha256
from retrievers.encoders.bi_encoder import BiEncoder
from tests.conftest import TinyModels

TEXTS = ["who wrote the play", "a river in the north"]


@pytest.fixture
def folders(
    tiny: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Path, Path]:
    """A base, a folder with a difference from it, and the same encoder with all its weights."""
    base, small, whole = (tiny.bert(tmp_path / name) for name in ("base", "small", "whole"))
    state = load_file(base / "model.safetensors")
    stored = {}
    random = torch.Generator().manual_seed(3)
    for name, tensor in state.items():
        if tensor.ndim == 2:
            left, right = (
                torch.randn(size, generator=random).half() * 0.2
                for size in ((len(tensor), 3), (3, tensor.shape[1]))
            )
            stored |= {f"{name}.left": left, f"{name}.right": right}
            state[name] = tensor + left.float() @ right.float()
        else:
            stored[f"{name}.whole"] = torch.full_like(tensor, 0.1)
            state[name] = tensor + 0.1
    save_file(state, whole / "model.safetensors", {"format": "pt"})
    (small / "model.safetensors").unlink()
    save_file(stored, small / DIFFERENCE_FILE)
    monkeypatch.setattr(model_files, "embedded_encoder_dir", lambda: base)
    return base, small, whole


def test_vectors_are_those_of_the_whole_encoder(folders: tuple[Path, ...]) -> None:
    base, small, whole = folders
    encoders = [BiEncoder.load(folder, precision="fp32") for folder in (whole, small, base)]
    vectors = [encoder.encode_questions(TEXTS) for encoder in encoders]
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)
    assert np.abs(vectors[0] - vectors[2]).max() > 0.1
    both = [base / "model.safetensors", small / DIFFERENCE_FILE]
    assert encoders[1].identity.weights_sha256 == weights_sha256(both)
    trained = load_backbone(small, train=True).state_dict()
    torch.testing.assert_close(trained, load_backbone(whole, train=True).state_dict())
