"""Fusion-in-Decoder against transformers' own classes: losses, greedy and beam output, attention
scores.
"""

from typing import Any

import pytest
import torch
from transformers.modeling_outputs import BaseModelOutput

from rag.core.errors import ConfigError
from readers.generative.attention import passage_attention
from readers.generative.files import check_rows
from readers.generative.model import Seq2Seq
from readers.generative.settings import GeneratorSettings
from readers.generative.training.recipe import batch_loss
from tests.support.messages import refusal
from tests.tiny_generator import KINDS, tiny_seq2seq
from tests.tiny_reader import tiny_tokenizer

ROWS = [[[2, 60, 61, 62, 3], [2, 61, 7, 9, 66, 63, 3], [2, 64, 3]], [[2, 9, 10, 11, 12, 3]]]
ANSWERS = [[61, 62, 9], [66]]


def seq2seq(kind: str) -> Seq2Seq:
    return Seq2Seq(tiny_seq2seq(kind), tiny_tokenizer())


def padded(model: Any, rows: list[list[list[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """FiD as published: every passage padded to one length, encoded in one batch, states
    concatenated.
    """
    longest = max(len(ids) for passages in rows for ids in passages)
    most = max(len(passages) for passages in rows)
    ids = torch.zeros(len(rows) * most, longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for b, passages in enumerate(rows):
        for k, tokens in enumerate(passages):
            ids[b * most + k, : len(tokens)] = torch.tensor(tokens)
            mask[b * most + k, : len(tokens)] = 1
    some = mask.clone()
    some[mask.sum(1) == 0, 0] = 1  # an absent passage: its states are hidden from the decoder
    states = model.get_encoder()(input_ids=ids, attention_mask=some)[0]
    return states.reshape(len(rows), most * longest, -1), mask.reshape(len(rows), -1)


def bare(row: list[int]) -> list[int]:
    row = row[1:]
    row = row[: row.index(3)] if 3 in row else row
    return [token for token in row if token not in (0, 2)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beams", [1, 3])
def test_greedy_and_beam_output_is_that_of_one_long_encoder_output(kind: str, beams: int) -> None:
    ours = seq2seq(kind)
    with torch.no_grad():
        states, mask = padded(ours.model, ROWS)
        expected = ours.model.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=states),
            attention_mask=mask,
            max_new_tokens=9,
            num_beams=beams,
            num_return_sequences=beams,
            do_sample=False,  # and the end
            decoder_start_token_id=2,
            eos_token_id=3,
            pad_token_id=0,
        )
        actual = ours.generate(ours.encode(ROWS), answer_tokens=8, beams=beams)
    target = [bare(row[:9]) for row in expected.tolist()]
    assert actual == [target[:beams], target[beams:]]
    assert len({tuple(answer) for answers in actual for answer in answers}) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_of_training_and_its_gradients_are_transformers(kind: str) -> None:
    ours = seq2seq(kind)
    weight = next(p for p in ours.model.get_encoder().parameters() if p.ndim > 1)
    loss = batch_loss(ours, list(zip(ROWS, [[61, 62], [66, 9]], strict=True)), 7)
    loss.value.backward()
    gradient = weight.grad.clone()
    weight.grad.zero_()
    states, mask = padded(ours.model, ROWS)
    expected = ours.model(
        encoder_outputs=BaseModelOutput(last_hidden_state=states),
        attention_mask=mask,
        labels=torch.tensor([[61, 62, 3], [66, 9, 3]]),
    ).loss
    expected.backward()
    assert float(loss.value.detach()) == pytest.approx(float(expected.detach()), rel=1e-4)
    assert torch.allclose(gradient, weight.grad, atol=1e-4)


def test_answers_may_be_as_long_as_asked_for_beside_what_begins_and_ends_them() -> None:
    """What transformers says without a limit, cut; the longest can be scored, a longer one not."""
    model = tiny_seq2seq("bart")
    model.generation_config.forced_bos_token_id = 5
    ours, rows = Seq2Seq(model, tiny_tokenizer()), [ROWS[1]]
    plain = model.generate(
        input_ids=torch.tensor(rows[0]),
        max_new_tokens=99,
        do_sample=False,
        num_beams=1,
        decoder_start_token_id=2,
        eos_token_id=3,
        pad_token_id=0,
    )
    output = plain[0].tolist()[1:]
    assert output[0] == 5
    for longest in range(1, 7):
        assert ours.generate(ours.encode(rows), answer_tokens=longest) == [
            [output[1 : 1 + longest]]
        ]
    most = 128 - len([2, 5])
    check_rows(model, GeneratorSettings(passage_tokens=9, answer_tokens=most))
    with refusal(ConfigError):
        check_rows(model, GeneratorSettings(passage_tokens=9, answer_tokens=most + 1))
    assert ours.token_log_probs(ours.encode(rows), ours.targets([[9] * most])).isfinite().all()
    assert len(ours.answer_ids("no " * 200)) == most


@pytest.mark.parametrize("kind", KINDS)
def test_first_token_scores_are_absolute(kind: str) -> None:
    ours = seq2seq(kind)
    decoder = ours.model.get_decoder()
    if kind == "t5":
        crossing = [block.layer[1].EncDecAttention for block in decoder.block]
        pairs = [(cross.q, cross.k) for cross in crossing]
        width, scale = 8, 1.0
    else:
        crossing = [layer.encoder_attn for layer in decoder.layers]
        pairs = [(cross.q_proj, cross.k_proj) for cross in crossing]
        width, scale = 16, 16**-0.5
    seen: list[torch.Tensor] = []

    def see(query: Any, given: Any) -> None:
        seen.append(given[0])

    for query, _ in pairs:
        query.register_forward_pre_hook(see)
    memory = ours.encode(ROWS[1:])
    actual = passage_attention(ours, memory)
    scores = []
    with torch.inference_mode():
        for (query, key), hidden in zip(pairs, list(seen), strict=True):
            products = query(hidden)[0, 0] * key(memory.states)[0]  # (L, D)
            scores.append(products.unflatten(1, (-1, width)).sum(2).mean() * scale)
    assert float(actual[0, 0]) == pytest.approx(float(torch.stack(scores).mean()), rel=1e-3)
