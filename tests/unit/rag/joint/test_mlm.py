"""A masked language model that learns to read: what it reads, what is held out, that passages then
help.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from rag.joint.config import MlmTrainConfig
from rag.joint.fillers import MaskedReader
from rag.joint.mlm import held_out_figures, masked_loss
from rag.joint.sentences import MaskedSentence
from tests.conftest import TinyModels
from tests.support.training import figures_of, records
from tests.tiny_masks import NAMES, SMALL, draw_code, sentence_batches
from tests.unit.retrievers.training.test_ict import write_corpus


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tiny: TinyModels) -> Path:
    place = tmp_path_factory.mktemp("mlm")
    draw = np.random.default_rng(3)
    tiny.bert(place / "bert", seed=5)
    texts = []
    for name in draw.choice(NAMES, 240).tolist():
        code = draw_code(draw)
        texts.append(f"Who wrote {code} in {name} rises? The river {code} {name}")
    write_corpus(place / "corpus.jsonl", texts)
    return place


def sentences(world: Path, cut: Path, number: int) -> list[MaskedSentence]:
    return sentence_batches(world / "corpus.jsonl", world / "bert", cut)[number]


def test_its_loss_is_that_of_words_alone_and_beside_two_passages(
    world: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    reader = MaskedReader.load(world / "bert", max_tokens=60, dropout=0.0)
    batch = sentences(world, tmp_path, 1)
    actual = masked_loss(reader, batch)
    with torch.no_grad():
        beside = [reader.tokens([sentence.rest, sentence.after]) for sentence in batch]
        logp = reader(batch, [[[], *both] for both in beside])  # (B, 3, T), all in one batch
    means = logp.sum(2) / torch.tensor([len(sentence.places) for sentence in batch])[:, None]
    torch.testing.assert_close(actual.value.detach(), -means.mean(), atol=1e-5, rtol=1e-5)
    alone, rest, after = means.mean(0).tolist()
    expected = {"nll": -rest, "utility": rest - alone, "utility_after": after - alone}
    assert actual.parts == pytest.approx(expected, abs=1e-5)
    assert held_out_figures(reader, batch) == pytest.approx(dict(actual.parts), abs=2e-4)


def test_it_learns_to_read(world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {**SMALL, "batch_size": 24, "validation_fraction": 0.2, "min_words": 3}
    config = MlmTrainConfig(
        out=tmp_path / "run",
        train_files=(world / "corpus.jsonl",),
        reader=str(world / "bert"),
        epochs=50,
        max_steps=150,
        learning_rate=3e-3,
        validate_every_steps=75,
        **settings,
    )
    finished = config.train_model()
    assert "gets a new one" not in caplog.text  # as it should be
    reader = MaskedReader.load(finished, max_tokens=60, dropout=0.0)
    result = held_out_figures(reader, sentences(world, tmp_path, 0))["utility"]
    assert result > 1.0  # one of five names is worth log 5 = 1.6 nats
    utility = figures_of(config.out)["utility"]
    assert utility > 1.0  # of passages that were held out
    validations = records(config.out, "eval/utility")
    assert [record["step"] for record in validations] == [75, 150]
    assert utility == pytest.approx(validations[-1]["eval/utility"])
    assert config.train_model() == finished  # finished: nothing is done again
