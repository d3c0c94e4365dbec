"""Encoders stored as a difference, against the encoders that they stand for."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from rag.core.errors import ArtifactError, ConfigError, MismatchedArtifactError
from rag.runtime.low_rank import (
    DIFFERENCE_FILE,
    add_difference,
    low_rank_difference,
    write_difference,
    write_whole,
)
from rag.runtime.model_files import backbone_state, weight_files, weights_sha256
from retrievers.encoders.bi_encoder import BiEncoder
from tests.conftest import TinyModels

TEXTS = ["who wrote the play", "a river in the north"]


def trained(tiny: TinyModels, base: Path, out: Path, rank: int) -> Path:
    """A copy of `base` whose matrices differ from it by products of this rank, and its biases freely."""
    tiny.bert(out)
    state = load_file(base / "model.safetensors")
    random = torch.Generator().manual_seed(3)
    for name, tensor in state.items():
        shape = tensor.shape
        change = torch.randn(shape, generator=random) * 0.05
        if len(shape) == 2:
            change = torch.randn((shape[0], rank), generator=random) @ torch.randn(
                (rank, shape[1]), generator=random
            )
        state[name] = tensor + 0.1 * change
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})
    return out


def test_vectors_are_those_of_the_whole_encoder(tiny: TinyModels, tmp_path: Path) -> None:
    base = tiny.bert(tmp_path / "base")
    whole = trained(tiny, base, tmp_path / "whole", rank=3)
    small = write_difference(whole, tmp_path / "small", rank=3, base=str(base))
    assert not (small / "model.safetensors").exists()
    again = write_whole(small, tmp_path / "again")
    vectors = [
        BiEncoder.load(folder, precision="fp32").encode_questions(TEXTS)
        for folder in (whole, small, base, again)
    ]
    np.testing.assert_array_equal(vectors[1], vectors[3])
    with pytest.raises(ConfigError, match=r"holds something|not empty"):
        write_whole(small, base)
    np.testing.assert_allclose(vectors[0], vectors[1], atol=5e-3)  # float16 factors
    assert np.abs(vectors[0] - vectors[2]).max() > 0.1
    names = [BiEncoder.load(folder).identity.weights_sha256 for folder in (base, whole, small)]
    assert len(set(names)) == 3
    assert names[2] == weights_sha256([base / "model.safetensors", small / DIFFERENCE_FILE])


def test_the_best_of_its_rank_is_stored() -> None:
    random = np.random.default_rng(1)
    before, after = (random.normal(size=(6, 9)).astype(np.float32) for _ in range(2))
    base, changed = ({"w": torch.from_numpy(w), "same": torch.ones(2, 2)} for w in (before, after))
    stored = low_rank_difference(base, changed, 2)
    assert stored.keys() == {"w.left", "w.right"}
    left, values, right = np.linalg.svd(after - before)
    best = before + left[:, :2] @ np.diag(values[:2]) @ right[:2]
    np.testing.assert_allclose(add_difference(base, stored)["w"].numpy(), best, atol=5e-3)
    whole = low_rank_difference(base, changed, 6)
    np.testing.assert_allclose(add_difference(base, whole)["w"].numpy(), after, atol=5e-3)


def test_what_does_not_fit_is_refused(tiny: TinyModels, tmp_path: Path) -> None:
    base = tiny.bert(tmp_path / "base")
    small = write_difference(
        trained(tiny, base, tmp_path / "whole", rank=2), tmp_path / "small", rank=2, base=str(base)
    )
    with pytest.raises(ArtifactError, match="names 'nothing', which its base has not"):
        add_difference({"w": torch.ones(2)}, {"nothing.whole": torch.ones(2)})
    wide = tiny.bert(tmp_path / "wide", hidden_size=16)
    with pytest.raises(ArtifactError, match="other names or shapes"):
        write_difference(wide, tmp_path / "x", base=str(base))
    tiny.bert(base, seed=5)
    with pytest.raises(MismatchedArtifactError, match=r"is a difference from weights of .* with sha256"):
        weight_files(small)
    with safe_open(small / DIFFERENCE_FILE, framework="pt") as file:
        assert set(file.metadata()) == {"base", "base_sha256"}
    save_file({"w.whole": torch.ones(1)}, small / DIFFERENCE_FILE)
    with pytest.raises(ArtifactError, match="does not state the model"):
        weight_files(small)
    (small / DIFFERENCE_FILE).write_bytes(b"damaged")
    with pytest.raises(ArtifactError, match="cannot be read"):
        backbone_state(small)
