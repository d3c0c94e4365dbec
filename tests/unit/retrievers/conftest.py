"""A synthetic task that only a trained retriever solves."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rag.core.types import Passage
from rag.data.examples import Example, write_examples
from retrievers.encoders.bi_encoder import BiEncoder
from retrievers.encoders.vectors import max_sim

_LETTERS = "abcdefghijklmnop"
TINY: dict[str, Any] = {
    "precision": "fp32",
    "question_tokens": 16,
    "passage_tokens": 16,
    "dropout": 0.0,
    "threads": 1,
    "log_every_steps": 1,
    "validation_fraction": 0.2,
}


class Flat:
    """A vector index that compares all."""

    def __init__(self, vectors: Any) -> None:
        self.vectors, self.dim = vectors, vectors.shape[1]

    def __len__(self) -> int:
        return len(self.vectors)

    def search(self, queries: Any, top_k: int, selected: Any = None) -> Any:
        scores = queries @ self.vectors.T
        order = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
        gap = ((0, 0), (0, max(0, top_k - order.shape[1])))
        result = np.pad(np.take_along_axis(scores, order, axis=1), gap, constant_values=-np.inf)
        return result, np.pad(order, gap, constant_values=-1)


@pytest.fixture(scope="module")
def encoder(tiny_bert: Path) -> BiEncoder:
    return BiEncoder.load(tiny_bert, precision="fp32")


def _code(draw: np.random.Generator) -> str:
    return "".join(draw.choice(list(_LETTERS), size=4, replace=False))


def _shifted(code: str) -> str:
    return "".join(_LETTERS[(_LETTERS.index(letter) + 1) % len(_LETTERS)] for letter in code)


def cipher_examples(count: int, *, negatives: int = 1, seed: int = 3) -> list[Example]:
    """Questions name the letters that stand one place before those of their passage."""
    draw = np.random.default_rng(seed)
    codes = list(dict.fromkeys(_code(draw) for _ in range(2 * count)))[:count]
    passages = [
        Passage(f"p{n}", "title", f"the river {' '.join(_shifted(code))} text")
        for n, code in enumerate(codes)
    ]
    return [
        Example.labelled(
            f"q{n}",
            f"who wrote {' '.join(code)}",
            (),
            (passages[n],),
            [passages[int(i)] for i in draw.choice(count, negatives) if i != n],
        )
        for n, code in enumerate(codes)
    ]


def mrr_of(
    folder: Path, examples: Sequence[Example], among: Iterable[Example] = (), **how: Any
) -> float:
    """MRR in percent of the examples' positives among theirs and others, by the encoder in a
    folder.
    """
    encoder = BiEncoder.load(folder, precision="fp32", **how)
    passages, questions = [e.positives[0] for e in examples], [e.question for e in examples]
    passages += [e.positives[0] for e in among]
    titles, texts = [p.title for p in passages], [p.text for p in passages]
    if encoder.identity.pooling == "tokens":
        scores = max_sim(
            encoder.question_tokens(questions), encoder.passage_tokens(titles, texts)
        ).numpy()
    else:
        scores = encoder.encode_questions(questions) @ encoder.encode_passages(titles, texts).T
    ranks = (scores >= scores.diagonal()[:, None]).sum(1)
    return float(100 * np.mean(1 / ranks))


@pytest.fixture
def cipher_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes the examples of the task to a file."""

    def write(count: int, **settings: int) -> Path:
        path = tmp_path / "train.json"
        write_examples(path, cipher_examples(count, **settings))
        return path

    return write
