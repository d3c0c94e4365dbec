"""Pickled weights: read without running them, compared by name, and equal in transformers and here."""

import collections
import os
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, DPRContextEncoder, DPRQuestionEncoder

from rag.core.errors import ArtifactError, ConfigError, MismatchedArtifactError, RagError
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.encoders.import_weights import CHECKPOINT_FIELDS, import_checkpoint
from tests.commands import exit_code

_CONFIG = {
    "vocab_size": 30522, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 1,
    "intermediate_size": 96, "max_position_embeddings": 512,
}  # fmt: skip


@pytest.fixture
def state_class(monkeypatch: pytest.MonkeyPatch) -> type:
    """A named tuple under the module and name that DPR's code gave it."""
    made = collections.namedtuple("CheckpointState", CHECKPOINT_FIELDS)
    made.__module__ = "dpr.utils.model_utils"
    for name in ("dpr", "dpr.utils", "dpr.utils.model_utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["dpr.utils.model_utils"].CheckpointState = made  # type: ignore[attr-defined]
    return made


def _towers() -> dict[str, BertModel]:
    torch.manual_seed(1)
    return {side: BertModel(BertConfig(**_CONFIG)).eval() for side in ("question", "ctx")}


def _weights(towers: dict[str, BertModel]) -> dict[str, Any]:
    weights = {f"{s}_model.{n}": t for s, tower in towers.items() for n, t in tower.state_dict().items()}
    return weights | {f"{side}_model.embeddings.position_ids": torch.arange(512)[None] for side in towers}


def _save(path: Path, state_class: type, weights: Any, *, zipped: bool = True, **fields: Any) -> Path:
    values: dict[str, Any] = dict(zip(CHECKPOINT_FIELDS, (weights, {"step": torch.ones(1)}, {}, 7, 3, {})))
    torch.save(state_class(**{**values, **fields}), path, _use_new_zipfile_serialization=zipped)
    return path


@pytest.mark.parametrize("zipped", [True, False])
def test_a_dpr_checkpoint_gives_the_vectors_of_its_towers(
    tmp_path: Path, state_class: type, zipped: bool
) -> None:
    towers = _towers()
    source = _save(tmp_path / "dpr.cp", state_class, _weights(towers), zipped=zipped)
    out = import_checkpoint(source, tmp_path / "out")
    encoder = BiEncoder.load(out, precision="fp32")
    questions, titles, texts = ["who is on first"], ["Baseball"], ["Who is on first, what is on second."]
    ids = {"question": encoder._query.tokenizer(questions), "ctx": encoder._passage.tokenizer(titles, texts)}
    ours = {"question": encoder.encode_questions(questions), "ctx": encoder.encode_passages(titles, texts)}
    theirs = {
        "question": DPRQuestionEncoder.from_pretrained(out / "question_encoder"),
        "ctx": DPRContextEncoder.from_pretrained(out / "ctx_encoder"),
    }
    for side, tower in towers.items():
        with torch.no_grad():
            given = torch.tensor(ids[side])
            kinds = torch.zeros_like(given)
            expected = tower(given, token_type_ids=kinds).last_hidden_state[:, 0].numpy()
            hf = theirs[side].eval()(given, token_type_ids=kinds).pooler_output.numpy()
        np.testing.assert_allclose(ours[side], expected, atol=1e-5)
        np.testing.assert_allclose(hf, expected, atol=1e-5)


def test_parallel_prefix_projection_plain_dict_half_precision_and_a_base(tmp_path: Path) -> None:
    weights = {f"module.{name}": tensor.half() for name, tensor in _weights(_towers()).items()}
    for side in ("question", "ctx"):
        weights[f"module.{side}_model.encode_proj.weight"] = torch.ones(5, 64).half()
        weights[f"module.{side}_model.encode_proj.bias"] = torch.zeros(5).half()
    torch.save(weights, tmp_path / "plain.pt")
    out = import_checkpoint(tmp_path / "plain.pt", tmp_path / "out")
    assert BiEncoder.load(out, precision="fp32").encode_questions(["a question"]).shape == (1, 5)


class _Malicious:
    def __reduce__(self) -> Any:
        return os.mkdir, ("trap",)


@pytest.mark.parametrize("zipped", [True, False])
def test_nothing_in_a_checkpoint_is_run(
    tmp_path: Path, state_class: type, zipped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = _save(Path("e.cp"), state_class, _weights(_towers()), zipped=zipped, encoder_params=_Malicious())
    with pytest.raises(ArtifactError, match=r"nothing of it was run: it asks for .*mkdir"):
        import_checkpoint(source, tmp_path / "out")
    for poison in (b"cos\nsystem\n(S'true'\ntR.", b"(S'true'\nios\nsystem\n.", b"garbage", b""):
        head = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2) + pickle.dumps({}, 2)
        for data in (poison, head + poison):
            source.write_bytes(data)
            with pytest.raises(ArtifactError):
                import_checkpoint(source, tmp_path / "out")
    assert not Path("trap").exists()
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("question_model.encoder.layer.1.output.dense.weight", None, MismatchedArtifactError),
        ("ctx_model.encoder.layer.0.extra.weight", torch.ones(2), MismatchedArtifactError),
        ("ctx_model.encoder.layer.1.output.dense.bias", torch.ones(3), MismatchedArtifactError),
        ("qa_outputs.weight", torch.ones(2), MismatchedArtifactError),
        ("ctx_model.embeddings.word_embeddings.weight", torch.ones(7, 64), ConfigError),
        ("ctx_model.encoder.layer.1.output.dense.bias", "text", ArtifactError),
        ("ctx_model.", None, MismatchedArtifactError),
    ],
)
def test_missing_and_foreign_weights(tmp_path: Path, name: str, value: Any, kind: type[RagError]) -> None:
    weights = {key: tensor for key, tensor in _weights(_towers()).items() if not key.startswith(name)}
    torch.save(weights | ({} if value is None else {name: value}), tmp_path / "odd.pt")
    with pytest.raises(kind):
        import_checkpoint(tmp_path / "odd.pt", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command(
    tmp_path: Path, state_class: type, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rag.core.log.setup_logging", lambda level: None)
    source = _save(tmp_path / "dpr.cp", state_class, _weights(_towers()))
    arguments = ["import", str(source), "--out", str(tmp_path / "out")]
    assert exit_code(*arguments) == 0
    assert "rag index … --encoder" in capsys.readouterr().out
    assert exit_code(*arguments)
    assert "exists and is not empty" in capsys.readouterr().err
