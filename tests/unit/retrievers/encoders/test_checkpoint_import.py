"""Original checkpoints: read without running them, compared by name, and equal in transformers and here."""

import argparse
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
from retrievers.encoders.checkpoint_import import CHECKPOINT_FIELDS, import_checkpoint, read_pickled
from tests.commands import exit_code

_CONFIG = {
    "vocab_size": 30522, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 1,
    "intermediate_size": 96, "max_position_embeddings": 64,
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


def _towers(**changes: Any) -> dict[str, BertModel]:
    torch.manual_seed(1)
    return {side: BertModel(BertConfig(**{**_CONFIG, **changes})).eval() for side in ("question", "ctx")}


def _weights(towers: dict[str, BertModel]) -> dict[str, torch.Tensor]:
    weights = {
        f"{side}_model.{n}": t for side, tower in towers.items() for n, t in tower.state_dict().items()
    }
    for side in towers:
        weights[f"{side}_model.embeddings.position_ids"] = torch.arange(64)[None]
    return collections.OrderedDict(weights)


def _save(path: Path, state_class: type, weights: Any, *, zipped: bool = True, **fields: Any) -> Path:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    values = dict(zip(CHECKPOINT_FIELDS, (weights, optimizer.state_dict(), schedule.state_dict(), 7, 3, {})))
    values["encoder_params"] = {"pretrained_model_cfg": "bert-base-uncased", "sequence_length": 256}
    torch.save(state_class(**{**values, **fields}), path, _use_new_zipfile_serialization=zipped)
    return path


@pytest.mark.parametrize("zipped", [True, False])
def test_a_dpr_checkpoint_gives_the_vectors_of_its_towers(
    tmp_path: Path, state_class: type, zipped: bool
) -> None:
    towers = _towers()
    source = _save(tmp_path / "dpr.cp", state_class, _weights(towers), zipped=zipped)
    out = import_checkpoint(source, tmp_path / "out")
    assert not list(out.rglob("*.bin"))

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
            types_ = torch.zeros_like(given)
            expected = tower(given, token_type_ids=types_).last_hidden_state[:, 0].numpy()
            hf = theirs[side].eval()(given, token_type_ids=types_).pooler_output.numpy()
        np.testing.assert_allclose(ours[side], expected, atol=1e-5)
        np.testing.assert_allclose(hf, expected, atol=1e-5)


def test_parallel_prefix_projection_plain_dict_and_half_precision(tmp_path: Path) -> None:
    weights = {f"module.{name}": tensor.half() for name, tensor in _weights(_towers()).items()}
    for side in ("question", "ctx"):
        weights[f"module.{side}_model.encode_proj.weight"] = torch.ones(5, 64).half()
        weights[f"module.{side}_model.encode_proj.bias"] = torch.zeros(5).half()
    torch.save(weights, tmp_path / "plain.pt")
    out = import_checkpoint(tmp_path / "plain.pt", tmp_path / "out")
    assert BiEncoder.load(out, precision="fp32").encode_questions(["a question"]).shape == (1, 5)
    assert DPRQuestionEncoder.from_pretrained(out / "question_encoder").question_encoder.embeddings_size == 5


def test_the_same_checkpoint_gives_the_same_bytes(tmp_path: Path, state_class: type) -> None:
    source = _save(tmp_path / "dpr.cp", state_class, _weights(_towers()))
    folders = [import_checkpoint(source, tmp_path / name / "dpr") for name in "ab"]
    files = [{p.relative_to(f): p.read_bytes() for p in f.rglob("*") if p.is_file()} for f in folders]
    assert files[0] == files[1]
    assert files[0]


class _Malicious:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("place", ["model_dict", "optimizer_dict", "encoder_params"])
def test_nothing_in_a_checkpoint_is_run(tmp_path: Path, state_class: type, zipped: bool, place: str) -> None:
    trap = tmp_path / "trap"
    for function, arguments in ((os.mkdir, (str(trap),)), (eval, (f"__import__('os').mkdir('{trap}')",))):
        bad = {"x": _Malicious(function, *arguments)}
        source = _save(tmp_path / "evil.cp", state_class, _weights(_towers()), zipped=zipped, **{place: bad})
        with pytest.raises(ArtifactError, match=rf"asks for .*{function.__name__}.*nothing of it was run"):
            import_checkpoint(source, tmp_path / "out")
    assert not trap.exists()
    assert not (tmp_path / "out").exists()


_POISON = [
    b"cos\nsystem\n(S'true'\ntR.",  # protocol 0
    b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",  # STACK_GLOBAL
    b"(S'true'\nios\nsystem\n.",  # INST
    b"\x80\x04\x8c\x17retrievers.bi_encoder\x8c\x09BiEncoder\x93)R.",
    b"\x80\x04\x8c\x0bcollections\x8c\x14OrderedDict.__init__\x93)R.",  # a dotted name reaches nothing
    b"\x80\x02}q\x00(ctorch._utils\n_rebuild_tensor_v2\nX\x01\x00\x00\x00ab.",  # damaged
    b"\x80\x02\x82\x01.",  # extension registry
    b"ccollections\nOrderedDict\n}X\x08\x00\x00\x00__init__K\x01sb.",  # BUILD on a class
    b"garbage",
    b"",
]


@pytest.mark.parametrize("poison", _POISON)
def test_hand_written_pickles_are_refused(tmp_path: Path, poison: bytes) -> None:
    path = tmp_path / "poison.cp"
    head = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2) + pickle.dumps({}, 2)
    for data in (poison, head + poison):
        path.write_bytes(data)
        with pytest.raises(ArtifactError):
            read_pickled(path)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_tensor_cannot_reach_beyond_its_storage(tmp_path: Path, zipped: bool) -> None:
    class Beyond:
        def __reduce__(self) -> Any:
            storage = torch.zeros(4).untyped_storage()
            typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.float32, _internal=True)
            return torch._utils._rebuild_tensor_v2, (typed, 2, (4,), (1,), False, collections.OrderedDict())

    torch.save({"x": Beyond()}, tmp_path / "beyond.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(ArtifactError, match="storage"):
        read_pickled(tmp_path / "beyond.pt")


@pytest.mark.parametrize("zipped", [True, False])
def test_what_lies_beside_the_weights_is_passed_over(tmp_path: Path, zipped: bool) -> None:
    counts = collections.defaultdict(list, {"seen": [1, 2]})
    state = collections.Counter({"x": 2})
    saved = {
        "args": argparse.Namespace(lr=1e-5),
        "counts": counts,
        "state": state,
        "model": {"w": torch.ones(2)},
    }
    torch.save(saved, tmp_path / "rich.pt", _use_new_zipfile_serialization=zipped)
    found = read_pickled(tmp_path / "rich.pt")
    assert torch.equal(found["model"]["w"], torch.ones(2))
    assert not vars(found["args"])


def test_a_cut_file_is_refused(tmp_path: Path, state_class: type) -> None:
    for zipped in (True, False):
        source = _save(tmp_path / "dpr.cp", state_class, _weights(_towers()), zipped=zipped)
        source.write_bytes(source.read_bytes()[:-5000])
        with pytest.raises(ArtifactError):
            import_checkpoint(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "question_model.encoder.layer.1.output.dense.weight",
            None,
            "missing: encoder.layer.1.output.dense.w",
        ),
        ("ctx_model.encoder.layer.0.extra.weight", torch.ones(2), "unknown: encoder.layer.0.extra.weight"),
        ("ctx_model.encoder.layer.1.output.dense.bias", torch.ones(3), "of another shape: encoder.layer.1"),
        ("qa_outputs.weight", torch.ones(2), "qa_outputs.weight .a reader, not a bi-encoder"),
        ("ctx_model.encoder.layer.1.output.dense.bias", torch.full((64,), torch.nan), "not finite"),
        ("ctx_model.encoder.layer.1.output.dense.bias", "text", "are not tensors"),
    ],
)
def test_missing_and_foreign_weights_are_named(tmp_path: Path, name: str, value: Any, message: str) -> None:
    weights: dict[str, Any] = dict(_weights(_towers()))
    if value is None:
        del weights[name]
    else:
        weights[name] = value
    torch.save(weights, tmp_path / "odd.pt")
    with pytest.raises(RagError, match=message):
        import_checkpoint(tmp_path / "odd.pt", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_tower_is_not_enough(tmp_path: Path) -> None:
    torch.save({n: t for n, t in _weights(_towers()).items() if n.startswith("q")}, tmp_path / "one.pt")
    with pytest.raises(MismatchedArtifactError, match=r"no weights ctx_model\.\*"):
        import_checkpoint(tmp_path / "one.pt", tmp_path / "out")


def test_another_vocabulary_needs_its_base(tmp_path: Path, state_class: type, tiny_bert: Path) -> None:
    config = BertConfig.from_pretrained(tiny_bert)
    torch.manual_seed(2)
    towers = {side: BertModel(config) for side in ("question", "ctx")}
    weights = {f"{s}_model.{n}": t for s, tower in towers.items() for n, t in tower.state_dict().items()}
    source = _save(tmp_path / "dpr.cp", state_class, weights, encoder_params={"pretrained_model_cfg": "tiny"})
    with pytest.raises(ConfigError, match="trained from tiny"):
        import_checkpoint(source, tmp_path / "out")
    out = import_checkpoint(source, tmp_path / "out", base=tiny_bert)
    assert BiEncoder.load(out, precision="fp32").dim == config.hidden_size


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
