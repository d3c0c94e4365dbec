"""Signals of readers against transformers' plain forward passes, one passage at a time."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from rag.core.errors import ConfigError, DataError
from rag.core.types import Passage
from rag.data.examples import (
    Candidate,
    Example,
    read_examples,
    write_examples,
)
from rag.rounds.scoring import report_path, score_examples
from rag.rounds.signals import Judge, matcher_of, to_judge
from readers.extractive.model import SpanModel
from readers.extractive.reader import ExtractiveReader
from readers.extractive.settings import ReaderSettings
from readers.generative.model import Seq2Seq
from readers.generative.reader import GenerativeReader
from readers.generative.settings import GeneratorSettings
from tests.commands import exit_code
from tests.tiny_generator import tiny_seq2seq
from tests.tiny_reader import tiny_encoder, tiny_tokenizer

IDENTITY = {"name": "tiny", "kind": "any", "weights_sha256": "0" * 64}
LONG = "bridge of 57 of the harbour in the city in the castle"
PASSAGES = [
    Passage("1", "tower", "the tower is 57 meters near the river. 57 in the forest near a " + LONG),
    Passage("2", "bridge", "the bridge was built in the year 1999"),
    Passage("3", "", "forest"),
    Passage("4", "castle", "in the castle of the harbour has 57"),
]
EXAMPLE = Example(
    "q", "how many meters has the tower", ("57",), tuple(Candidate(p, "retrieved") for p in PASSAGES)
)


def generative(kind: str, signal: str, **settings: Any) -> Judge:
    model = Seq2Seq(tiny_seq2seq(kind), tiny_tokenizer())
    reader = GenerativeReader(model, GeneratorSettings(passage_tokens=48, **settings))
    return Judge("generative", reader, signal, IDENTITY)


def extractive(tmp_path: Path, signal: str, **settings: Any) -> Judge:
    given = ReaderSettings(question_tokens=16, title_tokens=8, **{"max_tokens": 48, **settings})
    model = SpanModel.from_encoder(tiny_encoder(tmp_path / "encoder"))
    torch.nn.init.normal_(model.qa_outputs.weight, std=0.5)
    return Judge("extractive", ExtractiveReader(model, tiny_tokenizer(), given), signal, IDENTITY)


def row(passage: Passage) -> list[int]:
    text = f"question: {EXAMPLE.question} title: {passage.title} context: {passage.text}"
    return list(tiny_tokenizer()(text, truncation=True, max_length=48)["input_ids"])


def forward(model: Any, passages: Sequence[Passage], **more: Any) -> Any:
    """FiD by hand, eager, with the answer 57."""
    model.set_attn_implementation("eager")
    answer = tiny_tokenizer()("57", add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        states = [model.get_encoder()(input_ids=torch.tensor([row(p)]))[0] for p in passages]
        return model(
            encoder_outputs=(torch.cat(states, 1),),
            labels=torch.tensor([[*answer, 3]]),
            use_cache=False,
            **more,
        )


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_generative_signals_equal_eager_brute_force(kind: str) -> None:
    model = tiny_seq2seq(kind)
    asked = to_judge(EXAMPLE)
    alone = [-float(forward(model, [p]).loss) for p in PASSAGES]
    assert generative(kind, "likelihood").judge([asked])[0] == pytest.approx(alone, rel=1e-3)
    # first token: log-probabilities are scores up to a constant a head, the same for all passages
    weights = forward(model.double(), PASSAGES, output_attentions=True).cross_attentions
    scores = torch.stack(weights)[:, 0, :, 0].log().mean((0, 1))  # (S,) of layers and heads
    parts = [float(part.mean()) for part in scores.split([len(row(p)) for p in PASSAGES])]
    found = generative(kind, "attention").judge([asked])[0]
    assert found - found[0] == pytest.approx([part - parts[0] for part in parts], abs=2e-3)


@pytest.mark.parametrize("max_tokens", [48, 38])
def test_span_likelihood_equals_a_loop_over_spans(tmp_path: Path, max_tokens: int) -> None:
    """Also where a passage needs two windows, which share the softmax."""
    judge = extractive(tmp_path, "span-likelihood", max_tokens=max_tokens, stride_tokens=4)
    [found] = judge.judge([to_judge(EXAMPLE)])
    reader = judge.model
    tokenizer = tiny_tokenizer()
    windows = 0
    for passage, value in zip(PASSAGES, found, strict=True):
        text = tokenizer(passage.text, add_special_tokens=False)["input_ids"]
        answer = tokenizer("57", add_special_tokens=False)["input_ids"]
        question, title = (
            tokenizer(t, add_special_tokens=False)["input_ids"] for t in (EXAMPLE.question, passage.title)
        )
        head = [2, *question[:16], 3, *title[:8], 3]
        room = max_tokens - len(head) - 1
        chunks = [text[:room]]
        while (len(chunks) - 1) * (room - 4) + room < len(text):
            first = len(chunks) * (room - 4)
            chunks.append(text[first : first + room])
        windows = max(windows, len(chunks))
        right = starts = ends = 0.0
        for chunk in chunks:
            ids = torch.tensor([[*head, *chunk, 3]])
            types = torch.tensor(
                [[0] * (2 + len(question[:16])) + [1] * (ids.shape[1] - 2 - len(question[:16]))]
            )
            with torch.no_grad():
                logits = reader.model.logits(ids, torch.ones_like(ids), types)
            start, end = logits.start[0].double().exp(), logits.end[0].double().exp()
            kept = [0, *range(len(head), len(head) + len(chunk))]
            starts, ends = starts + float(start[kept].sum()), ends + float(end[kept].sum())
            for at in range(len(chunk) - len(answer) + 1):
                if chunk[at : at + len(answer)] == answer:
                    right += float(start[len(head) + at] * end[len(head) + at + len(answer) - 1])
        assert value == pytest.approx(math.log(right / (starts * ends) + 1e-4), abs=1e-5)
    assert windows == (1 if max_tokens == 48 else 2)
    assert found[1] == found[2] == pytest.approx(math.log(1e-4))  # the answer is not there


def test_passages_without_an_answer_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = extractive(tmp_path, "span-likelihood")
    read: list[int] = []
    logits = type(judge.model.model).logits

    def counted(model: Any, ids: torch.Tensor, *more: Any) -> Any:
        read.append(len(ids))
        return logits(model, ids, *more)

    monkeypatch.setattr(type(judge.model.model), "logits", counted)
    holding = [matcher_of(EXAMPLE).matches(passage.text) for passage in PASSAGES]
    assert 0 < sum(holding) < len(PASSAGES)
    judge.judge([to_judge(EXAMPLE)])
    assert sum(read) == sum(holding)
    [none] = judge.judge([to_judge(replace(EXAMPLE, answers=("nowhere",)))])
    assert none == pytest.approx([math.log(1e-4)] * len(PASSAGES))
    assert sum(read) == sum(holding)


def test_a_reader_is_told_what_it_can_give(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot give attention") as caught:
        extractive(tmp_path, "attention")
    assert "attention comes from a generative model" in str(caught.value)
    with pytest.raises(ConfigError, match="mode 'rag-token'") as caught:
        generative("bart", "attention", mode="rag-token")
    assert "in mode fid" in str(caught.value)
    with pytest.raises(ConfigError, match="unknown signal 'entropy'"):
        extractive(tmp_path, "entropy")
    with pytest.raises(ConfigError, match="cannot give attention"):
        Judge.open("openai:http://localhost#m", "attention")


def test_regular_expressions_become_what_they_match_most(tmp_path: Path) -> None:
    example = replace(EXAMPLE, answers=(r"\d\d(\d\d)?",), answers_are_regex=True)
    assert to_judge(example).target_answer == "57"
    assert to_judge(replace(example, answers=("x+y",))).target_answer == ""


class Counting(Judge):
    """Says how long passages are; fails at one question."""

    def __init__(self, fails_at: str = "") -> None:
        self.signal, self.identity, self.fails_at = "likelihood", IDENTITY, fails_at

    def judge(self, asked: Sequence[Example]) -> list[Any]:
        if any(a.question == self.fails_at for a in asked):
            raise KeyboardInterrupt
        return [np.array([float(len(p.text)) for p in a.passages]) for a in asked]


def test_the_report_says_how_well_a_signal_tells_passages_with_an_answer(tmp_path: Path) -> None:
    """AUC by hand; questions whose passages all hold an answer, or none, do not count."""
    texts = ("57 meters", "57", "river", "57 m.")  # the signal is the length: 9, 2 and 5 against 5
    level = replace(EXAMPLE, candidates=tuple(Candidate(Passage(t, "", t), "retrieved") for t in texts))
    behind = replace(level, id="1", candidates=level.candidates[1:3])
    others = [
        replace(level, id="2", candidates=level.candidates[:1]),
        replace(level, id="3", answers=("Oslo",)),
    ]
    write_examples(tmp_path / "in.json", [level, behind, *others])
    report = score_examples(tmp_path / "in.json", tmp_path / "out.json", Counting())
    assert report.auc == (0.5 + 0.0) / 2
    assert "others of a question: 0.25" in "\n".join(report.lines())
    assert json.loads(report_path(tmp_path / "out.json").read_text())["auc"] == 0.25


def test_nothing_to_score_is_refused(tmp_path: Path) -> None:
    write_examples(tmp_path / "in.json", [replace(EXAMPLE, answers=())])
    with pytest.raises(DataError, match="no passage could be scored: questions: 1 without answers"):
        score_examples(tmp_path / "in.json", tmp_path / "out.json", Counting())
    with pytest.raises(ConfigError, match="would be overwritten"):
        score_examples(tmp_path / "in.json", tmp_path / "." / "in.json", Counting())


def test_the_command_scores_with_the_shipped_reader(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    passages = (
        Passage("1", "Oslo", "Oslo is the capital of Norway."),
        Passage("2", "Rome", "Rome is in Italy."),
    )
    example = Example(
        "q", "What is the capital of Norway?", ("Oslo",), tuple(Candidate(p, "retrieved") for p in passages)
    )
    write_examples(tmp_path / "in.json", [example])
    arguments = ["score", "--examples", str(tmp_path / "in.json"), "--out", str(tmp_path / "out.json")]
    assert exit_code(*arguments) == 0
    assert "2 passages scored by span-likelihood of" in capsys.readouterr().out
    [found] = read_examples(tmp_path / "out.json", needs="targets")
    right, wrong = (c.target for c in found.candidates)
    assert right is not None
    assert right > math.log(0.5)
    assert wrong == pytest.approx(math.log(1e-4), abs=1e-5)


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_command_scores_with_the_log_odds_of_a_cross_encoder(
    tiny: Any, tmp_path: Path, outputs: int
) -> None:
    torch.manual_seed(0)
    network = BertForSequenceClassification(BertConfig(**tiny.config(), num_labels=outputs)).eval()
    network.save_pretrained(tmp_path / "cross")
    tiny.tokenizer(tmp_path / "cross")
    examples = [EXAMPLE, replace(EXAMPLE, id="other", question="who wrote the tower", answers=())]
    write_examples(tmp_path / "in.json", examples)
    arguments = ["score", "--examples", str(tmp_path / "in.json"), "--out", str(tmp_path / "out.json")]
    arguments += ["--signal", "relevance", "--reader", str(tmp_path / "cross"), "--precision", "fp32"]
    assert exit_code(*arguments) == 0
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "cross")
    targets, wanted = [], []
    for example in read_examples(tmp_path / "out.json", needs="targets"):
        for candidate in example.candidates:
            text = f"{candidate.passage.title} {candidate.passage.text}".strip()
            pair = tokenizer(
                example.question, text, truncation="only_second", max_length=64, return_tensors="pt"
            )
            with torch.no_grad():
                logits = network(**pair).logits[0]
            wanted.append(float(logits[-1] - (logits[0] if outputs == 2 else 0)))
            targets.append(candidate.target)
    assert len(wanted) == 2 * len(PASSAGES)
    assert np.std(wanted) > 0.05
    np.testing.assert_allclose(targets, wanted, atol=1e-4)
