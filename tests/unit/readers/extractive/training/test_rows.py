"""What is learnt from is what will be read: one frame around questions and texts, whatever the tokenizer."""

import json
from pathlib import Path
from typing import Any

import pytest

from rag.core.types import Passage
from rag.data.examples import Example
from readers.extractive.inference import row_tensors
from readers.extractive.model import SpanModel
from readers.extractive.reader import ExtractiveReader
from readers.extractive.settings import ReaderSettings
from readers.extractive.training.batches import ReaderBatch, ReaderBatches
from readers.extractive.training.config import ReaderStage, ReaderTrainConfig, TrainingSet
from readers.extractive.training.data import load_examples, read_set
from readers.extractive.training.recipe import train_reader
from tests.tiny_reader import tiny_encoder, tiny_roberta, tiny_roberta_tokenizer, tiny_squad, tiny_tokenizer

FAMILIES = {"bert": (tiny_encoder, tiny_tokenizer), "roberta": (tiny_roberta, tiny_roberta_tokenizer)}


def batches_of(folder: Path, tokenizer: Any, max_tokens: int) -> tuple[ReaderBatches, list[Example]]:
    one = TrainingSet(questions=tiny_squad(folder / "train.json", 8, 0), held_out=0)
    stage = ReaderStage(
        epochs=1, max_tokens=max_tokens, full_tokens=max_tokens, full_fraction=0, tokens_per_batch=512
    )
    config = ReaderTrainConfig(
        out=folder / "out", train=[one], stages=(stage,), question_tokens=40, title_tokens=6
    )
    examples = read_set(one)
    return ReaderBatches(load_examples([(one, examples)], tokenizer), config), examples


def rows_of(batch: ReaderBatch) -> dict[tuple[int, ...], tuple[list[int], list[bool]]]:
    """Segments, and where the text is, by the token ids of a row, without padding."""
    found = {}
    for ids, mask, types, allowed in zip(
        batch.input_ids, batch.attention_mask.bool(), batch.token_type_ids, batch.allowed[:, 0], strict=True
    ):
        inside = allowed.clone()
        inside[0] = False  # "no answer here"
        found[tuple(ids[mask].tolist())] = types[mask].tolist(), inside[mask].tolist()
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_are_learnt_from_as_they_are_read(tmp_path: Path, family: str) -> None:
    encoder, make_tokenizer = FAMILIES[family]
    tokenizer = make_tokenizer()
    batches, examples = batches_of(tmp_path, tokenizer, 128)
    learnt: dict[tuple[int, ...], Any] = {}
    for step in range(len(batches)):
        learnt |= rows_of(batches[step])

    settings = ReaderSettings(max_tokens=128, question_tokens=40, title_tokens=6)
    model = SpanModel.from_encoder(encoder(tmp_path / "encoder"), seed=0)
    reader = ExtractiveReader(model, tokenizer, settings)
    read = reader.rows([e.question for e in examples], [[e.candidates[0].passage] for e in examples])
    ids, mask, types, text = row_tensors(reader.layout.template, read.rows)
    expected = {
        tuple(i[m].tolist()): (t[m].tolist(), x[m].tolist())
        for i, m, t, x in zip(ids, mask.bool(), types, text, strict=True)
    }
    assert learnt == expected
    for example in examples:  # and as the tokenizer itself frames the pair
        passage = example.candidates[0].passage
        pair = tokenizer(example.question, passage.text, return_token_type_ids=True)
        title = tokenizer(passage.title, add_special_tokens=False)["input_ids"][:6]
        title.append(tokenizer.sep_token_id)
        head = len(pair["input_ids"]) - len(tokenizer(passage.text)["input_ids"]) + 1
        framed = (*pair["input_ids"][:head], *title, *pair["input_ids"][head:])
        kinds = pair["token_type_ids"]
        assert learnt[framed][0] == [*kinds[:head], *[kinds[head]] * len(title), *kinds[head:]]


@pytest.mark.parametrize(
    ("family", "max_tokens"), [("bert", 64), ("bert", 42), ("roberta", 128), ("roberta", 72)]
)
def test_answers_stand_where_the_targets_say(tmp_path: Path, family: str, max_tokens: int) -> None:
    tokenizer = FAMILIES[family][1]()
    batches, examples = batches_of(
        tmp_path, tokenizer, max_tokens if family == "roberta" else max_tokens // 2
    )
    answers, closing = {e.answers[0] for e in examples}, tokenizer.sep_token_id
    for step in range(len(batches)):
        batch = batches[step]
        for row, start, end, mask in zip(
            batch.input_ids, batch.starts[:, 0], batch.ends[:, 0], batch.attention_mask, strict=True
        ):
            assert tokenizer.decode(row[start : end + 1]).replace(" ##", "").strip() in answers
            assert row[mask.sum() - 1] == closing
            assert tokenizer.decode(row[start - 1]).strip() != closing
    first, texts = batches.examples.spans, batches.examples.texts
    for number, (begin, last) in enumerate(first.tolist()):
        passage = int(batches.examples.passages[number])
        offsets, text = texts.spans(passage), examples[number].candidates[0].passage.text
        assert text[offsets[begin, 0] : offsets[last, 1]] == examples[number].answers[0]


def test_a_roberta_learns_and_reads_its_answers_back(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    train = tiny_squad(tmp_path / "train.json", 24, 0, results)
    stage = {"max_tokens": 144, "full_tokens": 144, "tokens_per_batch": 1024}
    finished = train_reader(
        ReaderTrainConfig(
            train=(TrainingSet(questions=train, retrieved=results, held_out=0.2),), out=tmp_path / "out",
            encoder=str(tiny_roberta(tmp_path / "encoder")), question_tokens=48, title_tokens=8,
            stages=(ReaderStage(epochs=14, **stage), ReaderStage(epochs=4, negatives=1, **stage)),
            learning_rate=5e-3, precision="fp32", threads=1, freeze_word_embeddings=False,
            validation_questions=24, calibration_questions=24,
        )
    )  # fmt: skip
    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    losses = [record["loss"] for record in map(json.loads, lines) if "loss" in record]
    assert losses[-1] < losses[0] / 2
    passages = [
        Passage("1", "River", "the river is near the city."),
        Passage("2", "Tower", "the tower is 57 meters."),
    ]
    [result] = ExtractiveReader.load(finished).read(
        ["how many meters has the tower 1 1?"], [passages], [[1.0, 1.0]]
    )
    answer = result.answers[0]
    assert (answer.text, answer.passage_index, answer.start) == ("57", 1, 13)
