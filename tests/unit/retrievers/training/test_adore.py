"""`train_adore` learns with every passage vector as it was; its index is ready for searches."""

import json
import logging
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexers.build import build_index
from indexers.index import Index
from indexers.settings import BuildSettings
from rag.config import load_config
from rag.core.errors import ConfigError, DataError, MismatchedArtifactError
from rag.core.types import Passage
from rag.data.examples import read_examples, write_examples
from retrievers.dense import DenseRetriever
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.encoders.open import load_like
from retrievers.encoders.tower import TowerModel
from retrievers.training.adore import candidates, train_adore
from retrievers.training.bi_encoder import adopt_index
from retrievers.training.config import AdoreTrainConfig, DprTrainConfig
from retrievers.training.distill import train_distill
from retrievers.training.dpr import train_dpr
from retrievers.training.recipe_configs import DistillTrainConfig, MdrTrainConfig
from retrievers.training.split import split_examples
from retrievers.training.validation import CorpusSearch
from tests.conftest import TinyModels
from tests.unit.retrievers.conftest import cipher_examples

_SMALL: dict[str, Any] = {
    "precision": "fp32", "question_tokens": 16, "batch_size": 32, "dropout": 0.0, "threads": 1,
    "log_every_steps": 10, "validation_fraction": 0.2,
}  # fmt: skip


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> tuple[Path, Path]:
    """(training file, index built with an encoder that was trained a little)."""
    place = tmp_path_factory.mktemp("warm")
    examples = cipher_examples(400)
    write_examples(place / "train.json", examples)
    config = DprTrainConfig(
        out=place / "run", train_files=(place / "train.json",), question_encoder=str(tiny_bert), epochs=6,
        hard_negatives=0, learning_rate=3e-3, pooling="mean", normalize=True, passage_tokens=16, **_SMALL,
    )  # fmt: skip
    encoder = BiEncoder.load(train_dpr(config), precision="fp32")
    passages = [example.positives[0] for example in examples]
    build_index(passages, place / "index", encoder=encoder, settings=BuildSettings(probes=8))
    return place / "train.json", place / "index"


def adore(out: Path, warm: tuple[Path, Path], **settings: Any) -> AdoreTrainConfig:
    given = {"out": out, "train_files": (warm[0],), "index": warm[1], "depth": 30, **_SMALL, **settings}
    return AdoreTrainConfig(**given)


