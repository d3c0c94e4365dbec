"""Sets whose questions come with a long document, or without an answer in it."""

import json
from pathlib import Path
from typing import Any

import pytest

from rag.core.errors import DataError
from readers.extractive.training.batches import ReaderBatches
from readers.extractive.training.config import ReaderStage, ReaderTrainConfig, TrainingSet
from readers.extractive.training.data import load_examples, read_set
from tests.tiny_reader import tiny_tokenizer

TEXT = "the tower in the city has 5 meters . the river near the castle has 5 meters . the bridge is old ."
FIRST, SECOND = TEXT.index("5"), TEXT.rindex("5")


def write(folder: Path, *records: dict[str, Any]) -> Path:
    path = folder / "set.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def asked(start: int | None = SECOND, **more: Any) -> dict[str, Any]:
    answers = [] if start is None else [{"text": "5 meters", "start": start}]
    return {"question": "how many meters has the river", "context": TEXT, "answers": answers, **more}


def test_the_annotated_place_decides_which_window_is_right(tmp_path: Path) -> None:
    one = TrainingSet(questions=write(tmp_path, asked()), window_words=8, held_out=0)
    [example] = read_set(one)
    # the first window has the same words in another place, and is left out; the second is longer, not cut
    assert [(candidate.passage.text, candidate.role) for candidate in example.candidates] == [
        (". the river near the castle has 5 meters", "positive"),  # has most of the question's words
        (". the bridge is old .", "hard_negative"),
    ]
    longer = TrainingSet(questions=write(tmp_path, asked(FIRST)), window_words=7, held_out=0)
    [right] = read_set(longer)[0].of_role("positive")
    assert right.passage.text == "the tower in the city has 5 meters"  # a window does not cut the answer


def test_questions_without_answers_teach_that_nothing_is_there(tmp_path: Path) -> None:
    path = write(tmp_path, *(asked(None, id=str(n)) for n in range(4)))
    with pytest.raises(DataError, match="no question with answers"):
        read_set(TrainingSet(questions=path))
    one = TrainingSet(questions=path, unanswerable=True, window_words=7, held_out=0)
    examples = read_set(one)
    tokenizer = tiny_tokenizer()
    stage = ReaderStage(
        epochs=1, negatives=1, max_tokens=48, full_tokens=48, full_fraction=0, tokens_per_batch=512
    )
    config = ReaderTrainConfig(
        out=tmp_path / "out", train=[one], stages=(stage,), question_tokens=12, title_tokens=4
    )
    batch = ReaderBatches(load_examples([(one, examples)], tokenizer), config)[0]
    assert batch.has_answer.tolist() == [False] * 4
    assert not batch.positive.any()
    size = batch.allowed.shape[-1]
    assert batch.starts[batch.acceptable].reshape(4, 2).tolist() == [[0, size]] * 4  # [CLS] of both rows
