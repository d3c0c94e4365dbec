"""A decoder that begins as a pointer says the word where an answer starts, without any training."""

from pathlib import Path

import pytest
import torch
from transformers import BertModel

from rag.core.errors import ArtifactError
from readers.generative.model import Seq2Seq
from readers.generative.warm_start import start_as_pointer, warm_start
from tests.tiny_reader import tiny_encoder, tiny_tokenizer


def test_the_first_word_is_the_one_that_the_span_head_points_at(tmp_path: Path) -> None:
    encoder, tokenizer = BertModel.from_pretrained(tiny_encoder(tmp_path)).eval(), tiny_tokenizer()
    model = Seq2Seq(warm_start(encoder, tokenizer, decoder_layers=1).eval(), tokenizer)
    draw = torch.Generator().manual_seed(0)
    rows = torch.randint(5, len(tokenizer), (60, 12), generator=draw).tolist()
    with pytest.raises(ArtifactError, match="too few"):
        start_as_pointer(model, torch.zeros(32), rows[:1])
    start = 3.0 * torch.randn(32, generator=draw)
    start_as_pointer(model, start, rows)
    right = 0
    with torch.no_grad():
        memory = model.encode([[row] for row in rows])
        for number, row in enumerate(rows):
            wanted = row[int((memory.states[number] @ start).argmax())]
            logits = model.model(
                encoder_outputs=(memory.states[number : number + 1],),
                attention_mask=memory.mask[number : number + 1],
                decoder_input_ids=torch.tensor([[model.start]]),
                use_cache=False,
            ).logits
            right += int(logits[0, -1].argmax()) == wanted
    assert right / len(rows) >= 0.8