def test_retrieval_rises_and_the_index_needs_no_rebuild(tmp_path: Path, warm: tuple[Path, Path]) -> None:
    config = adore(tmp_path / "run", warm, epochs=10, learning_rate=3e-3, select_by="mrr")
    finished = train_adore(config)
    records = [json.loads(line) for line in (config.out / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if "loss" in record]
    assert losses[-1] < 0.95 * losses[0]

    held_out = split_examples(config, config.out / "data").held_out
    figures = []
    for place in (config.index, config.out / "index"):
        with Index.open(place, verify="deep") as index:
            identity = index.encoder_identity
            assert identity is not None
            assert index.dense is not None
            assert records[0]["index_version"] != index.version or place == config.index
            encoder = load_like(identity, precision="fp32")
            retriever = DenseRetriever(index.dense, index.passages, encoder)
            hits = retriever.search([example.question for example in held_out], 100)
            rows = np.array([[hit.row for hit in found] for found in hits])
            figures.append(CorpusSearch(index.passages, held_out).judge(rows)["mrr"])
    assert figures[1] > figures[0] + 5
    told = json.loads((config.out / "figures.json").read_text())["figures"]
    assert told["mrr"] == pytest.approx(figures[1], abs=0.5)

    texts = ["the river a b c d text"]
    before = BiEncoder.load(config.index.parent / "run" / "encoder", precision="fp32")
    after = BiEncoder.load(finished, precision="fp32")
    assert np.array_equal(before.encode_passages(["t"], texts), after.encode_passages(["t"], texts))
    assert not np.allclose(before.encode_questions(texts), after.encode_questions(texts))
    shard = "embeddings/shard-00000.npy"
    assert (config.index / shard).stat().st_ino == (config.out / "index" / shard).stat().st_ino

    files = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    assert train_adore(config) == finished  # a finished run is not repeated
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == files


def test_candidates_hold_the_positives_only_where_search_missed_them() -> None:
    found = np.array([[5, 6, 7], [1, 2, -1], [8, 9, 4]])
    rows, relevant = candidates(found, [frozenset({6, 70}), frozenset({3, 40}), frozenset({4})])
    assert rows.tolist() == [[5, 6, 7, -1, -1], [1, 2, -1, 3, 40], [8, 9, 4, -1, -1]]
    assert [np.flatnonzero(row).tolist() for row in relevant] == [[1], [3, 4], [2]]


def test_questions_that_start_elsewhere_are_told(
    tmp_path: Path, tiny: TinyModels, warm: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """As in the second stage of a recipe whose file names the encoder of the first."""
    config = MdrTrainConfig(
        out=tmp_path, train_files=(warm[0],), index=warm[1], shared=False, frozen="passage"
    )
    with Index.open(warm[1]) as index, caplog.at_level(logging.WARNING):
        identity = index.encoder_identity
        assert identity is not None
        same = adopt_index(config.replaced(question_encoder=identity.name), index)
        assert not caplog.text
        assert (
            same.model.question_encoder == adopt_index(config, index).model.question_encoder == identity.name
        )
        adopt_index(config.replaced(question_encoder=str(tiny.bert(tmp_path / "other", seed=5))), index)
    assert "questions start from" in caplog.text
    assert identity.name in caplog.text


def test_what_cannot_work_is_said(tmp_path: Path, warm: tuple[Path, Path]) -> None:
    for settings in ({"shared": True}, {"pooling": "cls"}, {"select_by": "nll"}, {"chunk_size": 8}):
        overrides = {"out": "r", "train_files": ["t"], "index": "i", **settings}
        with pytest.raises(ConfigError, match=r"the index decides|not measured|unknown setting 'chunk_size'"):
            load_config(AdoreTrainConfig, overrides=overrides)
    build_index(
        [Passage("x", "", "another corpus")], tmp_path / "other",
        encoder=BiEncoder.load(warm[1].parent / "run" / "encoder"), settings=BuildSettings(probes=1),
    )  # fmt: skip
    with pytest.raises(DataError, match="has a positive in"):
        train_adore(adore(tmp_path / "a", (warm[0], tmp_path / "other")))
    build_index([Passage("x", "", "y")], tmp_path / "bm25", settings=BuildSettings(retriever="bm25"))
    with pytest.raises(ConfigError, match="no vectors"):
        train_adore(adore(tmp_path / "b", (warm[0], tmp_path / "bm25")))
    config = adore(tmp_path / "c", warm, max_steps=1)
    train_adore(config)
    with pytest.raises(MismatchedArtifactError, match="depth"):
        train_adore(config.replaced(depth=10))
    with pytest.raises(MismatchedArtifactError, match="whose passage_encoder"):
        train_adore(config.replaced(index=config.out / "index"))


def test_frozen_passages_are_taken_from_the_index(
    tmp_path: Path, warm: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No passage is encoded to be learned from, and the index needs no rebuild."""
    examples = list(read_examples(warm[0]))
    scored = []
    for example, other in pairwise(examples):
        right, wrong = (e.candidates[0] for e in (example, other))
        listed = (replace(right, target=3.0), replace(wrong, role="hard_negative", target=0.0))
        scored.append(replace(example, candidates=listed))
    write_examples(tmp_path / "scored.json", scored)
    given: dict[str, Any] = {
        "out": tmp_path / "run", "train_files": (tmp_path / "scored.json",), "index": warm[1], **_SMALL,
        "shared": False, "frozen": "passage", "validate_every_steps": 9, "epochs": 3, "learning_rate": 3e-3,
    }  # fmt: skip
    encoded: list[int] = []
    forward = TowerModel.forward
    monkeypatch.setattr(
        TowerModel, "forward",
        lambda self, texts, **side: encoded.append(0 if side else len(texts)) or forward(self, texts, **side),
    )  # fmt: skip
    finished = train_distill(DistillTrainConfig(**given))
    assert not sum(encoded)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    measured = [record["eval/nll"] for record in records if "eval/mrr" in record]
    assert measured[-1] < measured[0]
    with Index.open(tmp_path / "run" / "index", verify="deep") as index:
        assert index.encoder_identity == BiEncoder.load(finished).identity
    other_encoder = str(warm[1].parent / "run" / "encoder")
    given |= {"out": tmp_path / "b", "index": tmp_path / "run" / "index", "question_encoder": other_encoder}
    with pytest.raises(MismatchedArtifactError, match="was built with"):
        train_dpr(DprTrainConfig(**given))
