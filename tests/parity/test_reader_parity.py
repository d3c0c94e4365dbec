"""The reader against independent oracles: transformers' classes and brute force."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertForQuestionAnswering,
    BertModel,
)

from rag.core.types import Passage
from rag.runtime.cpu_training import register_math_attention
from readers.extractive.inference import best_spans
from readers.extractive.reader import ExtractiveReader
from tests.tiny_reader import tiny_config, tiny_tokenizer

PASSAGES = [
    Passage("1", "Tower", "The tower is 324 meters high and was built in 1889."),
    Passage("2", "River", "A river near the city."),
    Passage("3", "Bridge", "The bridge has 12 arches in the harbour."),
]
QUESTION = "how many meters has the tower?"


def test_math_attention_equals_eager_attention_with_padding() -> None:
    torch.manual_seed(0)
    model = BertModel(tiny_config(num_attention_heads=4)).eval()
    ids = torch.randint(5, 60, (3, 17))
    mask = torch.tensor([[1] * 17, [1] * 9 + [0] * 8, [1] + [0] * 16])
    outputs, gradients = [], []
    for name in ("eager", register_math_attention()):
        model.set_attn_implementation(name)
        model.zero_grad()
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        (hidden[mask.bool()] ** 3).sum().backward()
        outputs.append(hidden[mask.bool()].detach())
        gradients.append(model.encoder.layer[0].attention.self.query.weight.grad.clone())  # type: ignore[union-attr]
    assert torch.allclose(outputs[0], outputs[1], atol=1e-5)
    assert torch.allclose(gradients[0], gradients[1], rtol=1e-3, atol=1e-4)


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
    rows, scores = reader.score([QUESTION], [PASSAGES])
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


@pytest.mark.parametrize(("length", "width", "top_k"), [(12, 4, 5), (5, 9, 40), (1, 1, 3)])
def test_span_search_equals_brute_force(length: int, width: int, top_k: int) -> None:
    generator = torch.Generator().manual_seed(length)
    start, end = torch.randn(2, 6, length, generator=generator)
    may_start, may_end = torch.rand(2, 6, length, generator=generator) < 0.6
    scores, starts, ends = best_spans(start, end, may_start, may_end, width, top_k)
    for row in range(6):
        wanted = sorted(
            (
                (float(start[row, i] + end[row, j]), i, j)
                for i in range(length)
                for j in range(i, min(i + width, length))
                if may_start[row, i] and may_end[row, j]
            ),
            reverse=True,
        )[:top_k]
        found = [
            (float(s), int(i), int(j))
            for s, i, j in zip(scores[row], starts[row], ends[row], strict=True)
            if torch.isfinite(s)
        ]
        assert found == wanted
