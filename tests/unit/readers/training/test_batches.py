"""Batches: crops keep the answer, "no answer" is where it should be, any step can be redone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rag.core.errors import DataError
from readers.training.batches import ReaderBatches
from readers.training.config import ReaderStage, ReaderTrainConfig
from readers.training.data import SquadQuestion, load_examples, read_squad, split_by_article
from tests.tiny_reader import tiny_squad, tiny_tokenizer


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> ReaderBatches:
    folder = tmp_path_factory.mktemp("squad")
    results = folder / "results.json"
    train = read_squad(tiny_squad(folder / "train.json", 12, 0, results))
    stages = (
        ReaderStage(epochs=1.5, max_tokens=42, full_tokens=64, full_fraction=0.3, tokens_per_batch=512),
        ReaderStage(
            epochs=1, negatives=2, no_answer_fraction=0.4, max_tokens=42, full_tokens=64, tokens_per_batch=512
        ),
    )
    config = ReaderTrainConfig(
        train_file=folder,
        out=folder,
        negatives_file=results,
        stages=stages,
        question_tokens=24,
        title_tokens=6,
    )
    return ReaderBatches(load_examples(train, tiny_tokenizer(), negatives_file=results), config)


def test_every_answer_is_inside_its_window(batches: ReaderBatches) -> None:
    tokenizer = tiny_tokenizer()
    seen = 0
    for step in range(len(batches)):
        batch = batches[step]
        rows, length = batch.input_ids.shape
        groups = len(batch.has_answer)
        per_group = rows // groups
        flat = batch.input_ids.reshape(groups, per_group * length)
        assert rows * length <= 512
        for index in range(groups):
            start, end = int(batch.starts[index, 0]), int(batch.ends[index, 0])
            assert batch.allowed[index, start]
            if batch.has_answer[index]:
                assert tokenizer.decode(flat[index, start : end + 1]).translate({32: "", 35: ""}).isdigit()
                seen += 1
            else:
                assert batch.starts[index].tolist() == [p * length for p in range(per_group)]
                assert batch.acceptable[index].all()
    assert seen > 50


def test_a_step_is_the_same_whenever_it_is_asked_for(batches: ReaderBatches) -> None:
    last = len(batches) - 1
    first, again = batches[last], batches[last]
    assert torch.equal(first.input_ids, again.input_ids)
    assert torch.equal(first.starts, again.starts)


def test_stages_hold_as_many_questions_as_they_say(batches: ReaderBatches) -> None:
    counts = [len(batches[step].has_answer) for step in range(len(batches))]
    assert sum(counts) == round(1.5 * 48) + 48


def test_segments_and_text_do_not_overlap_the_question(batches: ReaderBatches) -> None:
    batch = batches[0]
    length = batch.input_ids.shape[1]
    allowed = batch.allowed.reshape(-1, length)
    assert allowed[:, 0].all()
    assert not (allowed[:, 1:] & (batch.token_type_ids[:, 1:] == 0)).any()
    assert not (allowed & (batch.attention_mask == 0)).any()
    assert int(batch.attention_mask.sum()) == batch.tokens


def test_article_split_is_disjoint_and_seeded(tmp_path: Path) -> None:
    questions = read_squad(tiny_squad(tmp_path / "s.json", 10, 1))
    train, held_out = split_by_article(questions, 3, seed=4)
    assert {q.title for q in train}.isdisjoint({q.title for q in held_out})
    assert len({q.title for q in held_out}) == 3
    assert split_by_article(questions, 3, seed=4)[1] == held_out
    with pytest.raises(DataError, match="only 10 articles"):
        split_by_article(questions, 10, seed=4)


def test_answers_that_are_not_at_their_offset_are_dropped_or_refused() -> None:
    good = [SquadQuestion(str(n), "how many?", "t", "the tower is 57 high", ("57",), 13) for n in range(19)]
    bad = SquadQuestion("x", "how many?", "t", "the tower is 57 high", ("58",), 13)
    examples = load_examples([*good, bad], tiny_tokenizer())
    assert len(examples) == 19
    assert np.array_equal(examples.spans[0], examples.spans[1])
    with pytest.raises(DataError, match="only 19 of 39"):
        load_examples([*good, *[bad] * 20], tiny_tokenizer())
