"""A static encoder: the fit against a solver, what training teaches, resuming, and what is
refused.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from indexers.index_writer import write_index
from indexers.settings import BuildSettings
from rag.core.errors import ConfigError
from rag.core.types import Passage
from rag.data.examples import Example, write_examples
from retrievers.encoders.open import load_encoder
from retrievers.encoders.static import StaticEncoder
from retrievers.training.config import StaticTrainConfig
from retrievers.training.static import fit_tokens
from tests.support.messages import refusal
from tests.support.training import figures_of, named


def examples(count: int, seed: int = 2) -> list[Example]:
    """A question names letters; its passage holds the digit of each: no word is shared."""
    draw = np.random.default_rng(seed)
    codes = sorted(
        {"".join(sorted(draw.choice(list("abcdefghij"), 3, replace=False))) for _ in range(count)}
    )
    made = []
    for code in codes:
        digits = " ".join(str("abcdefghij".index(letter)) for letter in code)
        passage = Passage(
            f"p{code}", "title", f"The river {digits} text. It rises in the black forest."
        )
        made.append(Example.labelled(f"q{code}", f"who wrote {' '.join(code)}", (), [passage]))
    return made


@pytest.fixture(scope="module")
def taught(
    tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path
) -> tuple[Path, Path, list[Example]]:
    """An index by the teacher, a file of training examples, and the examples."""
    folder, made = tmp_path_factory.mktemp("taught"), examples(140)
    passages = [example.positives[0] for example in made]
    teacher = load_encoder(tiny_bert, pooling="mean", normalize=True)
    write_index(folder / "index", passages, encoder=teacher, settings=BuildSettings(probes=2))
    write_examples(folder / "train.json", made)
    return folder / "index", folder / "train.json", made


def config(out: Path, index: Path, train: Path, **settings: Any) -> StaticTrainConfig:
    usual: dict[str, Any] = {"dim": 16, "batch_size": 16, "threads": 1, "validation_fraction": 0.2}
    given = {**usual, "select_by": "last", "log_every_steps": 1, **settings}
    return StaticTrainConfig(out=out, index=index, train_files=(train,), **given)


def test_the_fit_is_the_solution_of_the_normal_equations() -> None:
    draw = np.random.default_rng(5)
    dense = draw.random((30, 8)).astype(np.float32) * (draw.random((30, 8)) < 0.4)
    dense[:, 7] = 0  # a token that no passage holds
    targets, start = (draw.normal(size=(n, 3)).astype(np.float32) for n in (30, 8))
    actual = fit_tokens(csr_matrix(dense), targets, start, 0.1, steps=12)
    expected = np.linalg.solve(dense.T @ dense + 0.1 * np.eye(8), dense.T @ targets + 0.1 * start)
    np.testing.assert_allclose(actual, expected, atol=1e-4)
    np.testing.assert_allclose(actual[7], start[7], atol=1e-6)


def test_it_learns_to_find_passages_of_questions_it_never_saw(
    tmp_path: Path, taught: tuple[Path, Path, list[Example]]
) -> None:
    index, train, _ = taught
    untrained = config(
        tmp_path / "before", index, train, learning_rate=1e-9, max_steps=1
    ).train_model()
    corpus = tmp_path / "more.jsonl"
    texts = (f"The river {n} rises here. In the forest {n} it ends." for n in range(40))
    corpus.write_text("".join(json.dumps({"id": text, "text": text}) + "\n" for text in texts))
    chosen = config(tmp_path / "run", index, train, corpus=(corpus,), learning_rate=0.02, epochs=20)
    finished = chosen.train_model()
    ranks = [figures_of(tmp_path / name)["average_rank"] for name in ("before", "run")]
    assert ranks[1] < 0.3 * ranks[0], ranks
    assert isinstance(load_encoder(finished), StaticEncoder)
    assert isinstance(load_encoder(untrained), StaticEncoder)
    card = named(finished, "static")
    assert "static encoder" in card
    assert "--encoder FOLDER " in card  # and not the name of a preset


def test_what_cannot_work_is_refused(
    tmp_path: Path, taught: tuple[Path, Path, list[Example]]
) -> None:
    index, train, made = taught
    with refusal(ConfigError):
        config(tmp_path / "a", index, train, dim=64).train_model()
    words = BuildSettings(retriever="bm25")
    write_index(tmp_path / "bm25", [made[0].positives[0]], settings=words)
    with refusal(ConfigError):
        config(tmp_path / "a", tmp_path / "bm25", train).train_model()
