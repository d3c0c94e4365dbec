"""A masked language model that learns to read: what it reads, what is held out, that passages then
help.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rag.core.files import read_json
from rag.data.salient import NO_TITLES
from rag.joint.config import MlmTrainConfig
from rag.joint.fillers import MaskedReader
from rag.joint.mlm import held_out_figures, masked_loss, train_mlm
from rag.joint.sentences import SentenceBatches
from rag.training.run_log import read_metrics
from retrievers.examples.batches import Epochs
from retrievers.examples.corpus import open_corpus
from tests.conftest import TinyModels
from tests.unit.retrievers.training.test_ict import write_corpus

NAMES = ("Danube", "Forest", "Black", "Title", "Text")


def settings(place: Path, out: Path, **more: Any) -> MlmTrainConfig:
    given: dict[str, Any] = {
        "out": out,
        "train_files": (place / "corpus.jsonl",),
        "split": "none",
        "precision": "fp32",
        "threads": 1,
        "log_every_steps": 10,
        "batch_size": 24,
        "validation_fraction": 0.2,
        "min_words": 3,
        "reader": str(place / "bert"),
        "sentence_tokens": 32,
        "joint_tokens": 60,
        "mlm_dropout": 0.0,
    }
    return MlmTrainConfig(**{**given, **more})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tiny: TinyModels) -> Path:
    place, draw = tmp_path_factory.mktemp("mlm"), np.random.default_rng(3)
    tiny.bert(place / "bert", seed=5)
    texts = []
    for name in draw.choice(NAMES, 240).tolist():
        code = " ".join(draw.choice(list("efghijknopqst"), 4, replace=False))
        texts.append(f"Who wrote {code} in {name} rises? The river {code} {name}")
    write_corpus(place / "corpus.jsonl", texts)
    return place


def sentences(world: Path, out: Path, **more: Any) -> SentenceBatches:
    store = open_corpus([world / "corpus.jsonl"], out, "none")
    return SentenceBatches(
        store,
        MaskedReader.load(world / "bert", max_tokens=60).tokenizer,
        titles=NO_TITLES,
        sentence_tokens=32,
        min_words=3,
        **{"examples": Epochs(len(store), 8, epochs=1, seed=1), **more},
    )


def test_its_loss_is_that_of_words_alone_and_beside_two_passages(
    world: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    reader = MaskedReader.load(world / "bert", max_tokens=60, dropout=0.0)
    batch = sentences(world, tmp_path)[1]
    actual = masked_loss(reader, batch)
    with torch.no_grad():
        beside = [reader.tokens([sentence.rest, sentence.after]) for sentence in batch]
        logp = reader(batch, [[[], *both] for both in beside])  # (B, 3, T), all in one batch
    each = logp.sum(2) / torch.tensor([len(sentence.places) for sentence in batch])[:, None]
    torch.testing.assert_close(actual.value.detach(), -each.mean(), atol=1e-5, rtol=1e-5)
    alone, rest, after = each.mean(0).tolist()
    expected = {"nll": -rest, "utility": rest - alone, "utility_after": after - alone}
    assert actual.parts == pytest.approx(expected, abs=1e-5)
    assert held_out_figures(reader, batch) == pytest.approx(dict(actual.parts), abs=2e-4)


def test_it_learns_to_read(world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = settings(
        world,
        tmp_path / "run",
        epochs=50,
        max_steps=150,
        learning_rate=3e-3,
        validate_every_steps=75,
    )
    finished = train_mlm(config)
    assert "gets a new one" not in caplog.text  # as it should be
    reader = MaskedReader.load(finished, max_tokens=60, dropout=0.0)
    result = held_out_figures(reader, sentences(world, tmp_path)[0])["utility"]
    assert result > 1.0  # one of five names is worth log 5 = 1.6 nats
    said = read_json(tmp_path / "run" / "figures.json")
    records = [r for r in read_metrics(tmp_path / "run" / "metrics.jsonl") if "eval/utility" in r]
    assert len(records) == 2
    assert said["figures"]["utility"] == pytest.approx(records[-1]["eval/utility"])
    assert said["figures"]["utility"] > 1.0  # of passages that were held out
    assert train_mlm(config) == finished  # finished: nothing is done again
