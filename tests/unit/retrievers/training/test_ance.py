"""`train_ance` learns from what it mines itself, in one process and in two, and says what cannot
work.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexers.index import Index
from indexers.index_writer import write_index
from indexers.passage_writer import writing_passages
from indexers.passages import PassageStore
from indexers.settings import BuildSettings
from rag.core.errors import ConfigError
from rag.core.types import Passage, Query
from rag.data.examples import Example, write_examples
from rag.training.run_log import read_metrics
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.examples.batches import NEGATIVE, Epochs, RetrieverBatches
from retrievers.examples.data import ExampleTable, split_examples
from retrievers.training.ance import mine_negatives, take_up_negatives
from retrievers.training.config import AnceTrainConfig, DprTrainConfig
from tests.support.messages import refusal
from tests.support.training import named, records
from tests.unit.indexers.conftest import WordEncoder
from tests.unit.retrievers.conftest import TINY, cipher_examples, mrr_of

_SMALL: dict[str, Any] = {**TINY, "batch_size": 32, "log_every_steps": 10}
PASSAGES = [Passage(f"p{n}", f"t{n % 7}", f"word{n} word{n + 1} common") for n in range(40)]


def mrr(config: AnceTrainConfig, encoder: str | Path) -> float:
    split = split_examples(config, config.out / "data")
    return mrr_of(Path(encoder), split.held_out, split.training)


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> tuple[Path, Path, Path]:
    """(training file, index, encoder trained a little with in-batch negatives)."""
    place = tmp_path_factory.mktemp("warm")
    examples, settings = cipher_examples(400), BuildSettings(probes=2)
    write_examples(place / "train.json", examples)
    passages = [example.positives[0] for example in examples]
    index = write_index(
        place / "index", passages, encoder=WordEncoder(), settings=settings
    ).directory
    config = DprTrainConfig(
        out=place / "run",
        train_files=(place / "train.json",),
        question_encoder=str(tiny_bert),
        epochs=8,
        hard_negatives=0,
        learning_rate=3e-3,
        pooling="mean",
        normalize=True,
        **_SMALL,
    )
    return place / "train.json", index, config.train_model()


def ance(out: Path, warm: tuple[Path, Path, Path], **settings: Any) -> AnceTrainConfig:
    given = {**_SMALL, "question_encoder": str(warm[2]), "depth": 50, "kept": 10, **settings}
    return AnceTrainConfig(out=out, train_files=(warm[0],), index=warm[1], **given)


def test_mined_negatives_make_retrieval_rise(tmp_path: Path, warm: tuple[Path, Path, Path]) -> None:
    settings = {"loss": "in_batch", "hard_negatives": 2, "learning_rate": 2e-3, "epochs": 10}
    config = ance(tmp_path / "run", warm, refresh_every_steps=30, **settings)
    finished = config.train_model()
    assert mrr(config, finished) > mrr(config, warm[2]) + 5
    told = records(config.out)
    ages = [(record["step"], record["index_age_steps"]) for record in told]
    assert ages[:4] == [(10, 10), (20, 20), (30, 30), (40, 10)]
    named(finished, "ance")


def test_validation_measures_the_loss_that_is_trained(
    tmp_path: Path, warm: tuple[Path, Path, Path]
) -> None:
    """Two-way softmax of each held-out question's positive and its hardest mined passage."""
    one_each = {"kept": 1, "hard_negatives": 1, "max_steps": 1, "learning_rate": 1e-9}
    config = ance(tmp_path / "run", warm, batch_size=100, **one_each)
    encoder = BiEncoder.load(config.train_model(), precision="fp32")
    split = split_examples(config, config.out / "data")
    mined = np.load(next(config.out.glob("refresh/*/result/negatives.npy")))
    mined = mined[len(split.training) :, 0]
    assert len(mined) == len(split.held_out) <= 100
    with Index.open(config.index) as index:
        negatives = index.passages.get_many(mined)
    positives = [example.positives[0] for example in split.held_out]
    questions = encoder.encode_questions([example.question for example in split.held_out])
    right, wrong = (
        (questions * encoder.encode_passages([p.title for p in side], [p.text for p in side])).sum(
            1
        )
        for side in (positives, negatives)
    )
    expected = np.logaddexp(0, (wrong - right) / 0.05).mean()
    measured = read_metrics(config.out / "metrics.jsonl")[-1]["eval/nll"]
    assert measured == pytest.approx(expected, abs=1e-4)


def test_no_negatives_at_all_is_said(
    tmp_path: Path, warm: tuple[Path, Path, Path], cipher_file: Callable[..., Path]
) -> None:
    bare = cipher_file(60, negatives=0)
    config = ance(tmp_path / "run", warm, refresh_every_steps=0).replaced(train_files=(bare,))
    with refusal(ConfigError):
        config.train_model()


def of_words(numbers: Sequence[int]) -> list[Example]:
    return [
        Example.labelled(f"q{n}", f"word{n} word{n + 1}", (f"word{n}",), (PASSAGES[n],))
        for n in numbers
    ]


def build(place: Path, corpus: PassageStore, examples: Sequence[Example]) -> Path:
    """What is mined."""
    result = place / "result"
    result.mkdir()
    given = {
        "out": place / "run",
        "train_files": ("t.json",),
        "index": "index",
        "depth": 20,
        "kept": 5,
    }
    config = AnceTrainConfig(**given)
    mine_negatives(config, corpus, examples, WordEncoder(), result)
    assert not (result / "embeddings").exists()
    return result


def test_negatives_are_the_best_passages_that_are_not_right(tmp_path: Path) -> None:
    with writing_passages(tmp_path / "passages") as writer:
        writer.add_many(PASSAGES)
    corpus = PassageStore(tmp_path / "passages")
    result = build(tmp_path, corpus, of_words(range(20)))
    batches = RetrieverBatches(
        ExampleTable.of(of_words(range(20))), Epochs(20, 20), hard_negatives=9
    )
    figures = take_up_negatives([batches], corpus, result)
    batch = batches[0]
    mined = {
        int(number): sorted(batch.passages[p].id for p in np.flatnonzero(row == NEGATIVE))
        for number, row in zip(batches.epochs[0], batch.labels.numpy(), strict=True)
    }
    encoder = WordEncoder()
    titles = [passage.title for passage in PASSAGES]
    vectors = encoder.encode_passages(titles, [p.text for p in PASSAGES]).astype(np.float16)
    for example in range(20):
        query = encoder.encode_queries([Query(f"word{example} word{example + 1}")])[0]
        order = np.argsort(-(vectors.astype(np.float32) @ query), kind="stable")[:20]
        expected = [row for row in order if f"word{example} " not in PASSAGES[row].text + " "][:5]
        assert mined[example] == sorted(PASSAGES[row].id for row in expected)
    assert figures["mined/negatives_per_question"] == 5


def test_positives_of_another_example_of_the_question_are_not_mined(tmp_path: Path) -> None:
    with writing_passages(tmp_path / "passages") as writer:
        writer.add_many(PASSAGES)
    corpus = PassageStore(tmp_path / "passages")
    asked = [Example.labelled(str(n), "word3 word4 word5", (), (PASSAGES[n],)) for n in (3, 4)]
    mined = np.load(build(tmp_path, corpus, asked) / "negatives.npy")
    assert not {3, 4} & set(mined.ravel().tolist())
    assert (mined[0] == mined[1]).all()
