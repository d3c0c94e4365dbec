"""Sentences with masks, and the network that fills them in, against plain computation."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM

from rag.core.types import Passage
from rag.joint.fillers import MaskedReader
from rag.joint.sentences import MaskedSentence
from tests.conftest import TinyModels
from tests.tiny_masks import sentence_batches


def test_masked_words_are_scored_as_by_the_plain_model(
    tmp_path: Path, tiny: TinyModels, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny.bert(tmp_path / "mlm", seed=3)
    torch.manual_seed(1)
    reader = MaskedReader.load(folder, max_tokens=20, dropout=0.0).eval()
    assert "gets a new one" in caplog.text
    reader.model.save_pretrained(tmp_path / "whole")
    tiny.tokenizer(tmp_path / "whole")
    caplog.clear()
    MaskedReader.load(tmp_path / "whole", max_tokens=20)
    assert "fresh" not in caplog.text
    plain = AutoModelForMaskedLM.from_pretrained(tmp_path / "whole").eval()
    mask = reader.tokenizer.mask_token_id
    draw = np.random.default_rng(0)
    sentences = []
    for length, places in ((7, [2, 3]), (4, [0])):
        ids = draw.integers(6, 120, length)
        targets = ids[places]
        ids[places] = mask
        sentences.append(MaskedSentence("", "", ids, np.array(places), targets))
    passages: list[list[list[int]]] = [
        [[], draw.integers(6, 120, 5).tolist(), draw.integers(6, 120, 40).tolist()]
        for _ in sentences
    ]
    with torch.no_grad():
        actual = reader(sentences, passages)
        assert actual.shape == (2, 3, 2)
        assert not actual[1, :, 1].any()
        cls = reader.tokenizer.cls_token_id
        sep = reader.tokenizer.sep_token_id
        for b, sentence in enumerate(sentences):
            for k, passage in enumerate(passages[b]):
                head = [cls, *sentence.ids.tolist(), sep]
                tail = [*passage[: 20 - len(head) - 1], sep]
                types = [0] * len(head) + [1] * len(tail)
                logits = plain(
                    torch.tensor([head + tail]), token_type_ids=torch.tensor([types])
                ).logits[0]
                for t, (place, target) in enumerate(
                    zip(sentence.places, sentence.targets, strict=True)
                ):
                    expected = logits[1 + place].log_softmax(-1)[target]
                    torch.testing.assert_close(actual[b, k, t], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("title", "text", "stands"),
    [
        (
            "River",
            "It is long. The river rises\n in the Black  Forest , in 1888!",
            True,
        ),  # other blanks
        (
            "Other",
            "IT IS LONG. the river rises in the Black Forest in 1888",
            True,
        ),  # a copy elsewhere
        ("River", "Black Forest in 1888. It flows east.", True),  # split in its midst
        ("River", "It is long. The river", True),
        ("", "the Black Forest in 1888 and later", True),  # untitled: perhaps the same document
        ("River", "In the Black Forest a farmer has told of the river in 1888.", False),
        ("Other", "It is known that the river rises in the Black Forest.", False),
    ],
)
def test_a_sentence_stands_in_what_another_split_made_of_its_document(
    tmp_path: Path, tiny_bert: Path, title: str, text: str, stands: bool
) -> None:
    source = {"id": "1", "title": "River", "text": "The river rises in the Black Forest, in 1888."}
    (tmp_path / "corpus.jsonl").write_text(json.dumps(source))
    batches = sentence_batches(tmp_path / "corpus.jsonl", tiny_bert, tmp_path / "cut")
    sentence = batches[0][0]
    assert sentence.stands_in(Passage("1", title, text)) is stands
