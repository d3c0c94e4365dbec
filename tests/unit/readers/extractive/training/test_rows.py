"""What is learnt from is what will be read: one frame around questions and texts, whatever the tokenizer."""

from pathlib import Path
from typing import Any

import pytest

from rag.data.examples import Example
from readers.extractive.layout import row_tensors
from readers.extractive.model import SpanModel
from readers.extractive.reader import ExtractiveReader
from readers.extractive.settings import ReaderSettings
from readers.extractive.training.batches import ReaderBatch, ReaderBatches
from readers.extractive.training.config import ReaderStage, ReaderTrainConfig, TrainingSet
from readers.extractive.training.data import load_examples, read_set
from tests.tiny_reader import tiny_encoder, tiny_roberta, tiny_roberta_tokenizer, tiny_squad, tiny_tokenizer

FAMILIES = {"bert": (tiny_encoder, tiny_tokenizer), "roberta": (tiny_roberta, tiny_roberta_tokenizer)}


def batches_of(folder: Path, tokenizer: Any, max_tokens: int) -> tuple[ReaderBatches, list[Example]]:
    questions = TrainingSet(questions=tiny_squad(folder / "train.json", 8, 0), held_out=0)
    stage = ReaderStage(
        epochs=1, max_tokens=max_tokens, full_tokens=max_tokens, full_fraction=0, tokens_per_batch=512
    )
    config = ReaderTrainConfig(
        out=folder / "out", train=[questions], stages=(stage,), question_tokens=40, title_tokens=6
    )
    examples = read_set(questions)
    return ReaderBatches(load_examples([(questions, examples)], tokenizer), config), examples


def rows_of(batch: ReaderBatch) -> dict[tuple[int, ...], tuple[list[int], list[bool]]]:
    """Segments, and where the text is, by the token ids of a row, without padding."""
    result = {}
    for ids, mask, types, allowed in zip(
        batch.input_ids, batch.attention_mask.bool(), batch.token_type_ids, batch.allowed[:, 0], strict=True
    ):
        inside = allowed.clone()
        inside[0] = False  # "no answer here"
        result[tuple(ids[mask].tolist())] = types[mask].tolist(), inside[mask].tolist()
    return result


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
    ids, mask, types, text = row_tensors(reader.template, read.rows)
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
