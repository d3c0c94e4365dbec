"""Whose a run's folder is, and with which files a run goes on."""

import json
from pathlib import Path
from typing import ClassVar

import pytest

from rag.core.errors import ConfigError, DataError, MismatchedArtifactError
from rag.core.files import read_json
from rag.training.config import TrainConfig
from rag.training.run_folder import claim_run, claimed
from tests.support.messages import refusal


class _Claimed(TrainConfig):
    recipe: ClassVar[str] = "toy"
    free: ClassVar[frozenset[str]] = TrainConfig.free | {"note", "index"}

    out: Path = Path("run")
    name: str = "toy"
    index: Path | None = None
    train_files: tuple[Path, ...] = ()
    encoder: str | None = None
    note: str = ""


def test_a_folder_belongs_to_one_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = _Claimed(train_files=(Path("train.json"),))
    claim_run(config, tmp_path)
    made = [tmp_path / "refresh", tmp_path / "data"]
    for folder in made:
        folder.mkdir()
    claim_run(config, tmp_path)
    assert all(folder.exists() for folder in made)
    stored = read_json(tmp_path / "config.json")
    assert (stored["recipe"], stored["seed"]) == ("toy", config.seed)
    assert stored["train_files"] == [str(tmp_path / "train.json")]
    claim_run(config.replaced(note="more", threads=2), tmp_path)  # before any checkpoint, too
    with refusal(MismatchedArtifactError):
        claim_run(config.replaced(seed=5, train_files=("other.json",)), tmp_path)


@pytest.mark.parametrize("refused", [ConfigError, DataError])
def test_a_command_that_is_refused_before_any_training_can_be_corrected(
    tmp_path: Path, refused: type[Exception]
) -> None:
    config = _Claimed(out=tmp_path / "run")
    with pytest.raises(refused), claimed(config):
        (config.out / "data").mkdir()
        raise refused("wrong")
    with claimed(config.replaced(seed=4)):
        assert not (config.out / "data").exists()
    with refusal(MismatchedArtifactError):  # as after kill -9
        claim_run(config.replaced(seed=5), config.out)
    _begin(config.out)
    with pytest.raises(refused), claimed(config.replaced(seed=4)):
        raise refused("wrong")
    with refusal(MismatchedArtifactError):
        claim_run(config.replaced(seed=5), config.out)


def test_a_run_goes_on_with_the_files_it_was_started_with(tmp_path: Path) -> None:
    train = tmp_path / "train.json"
    folder = tmp_path / "beir"
    weights = tmp_path / "model/model.safetensors"
    (folder / "qrels").mkdir(parents=True)
    weights.parent.mkdir()
    queries = folder / "queries.jsonl"
    judged = folder / "qrels" / "test.tsv"
    for file in (train, queries, judged, weights):
        file.write_text("a")
    config = _Claimed(train_files=(train, folder), encoder=str(weights.parent))
    out = tmp_path / "run"
    claim_run(config, out)
    for file in (train, queries, judged, weights):
        file.write_text("c")
        with refusal(MismatchedArtifactError):
            claim_run(config, out)
        file.write_text("a")
    claim_run(config, out)
    (folder / "manifest.json").write_text(
        "{}"
    )  # an index: its manifest has the checksums of the rest
    with refusal(MismatchedArtifactError):
        claim_run(config, out)
    alone = _Claimed(train_files=(judged,))  # its questions stand in another file
    claim_run(alone, tmp_path / "judged")
    _begin(tmp_path / "judged")
    queries.write_text("c")
    with refusal(MismatchedArtifactError):
        claim_run(alone, tmp_path / "judged")


def test_a_run_goes_on_with_the_index_it_was_started_with_wherever_it_is(tmp_path: Path) -> None:
    def index(name: str, version: str) -> Path:
        manifest = {"format_version": 1, "kind": "index", "version": version}
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "manifest.json").write_text(json.dumps(manifest))
        return tmp_path / name

    config = _Claimed(index=index("index", "a"))
    out = tmp_path / "run"
    claim_run(config, out)
    _begin(out)
    claim_run(_Claimed(index=index("moved", "a")), out)
    with refusal(MismatchedArtifactError):
        claim_run(_Claimed(index=index("moved", "b")), out)


OTHER_KINDS = {
    "index": ("manifest.json", '{"kind": "index"}'),
    "index that is being built": ("building/state.json", "{}"),
    "model": ("config.json", '{"model_type": "bert"}'),
}


@pytest.mark.parametrize(("name", "content"), OTHER_KINDS.values(), ids=OTHER_KINDS)
def test_a_run_spares_a_folder_of_another_kind(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)
    config = _Claimed(out=tmp_path)
    with refusal(ConfigError), claimed(config):
        pass
    assert (tmp_path / name).read_text() == content
    (tmp_path / name).unlink()
    if (tmp_path / "building").exists():
        (tmp_path / "building").rmdir()
    left = [
        tmp_path / name
        for name in (".reader.partial-a1", ".config.json.partial-b2", "data/.x.partial-c3")
    ]
    for _ in range(2):  # begun, and resumed after a kill while these were written
        for place in left:
            place.mkdir(parents=True)
        with claimed(config):
            assert not any(place.exists() for place in left)


def _begin(run: Path) -> None:
    """As if it had saved a checkpoint."""
    checkpoint = run / "checkpoints" / "step-00000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").write_text("{}")
