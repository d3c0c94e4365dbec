"""A causal model from a folder: greedy as transformers decodes, with its own probabilities."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from rag.core.errors import ReaderError
from rag.core.types import Passage
from readers.llm.local import open_local
from readers.open import reader_kind

MESSAGES = [{"role": "user", "content": "where is the danube ?"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("gpt2")
    words = [
        "<eos>",
        "<unk>",
        *["where", "is", "the", "danube", "in", "black", "forest", "?", "answer", "passages", "reply"],
    ]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", unk_token="<unk>").save_pretrained(
        place
    )
    config = GPT2Config(
        vocab_size=len(words), n_positions=160, n_embd=32, n_layer=1, n_head=2, eos_token_id=0, bos_token_id=0
    )
    GPT2LMHeadModel(config).save_pretrained(place)
    return place


def test_greedy_continuation_and_its_probabilities(folder: Path) -> None:
    assert reader_kind(folder) == "llm"
    completer = open_local(folder, precision="fp32").completer
    made = completer.complete(MESSAGES, 5)
    model = GPT2LMHeadModel.from_pretrained(folder).eval()
    ids = completer._prompt(MESSAGES)  # type: ignore[attr-defined]
    expected = []
    for _ in range(len(made.tokens)):
        step = model(ids).logits[0, -1].log_softmax(-1)
        expected.append(float(step.max()))
        ids = torch.cat([ids, step.argmax().reshape(1, 1)], dim=1)
    assert [p for _, p in made.tokens] == pytest.approx(expected, abs=1e-4)


def test_penalties_and_sampling_of_the_folder_do_not_count(folder: Path, tmp_path: Path) -> None:
    """A published chat model states them; the penalty falls on every word of the prompt."""
    stated = {"do_sample": True, "repetition_penalty": 9.0, "temperature": 0.7, "top_k": 20, "top_p": 0.8}
    shutil.copytree(folder, tmp_path / "chat")
    (tmp_path / "chat" / "generation_config.json").write_text(json.dumps({"eos_token_id": 0, **stated}))
    plain, chat = (open_local(place, precision="fp32").completer for place in (folder, tmp_path / "chat"))
    assert chat.complete(MESSAGES, 6) == plain.complete(MESSAGES, 6)
    model = GPT2LMHeadModel.from_pretrained(tmp_path / "chat").eval()
    ids = chat._prompt(MESSAGES)  # type: ignore[attr-defined]
    penalised = model.generate(ids, max_new_tokens=6, do_sample=False)[0, ids.shape[1] :].tolist()
    greedy = [token for token, _ in plain.complete(MESSAGES, 6).tokens]
    assert chat._tokenizer.convert_ids_to_tokens(penalised) != greedy  # type: ignore[attr-defined]


def test_what_is_no_json_is_a_clear_error(folder: Path) -> None:
    reader = open_local(folder, precision="fp32", answer_tokens=8, retries=0)
    with pytest.raises(ReaderError, match="malformed reply"):
        reader.read(["where ?"], [[Passage("p", "", "in the black forest")]], [[1.0]])


def test_passages_beyond_the_window_are_left_out_and_one_too_long_is_an_error(folder: Path) -> None:
    reader = open_local(folder, precision="fp32", answer_tokens=8, retries=0)
    long = Passage("p", "", "forest " * 200)
    with pytest.raises(ReaderError, match="window"):
        reader.read(["where ?"], [[long, long]], [[1.0, 0.5]])


def test_without_passages_there_is_no_answer(folder: Path) -> None:
    result = open_local(folder, precision="fp32").read(["where ?"], [[]], [[]])[0]
    assert (result.answers, result.no_answer_confidence) == ((), 1.0)


def test_a_template_without_a_system_role_gets_one_message(folder: Path) -> None:
    completer = open_local(folder, precision="fp32").completer
    tokenizer = completer._tokenizer  # type: ignore[attr-defined]
    tokenizer.chat_template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} {% endfor %}"
    )
    asked = [{"role": "system", "content": "answer in passages"}, *MESSAGES]
    said = tokenizer.decode(completer._prompt(asked)[0])  # type: ignore[attr-defined]
    assert "answer in passages" in said
    assert "where is the danube" in said
