"""A language model in a folder: it replies greedily, shows what fits, and is refused with a
reason.
"""

import json
from asyncio import CancelledError
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rag.core.errors import ConfigError, ReaderError
from rag.core.types import Passage
from rag.core.wanted import wanted_while
from rag.opening import resolve_reader
from readers.extractive.reader import ExtractiveReader
from readers.llm.local import LocalModel
from readers.llm.prompt import prompt_messages
from readers.llm.reader import LanguageModelReader
from readers.llm.specs import LanguageModel, parse_reader
from readers.open import open_reader, reader_kind
from tests.support.messages import refusal
from tests.support.reading import read_one
from tests.tiny_causal import causal_folder
from tests.tiny_reader import tiny_reader

PASSAGES = [
    Passage("1", "Tower", "the tower is in the city"),
    Passage("2", "", "the river is near the bridge"),
]


@pytest.mark.parametrize("chat", [True, False])
def test_the_reply_is_the_model_s_greedy_continuation(tmp_path: Path, chat: bool) -> None:
    folder = causal_folder(tmp_path, chat=chat, positions=2048)
    settings = json.loads((folder / "generation_config.json").read_text())
    settings |= {"do_sample": True, "temperature": 9.0, "repetition_penalty": 9.0}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    assert reader_kind(folder) == "llm"
    reader = open_reader(folder, precision="fp32", answer_tokens=12)
    assert isinstance(reader, LanguageModelReader)
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    messages = prompt_messages("where?", PASSAGES, "line")
    result = reader.completer.complete(messages, 12)
    if chat:
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    else:
        ids = tokenizer("\n\n".join(m["content"] for m in messages) + "\nAnswer:")["input_ids"]
    reply: list[int] = []
    logps = []
    with torch.no_grad():
        while len(reply) < 12 and tokenizer.eos_token_id not in reply:
            row = model(torch.tensor([[*ids, *reply]])).logits[0, -1].log_softmax(-1)
            reply.append(int(row.argmax()))
            logps.append(float(row.max()))
    assert result.text == tokenizer.decode(reply, skip_special_tokens=True).strip()
    assert [log_p for _, log_p in result.tokens] == pytest.approx(logps, abs=5e-3)
    assert b"".join(piece for piece, _ in result.tokens).decode().strip() == result.text
    pieces = list[str]()
    reader.completer.complete(messages, 12, on_text=pieces.append)
    assert "".join(pieces).strip() == result.text
    with wanted_while(lambda: False), pytest.raises(CancelledError):
        reader.completer.complete(messages, 12)


def test_passages_that_do_not_fit_are_left_out_from_the_worst(
    tmp_path: Path, monkeypatch: Any
) -> None:
    shown: list[str] = []

    def complete(self: LocalModel, messages: Any, max_tokens: int, schema: Any, **_: Any) -> Any:
        shown.append(messages[-1]["content"])
        raise ReaderError("enough")

    monkeypatch.setattr(LocalModel, "complete", complete)
    reader = open_reader(causal_folder(tmp_path, positions=1600), precision="fp32", answer_tokens=8)
    many = [Passage(str(n), "", f"the river {n} " * 40) for n in range(9)]
    with refusal(ReaderError):
        read_one(reader, "where?", many, range(9))
    assert "the river 8 " in shown[0]
    assert "the river 0 " not in shown[0]


def test_a_text_and_an_object_name_the_same_reader(tmp_path: Path) -> None:
    named = LanguageModel(model=str(causal_folder(tmp_path)), passages=5)
    for reader in (open_reader(f"{named.model}#passages=5"), resolve_reader(named)):
        assert isinstance(reader, LanguageModelReader)
        assert reader.settings == named == parse_reader(str(named))


def test_an_object_is_not_read_as_text(tmp_path: Path) -> None:
    """A # in its folder's name begins no settings; without settings it names any kind of reader."""
    named = LanguageModel(model=str(causal_folder(tmp_path / "c#1")), passages=5)
    assert resolve_reader(named).settings == named
    extractive = str(tiny_reader(tmp_path / "extractive"))
    assert isinstance(open_reader(LanguageModel(model=extractive)), ExtractiveReader)
    with refusal(ConfigError):
        open_reader(LanguageModel(model=extractive, passages=5))


def test_what_is_wrong_in_a_name_is_named() -> None:
    for text in ("#passages=3", "m#colour=1", "m#passages=0", "openai:http://h#", "http://h/v1#m"):
        with refusal(ConfigError):
            parse_reader(text)
