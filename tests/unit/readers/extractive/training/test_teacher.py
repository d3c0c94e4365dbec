"""A teacher's distributions: the loss by hand, other ids and special tokens, and a student without
labels.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from rag.core.types import Passage
from rag.training.run_log import read_metrics
from readers.extractive.files import load_span_model, start_model
from readers.extractive.layout import pair_template, row_tensors
from readers.extractive.model import SpanModel
from readers.extractive.reader import ExtractiveReader
from readers.extractive.settings import ReaderSettings
from readers.extractive.training.batches import ReaderBatches
from readers.extractive.training.config import ReaderTrainConfig, TrainingSet
from readers.extractive.training.data import load_examples, read_set
from readers.extractive.training.finish import export_int8, gold_scores
from readers.extractive.training.losses import teacher_loss
from readers.extractive.training.recipe import reader_loss
from readers.extractive.training.teacher import Teacher
from tests.tiny_reader import (
    PIECES,
    TINY_TRAINING,
    random_roberta,
    tiny_encoder,
    tiny_squad,
    tiny_tokenizer,
    word_pieces,
)

STAGE = {
    "epochs": 16,
    "negatives": 1,
    "max_tokens": 128,
    "full_tokens": 128,
    "tokens_per_batch": 2048,
}


def test_the_loss_equals_its_equation() -> None:
    draw = np.random.default_rng(0)
    student, taught = draw.normal(size=(2, 3, 5))
    allowed = draw.random((3, 5)) < 0.7
    allowed[:, 0] = True
    expected = 0.0
    for row, own, places in zip(taught, student, allowed, strict=True):
        p, q = (log_softmax(logits[places] / 3) for logits in (row, own))
        expected += 9 * float(np.exp(p) @ (p - q)) / 3
    logits, places = torch.tensor(student, requires_grad=True), torch.from_numpy(allowed)
    loss = teacher_loss(logits, torch.tensor(taught), places, 3.0)
    assert float(loss.detach()) == pytest.approx(expected)
    assert torch.autograd.gradcheck(
        lambda x: teacher_loss(x, torch.tensor(taught), places, 3.0), logits
    )


def mpnet_like(folder: Path) -> Path:
    """A reader with the tiny tokenizer's word pieces, under other ids, two separators between, as
    MPNet.
    """
    special = [f"<{name}>" for name in ("s", "pad", "/s", "unk", "mask")]
    tokenizer = word_pieces([*special, *reversed(PIECES)], "<unk>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    names = {f"{kind}_token": f"<{kind}>" for kind in ("pad", "unk", "mask")}
    whole = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, cls_token="<s>", sep_token="</s>", **names
    )
    encoder = random_roberta(len(whole), 0.3, seed=3).eval()
    model = SpanModel(encoder, torch.nn.Linear(32, 2), passage_head=torch.nn.Linear(32, 3))
    export_int8(folder, model, model.state_dict(), whole, name="teacher", settings=ReaderSettings())
    return folder


def test_a_teacher_with_other_ids_and_special_tokens_reads_the_same_words(tmp_path: Path) -> None:
    own = tiny_tokenizer()
    folder = mpnet_like(tmp_path / "teacher")
    questions, texts = (
        ["how many meters?", "is the tower in the city?"],
        ["built in 1887.", "the river is near"],
    )
    rows = {}
    loaded = load_span_model(str(folder))
    assert loaded is not None
    model, other = loaded
    for name, tokenizer in (("own", own), ("other", other)):
        reader = ExtractiveReader(model, tokenizer, ReaderSettings(max_tokens=96))
        passages = [[Passage(title, title, text)] for title, text in zip("ab", texts, strict=True)]
        rows[name] = reader.rows(questions, passages).rows
    ids, mask, _, inside = row_tensors(pair_template(own), rows["own"])
    teacher = Teacher.load(str(folder), own, precision="fp32", device="cpu")
    read = teacher.logits(ids, mask)
    ids, mask, types, places = row_tensors(pair_template(other), rows["other"])
    with torch.no_grad():
        expected = model(ids, mask, types)
    for side, reference in ((read.start, expected.start), (read.end, expected.end)):
        torch.testing.assert_close(side[inside], reference[places])
        torch.testing.assert_close(side[:, 0], reference[:, 0])
    torch.testing.assert_close(read.relevance, expected.relevance)


def test_a_student_learns_from_questions_without_labels_what_its_teacher_says(
    tmp_path: Path,
) -> None:
    results = tmp_path / "results.json"
    questions = tiny_squad(tmp_path / "train.json", 24, 0, results)
    values: dict[str, Any] = {
        **TINY_TRAINING,
        "train": [{"questions": questions, "retrieved": results, "held_out": 0}],
        "out": tmp_path / "teacher",
        "stages": [STAGE],
        "encoder": str(tiny_encoder(tmp_path / "encoder")),
        "selection_weight": 0.1,
    }
    values["teacher"] = str(ReaderTrainConfig(**values).train_model())
    values |= {"train": [{"questions": results, "labelled": False}], "teacher_weight": 1.0}
    values |= {"encoder": str(tiny_encoder(tmp_path / "other", seed=5)), "out": tmp_path / "out"}
    config = ReaderTrainConfig(**values)
    student = ExtractiveReader.load(config.train_model())
    examples = read_set(TrainingSet(questions=tiny_squad(tmp_path / "unseen.json", 12, 1)))
    assert gold_scores(student, examples)["em"] >= 80.0
    losses = read_metrics(tmp_path / "out" / "metrics.jsonl")
    assert losses[-1]["teacher_loss"] < losses[0]["teacher_loss"] / 2
    assert losses[0]["answer_loss"] == 0.0

    # the teacher itself has nothing to learn
    model, tokenizer = start_model(values["teacher"], longest=128, seed=1, passage_head=True)
    teacher = Teacher.load(values["teacher"], tokenizer, precision="fp32", device="cpu")
    rows = load_examples([(item, read_set(item)) for item in config.train], tokenizer)
    loss = reader_loss(model, ReaderBatches(rows, config)[0], config, "cpu", teacher)
    assert float(loss.value.detach()) == pytest.approx(0.0, abs=1e-5)
