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


def test_first_token_scores_are_absolute_for_t5_and_bart() -> None:
    for kind in ("t5", "bart"):
        ours = seq2seq(kind)
        memory = ours.encode(ROWS[1:])
        decoder = ours.model.get_decoder()
        layers = decoder.block if kind == "t5" else decoder.layers
        seen: list[torch.Tensor] = []
        for layer in layers:
            cross = layer.layer[1].EncDecAttention if kind == "t5" else layer.encoder_attn
            cross.register_forward_pre_hook(
                lambda _, args, kwargs, seen=seen: seen.append(
                    args[0] if args else kwargs["hidden_states"]
                ),
                with_kwargs=True,
            )
        actual = passage_attention(ours, memory)
        expected = 0.0
        for layer, hidden in zip(layers, seen, strict=True):
            cross = layer.layer[1].EncDecAttention if kind == "t5" else layer.encoder_attn
            q, k = (cross.q, cross.k) if kind == "t5" else (cross.q_proj, cross.k_proj)
            scale = 1.0 if kind == "t5" else 16**-0.5
            for token in range(6):
                query, key = q(hidden.clone())[0, 0], k(memory.states)[0, token]
                heads = query.shape[0] // (8 if kind == "t5" else 16)
                expected += (
                    float((query * key).detach().view(heads, -1).sum(1).mean()) * scale / 6 / 2
                )
        assert float(actual[0, 0]) == pytest.approx(expected, rel=1e-3)
