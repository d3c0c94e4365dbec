"""A causal model from a folder: greedy as transformers decodes, with its own probabilities."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from rag.core.errors import ConfigError, ReaderError
from rag.core.types import Passage
from readers.extractive.files import SHIPPED_READER
from readers.llm.endpoint import open_endpoint
from readers.llm.local import LocalModel, open_local
from readers.llm.prompt import grounded_messages, quoting_messages
from readers.llm.reader import LanguageModelSettings, best_ranked
from readers.open import open_reader, reader_kind
from tests.tiny_causal import causal_folder

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
    ids = torch.tensor([completer.prompt(MESSAGES)])
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
    ids = torch.tensor([chat.prompt(MESSAGES)])
    penalised = model.generate(ids, max_new_tokens=6, do_sample=False)[0, ids.shape[1] :].tolist()
    greedy = [token for token, _ in plain.complete(MESSAGES, 6).tokens]
    assert chat.network.tokenizer.convert_ids_to_tokens(penalised) != greedy


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
    network = open_local(folder, precision="fp32").completer.network
    tokenizer = network.tokenizer
    tokenizer.chat_template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} {% endfor %}"
    )
    asked = [{"role": "system", "content": "answer in passages"}, *MESSAGES]
    said = tokenizer.decode(LocalModel(network.model, tokenizer, "tiny").prompt(asked))
    assert "answer in passages" in said
    assert "where is the danube" in said


PASSAGES = [
    Passage("1", "tower", "The tower of the city is 57 meters (187 feet) high."),
    Passage("2", "river", "The harbour near the river was built in 1999."),
]
ASKED = ["how many meters has the tower", "when was the harbour built", "where is the forest"]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return causal_folder(tmp_path_factory.mktemp("llama"), positions=2048)


def test_a_batch_reads_as_one_question_at_a_time(llama: Path) -> None:
    reader = open_local(llama, precision="fp32", answer_tokens=8)
    chats = [grounded_messages(question, PASSAGES[: 1 + n % 2]) for n, question in enumerate(ASKED)]
    together = reader.completer.complete_all(chats, 8)
    for messages, [completion] in zip(chats, together, strict=True):
        alone = reader.completer.complete(messages, 8)
        assert (completion.text, len(completion.tokens)) == (alone.text, len(alone.tokens))
        assert [p for _, p in completion.tokens] == pytest.approx([p for _, p in alone.tokens], abs=1e-4)


def test_an_answer_that_does_not_fit_is_not_measured(llama: Path) -> None:
    reader = open_local(llama, precision="fp32", answer_tokens=8)
    long = Passage("2", "", "harbour " * 2 * reader.completer.window)
    short = Passage("1", "", "the harbour of 57")
    first, second = reader.log_likelihood(ASKED[:2], [[long], [short]], [[1.0], [1.0]], ["57", "57"])
    assert math.isnan(first)
    assert second < 0


def test_quotations_stand_where_they_cite(llama: Path) -> None:
    """Of all spans of at most three tokens that begin and end with words, the likeliest: brute force."""
    reader = open_local(llama, precision="fp32", answer_tokens=8, quote=True, beams=16, effort="1")
    network = reader.completer.network
    short = [Passage("1", "", "the harbour of 57")]
    [result] = reader.read(ASKED[:1], [short], [[1.0]], n_best=1)
    words = short[0].text.split()
    spans = [" ".join(words[a:b]) for a in range(4) for b in range(a + 1, 5)]
    spans = [span for span in spans if len(network.answer_ids(span)) <= 8]
    [values] = reader.completer.log_likelihood([quoting_messages(ASKED[0], short)], [spans])
    best = max(zip(values, spans, strict=True))
    [answer] = result.answers
    assert (answer.text, answer.score) == (best[1], pytest.approx(math.exp(best[0]), rel=1e-3))
    many = open_local(llama, precision="fp32", answer_tokens=8, quote=True, beams=4)
    read = many.read(ASKED, [PASSAGES] * 3, [[1.0, 2.0]] * 3)
    for one in read:
        for answer in one.answers:
            text = PASSAGES[answer.passage_index].text
            assert text[answer.start : answer.end] == answer.text
            assert answer.passage_index in [cited.passage_index for cited in answer.citations]
    assert any(len(one.answers) > 1 for one in read)


def test_small_models_may_be_asked_without_citations(llama: Path) -> None:
    for settings, ask in (({}, grounded_messages), ({"cite": False}, quoting_messages)):
        _, messages = open_local(llama, precision="fp32", **settings).shown(ASKED[0], PASSAGES, [1, 0])
        assert messages == ask(ASKED[0], PASSAGES[::-1])


def test_effort_says_how_many_passages_are_shown(llama: Path) -> None:
    for effort, count in {"full": 30, "normal": 20, "3": 3}.items():
        settings = LanguageModelSettings(effort=effort)
        assert best_ranked([float(n) for n in range(30)], settings) == list(range(29, 29 - count, -1))
    with pytest.raises(ConfigError, match="effort"):
        open_local(llama, effort="some")
    assert open_reader(f"{llama}#quote=true,passages=3").settings.quote  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="are for language models"):
        open_reader(f"{SHIPPED_READER}#quote=true")
    with pytest.raises(ConfigError, match="quote"):
        open_endpoint("openai:http://localhost:1/v1#m,quote=true")
