"""The reader against independent oracles: transformers' classes and brute force."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertForQuestionAnswering, DPRReader

from rag.core.types import Passage
from readers.extractive.files import load_parts
from readers.extractive.layout import best_spans
from readers.extractive.reader import ExtractiveReader
from tests.published import published_dpr
from tests.support.reading import read_lists
from tests.tiny_reader import tiny_config, tiny_tokenizer

PASSAGES = [
    Passage("1", "Tower", "The tower is 324 meters high and was built in 1889."),
    Passage("2", "River", "A river near the city."),
    Passage("3", "Bridge", "The bridge has 12 arches in the harbour."),
]
QUESTION = "how many meters has the tower?"


def is_whole(tokenizer: Any, ids: list[int], first: int, last: int) -> bool:
    """Whether tokens `first` to `last` cut no word."""
    outer = (ids[first], *ids[last + 1 : last + 2])
    return not any(token.startswith("##") for token in tokenizer.convert_ids_to_tokens(outer))


def test_a_question_answering_model_gives_its_own_logits(tmp_path: Path) -> None:
    torch.manual_seed(1)
    tokenizer = tiny_tokenizer()
    model = BertForQuestionAnswering(tiny_config())
    model.eval().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    reader = ExtractiveReader.load(tmp_path, precision="fp32", question_tokens=32)
    rows = reader.score([QUESTION], [PASSAGES])
    scores = rows.scores
    for passage, row in zip(PASSAGES, rows.rows, strict=True):
        encoded = tokenizer(QUESTION, passage.text, return_tensors="pt", return_token_type_ids=True)
        assert row.ids.tolist() == encoded["input_ids"][0].tolist()
        with torch.no_grad():
            output = model(**encoded)
        start, end = output.start_logits[0].double(), output.end_logits[0].double()
        best = max(
            float(start[i] + end[j])
            for i in range(row.text_from, row.text_to)
            for j in range(i, min(i + reader.settings.max_answer_tokens, row.text_to))
            if is_whole(tokenizer, row.ids[: row.text_to].tolist(), i, j)
        )
        assert scores.spans[row.group, 0] == pytest.approx(best, abs=1e-4)
        assert scores.nulls[row.group] == pytest.approx(float(start[0] + end[0]), abs=1e-4)


def test_dpr_reader_selects_the_passage_and_a_span_in_it(tmp_path: Path) -> None:
    """DPR's rule: the passage with the highest selection logit, then its best span of at most 10
    tokens.
    """
    torch.manual_seed(5)  # the best span is no function word, which would be no answer
    model = published_dpr(tmp_path, DPRReader, initializer_range=0.4)
    tokenizer = tiny_tokenizer()
    reader = ExtractiveReader.load(tmp_path, precision="fp32", question_tokens=32)
    [result] = read_lists(reader, [QUESTION], [PASSAGES], [[3.0, 2.0, 1.0]])
    selected, spans = [], []
    for passage in PASSAGES:
        head = tokenizer(QUESTION, passage.title)["input_ids"]
        text = tokenizer(passage.text, add_special_tokens=False, return_offsets_mapping=True)
        ids, offsets = head + text["input_ids"], text["offset_mapping"]
        with torch.no_grad():
            output = model(
                input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)).long()
            )
        selected.append(float(output.relevance_logits[0]))
        start, end = output.start_logits[0], output.end_logits[0]
        _, first, last = max(
            (float(start[i] + end[j]), i, j)
            for i in range(len(head), len(ids))
            for j in range(i, min(i + 10, len(ids)))
            if is_whole(tokenizer, ids, i, j)
        )
        spans.append(passage.text[offsets[first - len(head)][0] : offsets[last - len(head)][1]])
    best = int(np.argmax(selected))
    assert result.answers[0].evidence.passage_id == PASSAGES[best].id
    assert result.answers[0].text == spans[best]
    assert result.answers[0].score == pytest.approx(selected[best], abs=1e-4)
    assert result.no_answer_confidence == 0.0
    plain = ExtractiveReader(load_parts(tmp_path).model, tokenizer, reader.settings)  # as on a GPU
    [same] = read_lists(plain, [QUESTION], [PASSAGES], [[3.0, 2.0, 1.0]])
    assert same.answers[0].score == pytest.approx(selected[best], abs=1e-4)


@pytest.mark.parametrize(("length", "width", "top_k"), [(12, 4, 5), (5, 9, 40), (1, 1, 3)])
def test_span_search_equals_brute_force(length: int, width: int, top_k: int) -> None:
    generator = torch.Generator().manual_seed(length)
    start, end = torch.randn(2, 6, length, generator=generator)
    may_start, may_end = torch.rand(2, 6, length, generator=generator) < 0.6
    scores, starts, ends = best_spans(start, end, may_start, may_end, width, top_k)
    for row in range(6):
        expected = sorted(
            (
                (float(start[row, i] + end[row, j]), i, j)
                for i in range(length)
                for j in range(i, min(i + width, length))
                if may_start[row, i] and may_end[row, j]
            ),
            reverse=True,
        )[:top_k]
        actual = [
            (float(s), int(i), int(j))
            for s, i, j in zip(scores[row], starts[row], ends[row], strict=True)
            if torch.isfinite(s)
        ]
        assert actual == expected
