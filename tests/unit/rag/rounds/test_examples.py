"""Signals of readers against transformers' plain forward passes of single passages; rules over
rankings.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from rag.core.errors import ConfigError, DataError
from rag.core.types import Passage
from rag.data.examples import Candidate, Example, read_examples, write_examples
from rag.rounds.examples import score_examples, to_judge
from rag.rounds.guidance import guided_examples
from rag.rounds.judges import Judge, open_judge
from readers.extractive.model import SpanModel
from readers.extractive.reader import ExtractiveReader
from readers.extractive.settings import ReaderSettings
from readers.generative.model import Seq2Seq
from readers.generative.reader import GenerativeReader
from readers.generative.settings import GeneratorSettings
from retrievers.negatives.settings import GuidanceSettings
from tests.commands import run_successfully
from tests.support.messages import refusal
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


def retrieved(question: str, answer: str, passages: Sequence[Passage]) -> Example:
    candidates = tuple(Candidate(passage, "retrieved") for passage in passages)
    return Example("q", question, (answer,), candidates)


EXAMPLE = retrieved("how many meters has the tower", "57", PASSAGES)


def generative(kind: str, signal: str, **settings: Any) -> Judge:
    model = Seq2Seq(tiny_seq2seq(kind), tiny_tokenizer())
    reader = GenerativeReader(model, GeneratorSettings(passage_tokens=48, **settings))
    return Judge(reader, signal, IDENTITY)


def extractive(tmp_path: Path, signal: str, **settings: Any) -> Judge:
    given = ReaderSettings(question_tokens=16, title_tokens=8, **{"max_tokens": 48, **settings})
    model = SpanModel.from_encoder(tiny_encoder(tmp_path / "encoder"))
    torch.nn.init.normal_(model.qa_outputs.weight, std=0.5)
    return Judge(ExtractiveReader(model, tiny_tokenizer(), given), signal, IDENTITY)


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
    judged = to_judge(EXAMPLE)
    alone = [-float(forward(model, [p]).loss) for p in PASSAGES]
    assert generative(kind, "likelihood").judge([judged])[0] == pytest.approx(alone, rel=1e-3)
    # first token: log-probabilities are scores up to a constant a head, the same for all passages
    weights = forward(model.double(), PASSAGES, output_attentions=True).cross_attentions
    scores = torch.stack(weights)[:, 0, :, 0].log().mean((0, 1))  # (S,) of layers and heads
    parts = [float(part.mean()) for part in scores.split([len(row(p)) for p in PASSAGES])]
    result = generative(kind, "attention").judge([judged])[0]
    assert result - result[0] == pytest.approx([part - parts[0] for part in parts], abs=2e-3)


@pytest.mark.parametrize("max_tokens", [48, 38])
def test_span_likelihood_equals_a_loop_over_spans(tmp_path: Path, max_tokens: int) -> None:
    """Also where a passage needs two windows, which share the softmax."""
    judge = extractive(tmp_path, "span-likelihood", max_tokens=max_tokens, stride_tokens=4)
    [result] = judge.judge([to_judge(EXAMPLE)])
    reader = judge.model
    tokenizer = tiny_tokenizer()
    windows = 0
    for passage, value in zip(PASSAGES, result, strict=True):
        text = tokenizer(passage.text, add_special_tokens=False)["input_ids"]
        answer = tokenizer("57", add_special_tokens=False)["input_ids"]
        question, title = (
            tokenizer(t, add_special_tokens=False)["input_ids"]
            for t in (EXAMPLE.question, passage.title)
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
            start = logits.start[0].double().exp()
            end = logits.end[0].double().exp()
            kept = [0, *range(len(head), len(head) + len(chunk))]
            starts += float(start[kept].sum())
            ends += float(end[kept].sum())
            for at in range(len(chunk) - len(answer) + 1):
                if chunk[at : at + len(answer)] == answer:
                    right += float(start[len(head) + at] * end[len(head) + at + len(answer) - 1])
        assert value == pytest.approx(math.log(right / (starts * ends) + 1e-4), abs=1e-5)
    assert windows == (1 if max_tokens == 48 else 2)
    assert result[1] == result[2] == pytest.approx(math.log(1e-4))  # the answer is not there


def test_what_two_expressions_match_counts_once(tmp_path: Path) -> None:
    judge = extractive(tmp_path, "span-likelihood")
    one, several = (
        replace(EXAMPLE, answers=answers, answer_profile="trec_search")
        for answers in (("57",), ("57", "5.", "57|58"))
    )
    alone, together = judge.judge([one, several])
    assert together.tolist() == alone.tolist()
    passages = retrieved("which?", "", [Passage("1", "", "58 58 58 57 57")])
    said = replace(passages, answers=("57", "57|58"), answer_profile="trec_search")
    assert to_judge(said).target_answer == "58"


def test_the_target_of_a_file_is_the_answer_that_is_judged() -> None:
    example = replace(EXAMPLE, answers=("57", "57 meters"), target_answer="57 meters")
    assert to_judge(example).target_answer == "57 meters"
    expression = replace(example, answers=(r"\d+",), answer_profile="trec_search")
    assert to_judge(expression).target_answer == "57 meters"


def test_a_reader_that_cannot_give_a_signal_is_refused() -> None:
    for source in (None, "openai:http://x/v1#m"):
        with refusal(ConfigError):
            open_judge(source, "attention")


def test_nothing_to_score_is_refused(tmp_path: Path) -> None:
    write_examples(tmp_path / "in.json", [replace(EXAMPLE, answers=())])
    judge = extractive(tmp_path, "span-likelihood")
    with refusal(DataError):
        score_examples(tmp_path / "in.json", tmp_path / "out.json", judge)
    with refusal(ConfigError):
        score_examples(tmp_path / "in.json", tmp_path / "." / "in.json", judge)
    write_examples(tmp_path / "in.json", [EXAMPLE])
    torch.nn.init.constant_(judge.model.model.qa_outputs.weight, math.nan)
    with refusal(DataError):
        score_examples(tmp_path / "in.json", tmp_path / "out.json", judge)


def test_the_command_scores_with_the_shipped_reader(tmp_path: Path) -> None:
    source = tmp_path / "in.json"
    out = tmp_path / "out.json"
    passages = [
        Passage("1", "Oslo", "Oslo is the capital of Norway."),
        Passage("2", "Rome", "Rome is in Italy."),
    ]
    write_examples(source, [retrieved("What is the capital of Norway?", "Oslo", passages)])
    printed = run_successfully("score", "--examples", source, "--out", out)
    assert "passages 2, questions 1" in printed
    [result] = read_examples(out, needs="targets")
    right, wrong = (c.target for c in result.candidates)
    assert right > math.log(0.5)
    assert wrong == pytest.approx(math.log(1e-4), abs=1e-5)


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_cross_encoder_scores_with_its_log_odds(tiny: Any, tmp_path: Path, outputs: int) -> None:
    torch.manual_seed(0)
    network = BertForSequenceClassification(BertConfig(**tiny.config(), num_labels=outputs)).eval()
    network.save_pretrained(tmp_path / "cross")
    tiny.tokenizer(tmp_path / "cross")
    judge = open_judge(str(tmp_path / "cross"), "relevance", precision="fp32")
    actual = judge.judge([to_judge(EXAMPLE), to_judge(replace(EXAMPLE, answers=()))])
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "cross")
    expected = []
    for passage in PASSAGES:
        text = f"{passage.title} {passage.text}".strip()
        pair = tokenizer(
            EXAMPLE.question, text, truncation="only_second", max_length=64, return_tensors="pt"
        )
        with torch.no_grad():
            logits = network(**pair).logits[0]
        expected.append(float(logits[-1] - (logits[0] if outputs == 2 else 0)))
    assert len(actual) == 2
    for values in actual:
        assert values == pytest.approx(expected, abs=1e-4)
    with refusal(ConfigError):
        open_judge(None, "relevance")


def ranked(holding: set[int], depth: int = 40) -> Example:
    words = ["danube" if number in holding else "" for number in range(depth)]
    passages = [Passage(str(n), "", f"text {n} {word}") for n, word in enumerate(words)]
    return retrieved("which?", "Danube", passages)


def positives(rules: str, holding: set[int]) -> list[str]:
    made = list(guided_examples([ranked(holding)], GuidanceSettings(positives=rules), Counter()))
    assert [example.id for example in made] == [
        f"q#{n + 1}" if n else "q" for n in range(len(made))
    ]
    assert all({p.id for p in e.positives} == {e.positives[0].id for e in made} for e in made)
    return [example.positives[0].id for example in made]


@pytest.mark.parametrize(
    ("rules", "holding", "taken"),
    [
        ("3,10", {1, 4, 8, 9, 20}, ["1", "4", "8"]),
        ("3,5", {1, 4, 8}, ["1", "4"]),
        ("1,5 1,30", {20, 25}, ["20"]),  # rules are joined by or
        ("2,5 1,30", {1, 20}, ["1"]),
        ("3,10", {20}, []),
    ],
)
def test_rules_of_depth(rules: str, holding: set[int], taken: list[str]) -> None:
    assert positives(rules, holding) == taken


def test_negatives_hold_no_answer_and_a_share_is_near() -> None:
    settings = GuidanceSettings(positives="1,40", negatives=40)
    depth = 1200
    holding = {3, 5, 35}
    (made,) = guided_examples([ranked(holding, depth)], settings, Counter())
    drawn = [int(negative.passage.id) for negative in made.negatives]
    assert drawn == sorted(drawn)
    assert len(drawn) == 40
    assert not holding & set(drawn)
    assert max(drawn) < 1000
    assert 20 <= sum(place < 100 for place in drawn) < 32  # half, and a tenth of the others
    assert list(guided_examples([ranked(holding, depth)], settings, Counter())) == [made]


def test_expressions_and_questions_nothing_answers_are_told_and_counted() -> None:
    counts: Counter[str] = Counter()
    found = ranked({2})
    pattern = replace(found, answer_profile="trec_search")
    examples = [
        replace(pattern, answers=("danx[au]be",)),
        replace(pattern, answers=("dan[au",)),
        replace(found, answers=("yes",)),
        replace(found, answers=()),
        replace(pattern, answers=("danub[ae]",)),
    ]
    settings = GuidanceSettings(positives="1,40", negatives=3)
    (made,) = guided_examples(examples, settings, counts)
    assert made.answers == examples[-1].answers
    assert counts == {
        "questions": 5,
        "without answers": 2,
        "no passage holds an answer": 2,
        "positives": 1,
        "negatives": 3,
    }
