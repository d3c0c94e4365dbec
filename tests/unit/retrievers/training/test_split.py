"""Which examples are trained on and which are held out: disjoint, repeatable, of the wanted
size.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rag.core.errors import DataError
from rag.core.types import Passage
from rag.data.examples import Example, write_examples
from retrievers.examples.data import split_examples
from retrievers.training.config import DprTrainConfig
from tests.support.messages import refusal


def _file(path: Path, count: int, start: int = 0) -> Path:
    passages = [Passage(str(n), "", f"text {n}") for n in range(start, start + count)]
    write_examples(path, (Example.labelled(p.id, f"question {p.id}", (), (p,)) for p in passages))
    return path


def _config(tmp_path: Path, *files: Path, **changes: Any) -> DprTrainConfig:
    return DprTrainConfig(out=tmp_path / "run", train_files=files, **changes)


def test_held_out_questions_are_never_trained_on(tmp_path: Path) -> None:
    files = [
        _file(tmp_path / "a.json", 200),
        _file(tmp_path / "b.json", 200, start=150),
    ]  # 50 in both
    config = _config(tmp_path, *files, validation_fraction=0.2, validation_questions=30)
    split = split_examples(config, tmp_path / "data")
    trained = [example.question for example in split.training]
    held_out = {example.question for example in split.held_out}
    assert len(held_out) == 30
    assert not held_out & set(trained)
    assert 0.7 * 400 < len(trained) < 0.9 * 400

    again = split_examples(config, tmp_path / "data")
    other = split_examples(config, tmp_path / "other")
    assert split.held_out == again.held_out == other.held_out
    assert trained == [e.question for e in again.training] == [e.question for e in other.training]
    changed = split_examples(config.replaced(seed=1), tmp_path / "changed")
    assert {e.question for e in changed.held_out} != held_out


def test_a_sample_has_exactly_the_wanted_size_and_is_random(tmp_path: Path) -> None:
    path = _file(tmp_path / "a.json", 300)
    split = split_examples(_config(tmp_path, path, train_questions=40), tmp_path / "data")
    numbers = [int(example.id) for example in split.training]
    assert len(numbers) == 40
    assert numbers == sorted(numbers)
    assert numbers[-1] > 200


def test_what_the_validation_file_holds_is_not_trained_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train, other = _file(tmp_path / "a.json", 50), _file(tmp_path / "v.json", 20, start=40)
    config = _config(
        tmp_path, train, validation_file=other, validation_questions=5, train_questions=30
    )
    trained = [int(example.id) for example in split_examples(config, tmp_path / "data").training]
    assert len(trained) == 30
    assert max(trained) < 40  # also of those that are not among the five measured
    assert "10 training questions are in" in caplog.text
    with refusal(DataError):
        split_examples(config.replaced(train_files=(other,)), tmp_path / "changed")


def test_numbers_are_those_of_questions_whose_examples_stay_together(tmp_path: Path) -> None:
    path = tmp_path / "hops.json"
    texts = [f"question {n}" for n in range(40)]
    passage = Passage("p", "", "text")
    write_examples(
        path,
        [Example.labelled(f"{text}#{h}", text, (), [passage]) for text in texts for h in range(3)],
    )
    config = _config(
        tmp_path, path, validation_fraction=0.25, validation_questions=6, train_questions=9
    )
    split = split_examples(config, tmp_path / "data")
    for examples, count in ((split.held_out, 6), (split.training, 9)):
        asked = Counter(example.question for example in examples)
        assert list(asked.values()) == [3] * count


def test_nothing_left(tmp_path: Path) -> None:
    config = _config(tmp_path, _file(tmp_path / "a.json", 10), validation_fraction=0.999999)
    with refusal(DataError):
        split_examples(config, tmp_path / "data")
    nothing = _config(tmp_path, _file(tmp_path / "a.json", 10), validation_fraction=0.0)
    assert split_examples(nothing, tmp_path / "nothing").held_out == ()
