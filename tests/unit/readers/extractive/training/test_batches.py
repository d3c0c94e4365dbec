"""Sets become batches: crops keep an answer, types and roles are right; rows are as they are
read.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rag.core.errors import ConfigError, DataError
from readers.extractive.layout import row_tensors
from readers.extractive.model import SpanModel
from readers.extractive.reader import ExtractiveReader
from readers.extractive.settings import ReaderSettings
from readers.extractive.training.batches import ReaderBatch, ReaderBatches
from readers.extractive.training.config import ReaderStage, ReaderTrainConfig, TrainingSet
from readers.extractive.training.data import NO, SPAN, YES, load_examples, read_set
from tests.support.messages import refusal
from tests.tiny_reader import (
    tiny_encoder,
    tiny_roberta,
    tiny_roberta_tokenizer,
    tiny_squad,
    tiny_tokenizer,
)

TWO_HOPS = [
    {
        "_id": f"h{n}",
        "question": question,
        "answer": answer,
        "supporting_facts": [["Tower", 0], ["River", 0]],
        "context": [
            ["City", ["The city is near the harbour."]],
            ["Tower", ["The tower has 57 meters."]],
            ["River", ["The river is in the forest."]],
        ],
        "split": "train" if n < 3 else "dev",
    }
    for n, (question, answer) in enumerate(
        [
            ("how many meters?", "57"),
            ("is it near?", "yes"),
            ("was it built?", "no"),
            ("of the year?", "57"),
        ]
    )
]


def set_of(folder: Path, records: list[dict[str, Any]], **changes: Any) -> TrainingSet:
    path = folder / "set.json"
    path.write_text(json.dumps(records))
    return TrainingSet(questions=path, **{"held_out": 0, **changes})


def stage_of(**changes: Any) -> ReaderStage:
    usual = {
        "epochs": 1,
        "negatives": 2,
        "max_tokens": 48,
        "full_tokens": 64,
        "tokens_per_batch": 512,
    }
    return ReaderStage(**{**usual, **changes})


def batches_of(
    folder: Path, *sets: TrainingSet, tokenizer: Any = None, **changes: Any
) -> ReaderBatches:
    usual: dict[str, Any] = {"stages": (stage_of(),), "question_tokens": 24, "title_tokens": 6}
    config = ReaderTrainConfig(out=folder, train=sets, **{**usual, **changes})
    examples = [(item, read_set(item)) for item in config.train]
    loaded = load_examples(
        examples, tokenizer or tiny_tokenizer(), answer_types=config.answer_types
    )
    return ReaderBatches(loaded, config)


def spans_of(batch: ReaderBatch, group: int) -> list[str]:
    """The acceptable spans of a question as text; "yes" and "no" stand behind the tokens."""
    _, per_group, size = batch.allowed.shape
    length = batch.input_ids.shape[1]
    ids = batch.input_ids.reshape(-1, per_group, length)[group]
    texts = []
    for start, end, real in zip(
        batch.starts[group], batch.ends[group], batch.acceptable[group], strict=True
    ):
        if real:
            passage, first = divmod(int(start), size)
            last = int(end) % size
            shown = tiny_tokenizer().decode(ids[passage, first : last + 1]).replace(" ##", "")
            shown = shown.replace("##", "")
            texts.append(shown if first < length else ("<yes>", "<no>")[first - length])
    return texts


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> ReaderBatches:
    folder = tmp_path_factory.mktemp("squad")
    results = folder / "results.json"
    train = TrainingSet(
        questions=tiny_squad(folder / "train.json", 12, 0, results), retrieved=results
    )
    stages = (
        stage_of(epochs=1.5, negatives=0, max_tokens=42, full_fraction=0.3),
        stage_of(no_answer_fraction=0.4, max_tokens=42),
    )
    return batches_of(folder, train, stages=stages)


def test_every_answer_is_inside_its_window(batches: ReaderBatches) -> None:
    seen = 0
    for step in range(len(batches)):
        batch = batches[step]
        groups, per_group, length = batch.allowed.shape
        assert batch.input_ids.numel() <= 512
        for group in range(groups):
            start = int(batch.starts[group, 0])
            assert batch.allowed[group].reshape(-1)[start]
            if batch.has_answer[group]:
                assert spans_of(batch, group)[0].replace(" ", "").isdigit()
                assert batch.positive[group].tolist() == [True] + [False] * (per_group - 1)
                seen += 1
            else:
                assert batch.starts[group].tolist() == [p * length for p in range(per_group)]
                assert batch.acceptable[group].all()
                assert not batch.positive[group].any()
    assert seen > 50


def test_a_step_is_the_same_every_time(batches: ReaderBatches) -> None:
    last = len(batches) - 1
    first, again = batches[last], batches[last]
    assert torch.equal(first.input_ids, again.input_ids)
    assert torch.equal(first.starts, again.starts)


def test_yes_and_no_rest_on_the_gold_passages_without_a_span(tmp_path: Path) -> None:
    questions = set_of(tmp_path, TWO_HOPS, where={"split": "train"})
    batches = batches_of(tmp_path, questions, answer_types=True, spans="marginal")
    assert sorted(q.type for q in batches.examples.questions) == [SPAN, YES, NO]
    batch = batches[0]
    result = {tuple(spans_of(batch, group)): group for group in range(3)}
    assert set(result) == {("57",), ("<yes>",), ("<no>",)}
    group = result[("<yes>",)]
    assert batch.positive[group].tolist() == [True, False, False]
    # a step of a two-hop question that lacks the answer teaches that it does
    spans = result[("57",)]
    assert batch.positive[spans].tolist() == [True, False, False]
    plain = batches_of(tmp_path, questions, spans="marginal")
    assert [q.type for q in plain.examples.questions] == [SPAN]


def test_answers_alone_suffice_and_may_be_expressions(tmp_path: Path) -> None:
    texts = [
        "The tower has 57 meters, 57 of them.",
        "It was built in 1889.",
        "No number is in here.",
        "57 or 58",
    ]
    ctxs = [
        {"id": str(n), "title": "t", "text": text, "score": 9 - n} for n, text in enumerate(texts)
    ]
    records = [
        {"question": "how many meters?", "answers": [r"5\d"], "ctxs": ctxs, "answer_is_regex": True}
    ]
    questions = set_of(tmp_path, records)
    batch = batches_of(tmp_path, questions, spans="marginal")[0]
    assert sorted(spans_of(batch, 0)) in (["57", "57"], ["57", "58"])
    assert batch.positive[0].tolist() == [True, False, False]


def test_weights_mix_the_sets(tmp_path: Path) -> None:
    sets = [
        TrainingSet(questions=tiny_squad(tmp_path / f"{n}.json", 5, n), weight=weight, held_out=0)
        for n, weight in enumerate((0.5, 2.0, 0.0))
    ]
    batches = batches_of(tmp_path, *sets, stages=(stage_of(negatives=0),))
    drawn = torch.cat([torch.from_numpy(plan.questions) for plan in batches._plans])
    of_sets = torch.tensor([question.set for question in batches.examples.questions])
    assert torch.bincount(of_sets[drawn]).tolist() == [10, 40]
    with refusal(ConfigError):
        batches_of(tmp_path, sets[2])


def test_questions_nothing_answers_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gold = {"title": "t", "text": "the tower is 57 high"}
    records = [
        {"question": "how high?", "answers": ["57"], "positive_ctxs": [gold]},
        {"question": "how many?", "answers": ["58"], "positive_ctxs": [gold]},
        {"question": "how long?", "answers": [gold["text"] + " is"], "positive_ctxs": [gold]},
    ]
    questions = set_of(tmp_path, records)
    loaded = load_examples([(questions, read_set(questions))], tiny_tokenizer())
    assert len(loaded) == 1
    assert "2 of 3 questions left out" in caplog.text
    with refusal(DataError):
        load_examples([(questions, read_set(questions)[1:])], tiny_tokenizer())
    with refusal(DataError):
        read_set(questions.model_copy(update={"where": {"split": "train"}}))


def test_answers_that_are_too_long_do_not_count(tmp_path: Path) -> None:
    gold = {"title": "t", "text": "the tower near the river was built in 1889 of the year"}
    records = [
        {
            "question": "how?",
            "answers": ["built in 1889 of the year", "1889"],
            "positive_ctxs": [gold],
        },
        {"question": "when?", "answers": ["built in 1889 of the year"], "positive_ctxs": [gold]},
    ]
    questions = set_of(tmp_path, records, max_answer_words=2)
    [example] = read_set(questions)
    assert example.answers == ("1889",)
    batch = batches_of(tmp_path, questions, spans="marginal")[0]
    assert [spans_of(batch, group) for group in range(len(batch.has_answer))] == [["1889"]]
    squad = read_set(
        TrainingSet(questions=tiny_squad(tmp_path / "s.json", 2, 0), max_answer_words=1)
    )
    assert all(example.answer_starts for example in squad)


TEXT = "the tower in the city has 5 meters . the river near the castle has 5 meters . the bridge is old ."


def document(start: int | None = TEXT.rindex("5"), **more: Any) -> dict[str, Any]:
    answers = [] if start is None else [{"text": "5 meters", "start": start}]
    return {
        "question": "how many meters has the river",
        "context": TEXT,
        "answers": answers,
        **more,
    }


def test_the_annotated_place_decides_which_window_is_right(tmp_path: Path) -> None:
    [example] = read_set(set_of(tmp_path, [document()], window_words=8))
    # the first window has the same words in another place, and is left out; the second is longer,
    # not cut
    assert [(candidate.passage.text, candidate.role) for candidate in example.candidates] == [
        (
            ". the river near the castle has 5 meters",
            "positive",
        ),  # has most of the question's words
        (". the bridge is old .", "hard_negative"),
    ]
    [example] = read_set(set_of(tmp_path, [document(TEXT.index("5"))], window_words=7))
    [right] = example.of_role("positive")
    assert (
        right.passage.text == "the tower in the city has 5 meters"
    )  # a window does not cut the answer


def test_questions_without_answers_teach_that_nothing_is_there(tmp_path: Path) -> None:
    documents = [document(None, id=str(n)) for n in range(4)]
    with refusal(DataError):
        read_set(set_of(tmp_path, documents))
    questions = set_of(tmp_path, documents, unanswerable=True, window_words=7)
    batch = batches_of(tmp_path, questions, stages=(stage_of(negatives=1, full_tokens=48),))[0]
    assert batch.has_answer.tolist() == [False] * 4
    assert not batch.positive.any()
    size = batch.allowed.shape[-1]
    assert (
        batch.starts[batch.acceptable].reshape(4, 2).tolist() == [[0, size]] * 4
    )  # [CLS] of both rows


FAMILIES = {
    "bert": (tiny_encoder, tiny_tokenizer),
    "roberta": (tiny_roberta, tiny_roberta_tokenizer),
}


def rows_of(batch: ReaderBatch) -> dict[tuple[int, ...], tuple[list[int], list[bool]]]:
    """Segments, and where the text is, by the token ids of a row, without padding."""
    result = {}
    for ids, mask, types, allowed in zip(
        batch.input_ids,
        batch.attention_mask.bool(),
        batch.token_type_ids,
        batch.allowed[:, 0],
        strict=True,
    ):
        inside = allowed.clone()
        inside[0] = False  # "no answer here"
        result[tuple(ids[mask].tolist())] = types[mask].tolist(), inside[mask].tolist()
    return result


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_are_learnt_from_as_they_are_read(tmp_path: Path, family: str) -> None:
    encoder, make_tokenizer = FAMILIES[family]
    tokenizer = make_tokenizer()
    questions = TrainingSet(questions=tiny_squad(tmp_path / "train.json", 8, 0), held_out=0)
    stages = (stage_of(negatives=0, max_tokens=128, full_tokens=128),)
    batches = batches_of(
        tmp_path, questions, tokenizer=tokenizer, stages=stages, question_tokens=40
    )
    examples = read_set(questions)
    learnt: dict[tuple[int, ...], Any] = {}
    for step in range(len(batches)):
        learnt |= rows_of(batches[step])

    settings = ReaderSettings(max_tokens=128, question_tokens=40, title_tokens=6)
    model = SpanModel.from_encoder(encoder(tmp_path / "encoder"), seed=0)
    reader = ExtractiveReader(model, tokenizer, settings)
    read = reader.rows(
        [e.question for e in examples], [[e.candidates[0].passage] for e in examples]
    )
    ids, mask, types, text = row_tensors(reader.template, read.rows)
    expected = {
        tuple(i[m].tolist()): (t[m].tolist(), x[m].tolist())
        for i, m, t, x in zip(ids, mask.bool(), types, text, strict=True)
    }
    assert learnt == expected
    for example in examples:  # and as the tokenizer itself frames the pair
        passage = example.candidates[0].passage
        pair = tokenizer(example.question, passage.text, return_token_type_ids=True)
        title = tokenizer(passage.title, add_special_tokens=False)["input_ids"][:6]
        title.append(tokenizer.sep_token_id)
        head = len(pair["input_ids"]) - len(tokenizer(passage.text)["input_ids"]) + 1
        framed = (*pair["input_ids"][:head], *title, *pair["input_ids"][head:])
        kinds = pair["token_type_ids"]
        assert learnt[framed][0] == [*kinds[:head], *[kinds[head]] * len(title), *kinds[head:]]
