"""A teacher's distributions: the loss by hand, tokens of another tokenizer, and a student without labels."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, logsumexp

from rag.core.errors import MismatchedArtifactError
from readers.extractive.layout import Row
from readers.extractive.reader import ExtractiveReader
from readers.extractive.training import teacher
from readers.extractive.training.batches import ReaderBatches
from readers.extractive.training.config import ReaderTrainConfig, TrainingSet
from readers.extractive.training.data import load_examples, read_set
from readers.extractive.training.finish import reading_scores
from readers.extractive.training.losses import teacher_loss
from readers.extractive.training.recipe import reader_loss, train_reader
from readers.extractive.training.start import start_model
from readers.extractive.training.teacher import PairTarget, ask_teacher
from tests.tiny_reader import tiny_encoder, tiny_squad

STAGE = {"epochs": 16, "negatives": 1, "max_tokens": 128, "full_tokens": 128, "tokens_per_batch": 2048}


def test_the_loss_equals_its_equation() -> None:
    draw = np.random.default_rng(0)
    student, taught = draw.normal(size=(2, 3, 5))
    taught[0, 1], taught[0, 2], taught[2] = -np.inf, np.nan, np.nan
    expected = 0.0
    for row, own in zip(taught[:2], student[:2], strict=True):
        places = ~np.isnan(row)
        p, q = (log_softmax(logits[places] / 3) for logits in (row, own))
        expected += 9 * sum(np.exp(a) * (a - b) for a, b in zip(p, q, strict=True) if a > -np.inf) / 2
    logits = torch.tensor(student, requires_grad=True)
    found = teacher_loss(logits, torch.tensor(taught), 3.0)
    assert float(found.detach()) == pytest.approx(expected)
    assert torch.autograd.gradcheck(lambda x: teacher_loss(x, torch.tensor(taught), 3.0), logits)


def test_mass_moves_to_the_tokens_that_hold_the_characters_and_none_is_lost() -> None:
    #        playing | fair: the teacher reads play ##ing fa ##ir, the student playing f ##air
    theirs, own = [(0, 4), (4, 7), (8, 10), (10, 12)], np.array([(0, 7), (8, 9), (9, 12)])
    start, end = [9.0, 0.0, 1.0, 2.0, 3.0], [8.0, 4.0, 5.0, 6.0, 7.0]  # the first is [CLS]
    record = {"offsets": np.array(theirs).ravel(), "start": start, "end": end, "heads": [0.5, 1.0, 2.0]}
    target = teacher._on_tokens(record, own)
    assert target.logits[0] == pytest.approx([9, np.logaddexp(0, 1), 2, 3])
    assert target.logits[1] == pytest.approx([8, np.logaddexp(4, 5), -np.inf, np.logaddexp(6, 7)])
    out = np.zeros((2, 8), np.float32)
    target.fill(Row(0, np.zeros(6, np.int64), 3, 3, 5, 1), 6, out)  # a window of the last two tokens
    assert out[0] == pytest.approx(
        [np.logaddexp(9, target.logits[0, 1]), *[-np.inf] * 2, 2, 3, -np.inf, 1, 2]
    )
    assert logsumexp(out[:, :6], 1) == pytest.approx(logsumexp(target.logits, 1))


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with a trained teacher, and the settings of students without labels."""
    folder = tmp_path_factory.mktemp("taught")
    results = folder / "results.json"
    questions = tiny_squad(folder / "train.json", 24, 0, results)
    values: dict[str, Any] = {
        "train": [{"questions": questions, "retrieved": results, "held_out": 0}], "out": folder / "teacher",
        "stages": [STAGE], "encoder": str(tiny_encoder(folder / "encoder")), "question_tokens": 64,
        "title_tokens": 8, "learning_rate": 5e-3, "precision": "fp32", "freeze_word_embeddings": False,
        "threads": 1, "validation_questions": 24, "selection_weight": 0.1,
    }  # fmt: skip
    trained = train_reader(ReaderTrainConfig(**values))
    unlabelled = [{"questions": results, "labelled": False, "name": "without answers"}]
    return folder, {**values, "train": unlabelled, "teacher": str(trained), "teacher_weight": 1.0}


def test_a_student_learns_from_questions_without_labels(
    taught: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    values = {
        **taught[1],
        "out": tmp_path / "out",
        "encoder": str(tiny_encoder(tmp_path / "encoder", seed=5)),
    }
    student = ExtractiveReader.load(train_reader(ReaderTrainConfig(**values)))
    examples = read_set(TrainingSet(questions=tiny_squad(tmp_path / "unseen.json", 12, 1)))
    assert reading_scores(student, examples)["em"] >= 80.0
    losses = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert losses[-1]["teacher_loss"] < losses[0]["teacher_loss"] / 2
    assert losses[0]["answer_loss"] == 0.0


def test_the_teacher_itself_has_nothing_to_learn_and_a_killed_run_goes_on(
    taught: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, values = taught
    monkeypatch.setattr(teacher, "_SHARD", 16)
    config = ReaderTrainConfig(**{**values, "out": tmp_path / "whole", "encoder": values["teacher"]})
    model, tokenizer = start_model(config.encoder, longest=128, seed=1, passage_head=True)
    examples = load_examples([(one, read_set(one)) for one in config.train], tokenizer)
    targets = ask_teacher(config, examples, "cpu")
    assert targets is not None
    assert len(targets.pairs) == 2 * len(examples) == 192  # without labels no passage is positive
    batches = ReaderBatches(examples, config, targets)
    assert len(set(np.concatenate([plan.questions for plan in batches._plans]))) == len(examples)
    loss = reader_loss(model, batches[0], config, "cpu")
    assert float(loss.value.detach()) == pytest.approx(0.0, abs=1e-5)
    assert isinstance(targets.pairs[0, 0], PairTarget)

    compute, calls = teacher._compute, []

    def killed(*args: Any) -> list[dict[str, Any]]:
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return compute(*args)

    monkeypatch.setattr(teacher, "_compute", killed)
    again = config.model_copy(update={"out": tmp_path / "again"})
    with pytest.raises(KeyboardInterrupt):
        ask_teacher(again, examples, "cpu")
    ask_teacher(again, examples, "cpu")
    assert len(calls) == 1 + 192 // 16
    for file in sorted((tmp_path / "whole" / "teacher").iterdir()):
        assert (tmp_path / "again" / "teacher" / file.name).read_bytes() == file.read_bytes()
    ask_teacher(again, examples, "cpu")
    assert len(calls) == 1 + 192 // 16
    other = again.replaced(teacher=str(folder / "teacher" / "trained"))
    with pytest.raises(MismatchedArtifactError, match="teacher whose checksums differ"):
        ask_teacher(other, examples, "cpu")
