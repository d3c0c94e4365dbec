"""A synthetic task that only a trained retriever solves."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rag.core.types import Passage
from rag.data.examples import Example, write_examples

_LETTERS = "abcdefghijklmnop"


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
            f"q{n}", f"who wrote {' '.join(code)}", (), (passages[n],),
            [passages[int(i)] for i in draw.choice(count, negatives) if i != n],
        )
        for n, code in enumerate(codes)
    ]  # fmt: skip


@pytest.fixture
def cipher_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes the examples of the task to a file."""

    def write(count: int, **settings: int) -> Path:
        path = tmp_path / "train.json"
        write_examples(path, cipher_examples(count, **settings))
        return path

    return write
