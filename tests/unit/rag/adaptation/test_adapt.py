"""`rag adapt` on a tiny corpus: from the index to an encoder, killed, resumed, refused."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexers.index_writer import write_index
from indexers.settings import BuildSettings
from rag.adaptation import adapt as module
from rag.adaptation.adapt import adapt
from rag.core.errors import ArtifactError, ConfigError, MismatchedArtifactError
from rag.core.types import Passage, Query
from rag.data.examples import read_examples
from retrievers.encoders.bi_encoder import BiEncoder
from tests.commands import run_successfully
from tests.support.messages import refusal
from tests.tiny_reader import WORDS, tiny_encoder
from tests.worlds import killed_at

TRAINING: dict[str, Any] = {
    "batch_size": 8,
    "max_steps": 2,
    "validation_questions": 8,
    "precision": "fp32",
    "threads": 1,
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder, and its index of 70 passages with a number each."""
    folder = tmp_path_factory.mktemp("adapt")
    draw = np.random.default_rng(1)
    passages = []
    for number in range(70):
        name = " ".join(str(word) for word in draw.choice(WORDS[:8], 4, replace=False))
        place = f"{chr(97 + number % 26)}{chr(97 + number // 26)}"
        text = f"The {name} near {place} has {draw.integers(10, 100)} meters."
        passages.append(Passage(str(number), "", text))
    encoder = BiEncoder.load(tiny_encoder(folder / "encoder"))
    write_index(folder / "index", passages, encoder=encoder, settings=BuildSettings(probes=2))
    return folder


def test_a_corpus_teaches_the_encoder_of_its_index(world: Path, tmp_path: Path) -> None:
    settings = [part for name, value in TRAINING.items() for part in ("--set", f"{name}={value}")]
    printed = run_successfully("adapt", "--index", world / "index", "--out", tmp_path, *settings)
    assert f"rag index … --encoder {tmp_path / 'encoder'}" in printed
    examples = list(read_examples(tmp_path / "questions.json"))
    assert len(examples) == 70
    for example in examples:
        assert example.question.startswith("How many meters The")
        assert example.answers[0] in example.positives[0].text
        assert example.negatives
        assert not any(
            example.answers[0] in negative.passage.text for negative in example.negatives
        )
    before, after = (BiEncoder.load(folder) for folder in (world / "encoder", tmp_path / "encoder"))
    texts = [Query(example.question) for example in examples[:8]]
    moved = np.abs(before.encode_queries(texts) - after.encode_queries(texts)).max()
    assert 0 < moved < 0.5  # trained from the index's encoder, two steps


def test_killed_runs_end_in_the_same_questions(world: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    out = tmp_path / "out"
    adapt(world / "index", whole, training=TRAINING)
    killed_at(module, "write_examples", 0, partial(adapt, world / "index", out, training=TRAINING))
    assert not (out / "questions.json").exists()
    adapt(world / "index", out, training=TRAINING)
    for file in ("questions.json", "encoder/model.safetensors"):
        assert (out / file).read_bytes() == (whole / file).read_bytes()
    with refusal(MismatchedArtifactError):
        adapt(world / "index", out, training=TRAINING, seed=14)


def test_what_cannot_work_is_refused(world: Path, tmp_path: Path) -> None:
    with refusal(ConfigError):
        adapt(world / "index", tmp_path / "b", questions=20, training=TRAINING)
    with refusal(ArtifactError):
        adapt(tmp_path / "none", tmp_path / "e", training=TRAINING)
