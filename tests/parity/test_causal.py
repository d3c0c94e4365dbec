"""Decoder-only generators against transformers' plain forward over the whole prompt, token by
token.
"""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from rag.core.errors import ConfigError
from rag.core.types import Passage
from readers.generative.causal import Causal
from readers.generative.files import load_generator
from readers.generative.marginal import passage_log_likelihood
from readers.generative.settings import GeneratorSettings, encode_rows
from tests.support.messages import refusal
from tests.tiny_causal import causal_folder, causal_tokenizer, tiny_causal

END = "<|im_end|>\n<|im_start|>assistant\n"
PASSAGES = [
    Passage("1", "tower", "the tower is 57 meters near the river in the forest of the city"),
    Passage("2", "bridge", "the bridge was built"),
    Passage("3", "", "forest"),
]
QUESTION = "how many meters has the tower"
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 300}
ANSWERS = ["57 meters", "the bridge", "1999"]


def gpt2(size: int) -> Any:
    """Learned positions, which shift where padding is counted."""
    torch.manual_seed(0)
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.3, "resid_pdrop": 0.0}
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=size, n_positions=256, eos_token_id=2, **shape)
    ).eval()


@pytest.fixture(params=["llama", "gpt2"])
def network(request: pytest.FixtureRequest) -> Causal:
    tokenizer = causal_tokenizer()
    model = tiny_causal() if request.param == "llama" else gpt2(len(tokenizer))
    return Causal(model, tokenizer, END)


def rows_of(network: Causal) -> list[list[int]]:
    settings = GeneratorSettings(template="{question} {title} {text}")
    return encode_rows(network.tokenizer, settings, [QUESTION], [PASSAGES])[0]


def plain(network: Causal, row: list[int], answer: list[int]) -> list[float]:
    """log p of each token and of the end: a forward of its own for each, over everything before
    it.
    """
    ids = [*row, *network.tokenizer(END)["input_ids"]]
    result = []
    for token in [*answer, network.end]:
        with torch.no_grad():
            logits = network.model(torch.tensor([ids])).logits[0, -1]
        result.append(float(logits.log_softmax(-1)[token]))
        ids = [*ids, token]
    return result


def test_likelihoods_from_the_cache_equal_forwards_without_one(network: Causal) -> None:
    rows = rows_of(network)
    answers = [network.answer_ids(answer) for answer in ANSWERS]
    apart = network.encode([[row] for row in rows])
    for answer in answers:  # several answers over what was read once
        labels = network.targets([answer] * len(rows))
        actual = network.token_log_probs(apart, labels)
        for values, row in zip(actual.tolist(), rows, strict=True):
            assert values == pytest.approx(plain(network, row, answer), abs=2e-4)
    together = network.encode([rows])
    mean = passage_log_likelihood(network, together, [answers[0]])[0].tolist()
    expected = [
        sum(values) / len(values) for values in (plain(network, row, answers[0]) for row in rows)
    ]
    assert mean == pytest.approx(expected, abs=2e-4)


def test_greedy_and_beams_are_transformers_own(network: Causal) -> None:
    rows = rows_of(network)
    result = network.generate(network.encode([[row] for row in rows]), answer_tokens=6)
    for row, [ids] in zip(rows, result, strict=True):
        prompt = torch.tensor([[*row, *network.tokenizer(END)["input_ids"]]])
        made = network.model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=6, do_sample=False
        )[0, prompt.shape[1] :].tolist()
        assert ids == (made[: made.index(network.end)] if network.end in made else made)


def test_windows_side_by_side_attend_to_all(network: Causal) -> None:
    """Against one forward with a mask by hand: windows do not see each other, the answer sees
    all.
    """
    rows, answer = rows_of(network), network.answer_ids("57")
    tail = network.tokenizer(END)["input_ids"]
    windows = [[*row, *tail[:-1]] for row in rows]
    tokens = [*itertools.chain(*windows), tail[-1], *answer]
    places = [*itertools.chain(*(range(len(w)) for w in windows))]
    longest = max(map(len, windows))
    places += range(longest, longest + 1 + len(answer))
    owner = [n for n, w in enumerate(windows) for _ in w] + [-1] * (1 + len(answer))
    seen = torch.full((len(tokens), len(tokens)), -1e9)
    for i, j in itertools.product(range(len(tokens)), repeat=2):
        if j <= i and (owner[i] == owner[j] or owner[i] < 0):
            seen[i, j] = 0.0
    with torch.no_grad():
        logits = network.model(
            torch.tensor([tokens]),
            attention_mask=seen[None, None],
            position_ids=torch.tensor([places]),
        ).logits[0, -1 - len(answer) :]
    expected = logits.log_softmax(-1)[range(len(answer) + 1), [*answer, network.end]].tolist()
    memory = network.encode([rows])
    actual = network.token_log_probs(memory, network.targets([answer]))[0].tolist()
    assert actual == pytest.approx(expected, abs=2e-4)


def test_gradients_flow_through_the_cache(network: Causal) -> None:
    """The same as transformers' own loss over prompt and answer, for every parameter."""
    [row, *_] = rows_of(network)
    answer = network.answer_ids("57")
    labels = network.targets([answer])
    (-network.token_log_probs(network.encode([[row]]), labels).mean()).backward()
    result = {
        name: p.grad.clone() for name, p in network.model.named_parameters() if p.grad is not None
    }
    network.model.zero_grad()
    prompt = [*row, *network.tokenizer(END)["input_ids"]]
    ids = torch.tensor([[*prompt, *answer, network.end]])
    network.model(
        ids, labels=torch.tensor([[-100] * len(prompt) + [*answer, network.end]])
    ).loss.backward()
    for name, parameter in network.model.named_parameters():
        assert torch.allclose(result[name], parameter.grad, atol=1e-5), name


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("lfm2", {"layer_types": ["conv", "full_attention"]}),
        ("deepseek_v2", {"first_k_dense_replace": 2}),
        ("rwkv", {"attention_hidden_size": 32}),
    ],
)
def test_models_whose_memory_cannot_be_joined_are_refused(kind: str, more: dict[str, Any]) -> None:
    config = AutoConfig.for_model(kind, **SIZES, **more)
    with torch.device("meta"), refusal(ConfigError):
        Causal(AutoModelForCausalLM.from_config(config), causal_tokenizer(), END)


def test_prompt_and_answer_fit_into_the_positions(tmp_path: Path) -> None:
    folder = causal_folder(tmp_path / "model")
    assert load_generator(folder, passage_tokens=120, answer_tokens=8)[1].settings.prompt_end == END
    with refusal(ConfigError):
        load_generator(folder, passage_tokens=550)
