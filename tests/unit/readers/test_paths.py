"""Paths read as one text: borders, evidence in its own passage, supporting sentences, and learning them."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import BertModel

from rag.cli.show import format_answer_set
from rag.config import load_config
from rag.core.types import AnswerSet, FirstStage, Hit, Passage
from rag.data.sentences import Spans
from readers.extractive.model import SpanModel
from readers.extractive.reader import ExtractiveReader
from readers.extractive.settings import Effort, ReaderSettings
from readers.extractive.training.config import ReaderTrainConfig
from readers.extractive.training.recipe import train_reader
from readers.manifest import with_overrides
from readers.paths import join_path, read_answers, search_scores, with_paths
from readers.protocols import Citation, ReadAnswer, ReadResult
from tests.tiny_reader import tiny_config, tiny_encoder, tiny_tokenizer

DANUBE = Passage("d", "Danube", "The Danube is long. It rises in Germany.")
GERMANY = Passage("g", "Germany", "A state in Europe. Its capital is Berlin.")
ULM = Passage("u", "Ulm", "A city on the Danube.")


class Scripted:
    """Answers with given words wherever they stand; says which sentences support it."""

    reads_paths = True

    def __init__(self, answer: str) -> None:
        self.answer, self.calls = answer, list[tuple[list[str], Any, bool]]()

    def read(
        self,
        questions: Sequence[str],
        passages: Sequence[Sequence[Passage]],
        scores: Any,
        n_best: int = 5,
        *,
        from_paths: bool = False,
    ) -> list[ReadResult]:
        self.calls.append(([passage.id for passage in passages[0]], scores, from_paths))
        results = []
        for found in passages:
            places = [(n, p.text.index(self.answer)) for n, p in enumerate(found) if self.answer in p.text]
            answers = [ReadAnswer(self.answer, 1.0, 0.9, n, at, at + len(self.answer)) for n, at in places]
            results.append(ReadResult(tuple(answers), 0.1))
        return results

    def support(
        self, questions: Sequence[str], passages: Sequence[Passage], sentences: Sequence[Spans]
    ) -> list[npt.NDArray[np.float32]]:
        return [
            np.array([1.0 if "rises" in p.text[s:e] else -1.0 - s for s, e in spans], np.float32)
            for p, spans in zip(passages, sentences, strict=True)
        ]


def steps(*passages: Passage) -> list[tuple[Hit, Passage]]:
    return [(Hit(n, passage.id, 1.0 - n / 10), passage) for n, passage in enumerate(passages)]


def answer(reader: Any, paths: list[list[tuple[Hit, Passage]]]) -> AnswerSet:
    [found] = read_answers(reader, ["Of the Danube?"], [steps(DANUBE, GERMANY, ULM)], [paths], 5, "v")
    return found


def test_a_reader_marks_the_sentences_of_the_path_that_its_answer_is_on() -> None:
    paths = [steps(DANUBE), steps(DANUBE, ULM), steps(DANUBE, GERMANY)]
    found = answer(Scripted("Berlin"), paths)
    evidence = found.answers[0].evidence
    assert GERMANY.text[slice(evidence.start, evidence.end)] == "Berlin"
    lit = [[step.text[s:e] for s, e in step.supporting] for step in found.answers[0].path]
    assert lit == [["It rises in Germany."], ["A state in Europe."]]  # of each its best, and those above 0
    assert found.answers[0].path[1].start == evidence.start
    assert with_paths(found, paths) == found
    assert answer(Scripted("Berlin"), [steps(DANUBE, ULM)]).answers[0].path == ()  # it is on none


def test_passages_that_end_a_path_are_likelier_to_answer() -> None:
    reader = Scripted("Danube")
    answer(reader, [steps(DANUBE, ULM), steps(DANUBE, GERMANY)])
    assert reader.calls[0] == (["d", "g", "u"], [pytest.approx([-1.1, -np.log(2), 0.0])], True)
    found = answer(reader, [steps(DANUBE), steps(ULM)])
    assert reader.calls[1] == (["d", "g", "u"], [[1.0, 0.9, 0.8]], False)
    assert found.answers[0].path == ()
    both = [[steps(DANUBE, ULM)], []]
    mixed = read_answers(reader, ["p", "q"], [steps(DANUBE, ULM), steps(GERMANY, DANUBE)], both, 5, "v")
    assert [call[0] for call in reader.calls[2:]] == [["g", "d"], ["d", "u"]]  # a call for each kind
    assert [one.answers[0].evidence.passage_id for one in mixed] == ["d", "d"]
    assert [len(one.answers[0].path) for one in mixed] == [2, 0]


def test_the_order_of_paths_has_a_weight_of_its_own() -> None:
    torch.manual_seed(1)
    model = SpanModel(BertModel(tiny_config(), add_pooling_layer=False), torch.nn.Linear(32, 2)).eval()
    settings = ReaderSettings(max_tokens=128, question_tokens=16, path_weight=1000.0)
    reader = ExtractiveReader(model, tiny_tokenizer(), settings)
    for scores, first in (([0.0, -1.0], 0), ([-1.0, 0.0], 1)):
        [found] = reader.read(["where?"], [[ULM, GERMANY]], [scores], from_paths=True)
        assert found.answers[0].passage_index == first
    best = {reader.read(["where?"], [[ULM, GERMANY]], [s])[0].answers[0].text for s in ([0, -1], [-1, 0])}
    assert len(best) == 1  # without, this reader does not look at the order


def test_a_reader_that_counts_scores_in_gets_those_of_the_search() -> None:
    judged = Hit(0, "a", 7.5, FirstStage(2, 0.25))
    found = [(judged, Passage("a", "", "A text.")), (Hit(1, "b", 3.0), Passage("b", "", "Another."))]
    for weight, told in ((0.0, [7.5, 3.0]), (20.0, [0.25, 3.0])):
        reader = SimpleNamespace(settings=ReaderSettings(score_weight=weight))
        assert search_scores(reader, found) == told


def test_paths_are_read_by_an_effort_of_their_own() -> None:
    """An answer often stands in the last passage of a path: all are read, unless an effort is asked for."""
    less = {"efforts": {"low": Effort(waves=(1,))}, "effort": "low"}
    model = SpanModel(BertModel(tiny_config(), add_pooling_layer=False), torch.nn.Linear(32, 2)).eval()
    settings = with_overrides(ReaderSettings(max_tokens=128, question_tokens=16), less)
    given = (["where?"], [[ULM, GERMANY]], [[0.0, -1.0]])
    reader = ExtractiveReader(model, tiny_tokenizer(), settings)
    read = [reader.read(*given, from_paths=paths)[0].reading["passages"] for paths in (False, True)]
    assert read == [1, 2]
    assert ExtractiveReader.load().settings.path_effort == "full"
    asked = ExtractiveReader.load(effort="low")
    assert asked.settings.path_effort == "low"


def test_support_is_the_logit_at_the_end_of_the_sentence() -> None:
    torch.manual_seed(1)
    width = 32
    model = SpanModel(
        BertModel(tiny_config(), add_pooling_layer=False), torch.nn.Linear(width, 2),
        fact_head=torch.nn.Linear(width, 1),
    ).eval()  # fmt: skip
    reader = ExtractiveReader(model, tiny_tokenizer(), ReaderSettings(max_tokens=128, question_tokens=16))
    joined = join_path([ULM, GERMANY])
    spans = tuple(span for own in joined.sentences() for span in own)
    [found] = reader.support(["where?"], [joined.passage], [spans])
    tokens = [
        np.array(tiny_tokenizer()(text, add_special_tokens=False)["input_ids"], np.int32)
        for text in ("where?", "Ulm", joined.passage.text)
    ]
    [row] = reader.layout.rows(0, *tokens)
    ids = torch.from_numpy(row.ids)[None]
    types = (torch.arange(ids.shape[1]) >= row.types_from).long()[None]
    facts = model(ids, torch.ones_like(ids), types).facts[0].detach().numpy()
    offsets = tiny_tokenizer()(joined.passage.text, add_special_tokens=False, return_offsets_mapping=True)
    ends = [next(n for n, (_, end) in enumerate(offsets["offset_mapping"]) if end == e) for _, e in spans]
    assert found == pytest.approx(facts[[row.text_from + end for end in ends]], abs=1e-5)


def test_a_reader_learns_which_sentences_support(tmp_path: Path) -> None:
    """The number of the tower's river is in another passage; the sentence with a number supports."""
    draw = np.random.default_rng(0)
    records = []
    for n in range(80):
        number, place = str(draw.integers(10, 99)), int(draw.integers(2))
        lines = ["The river is near the city.", f"The river has {number} meters."]
        river = lines if place else lines[::-1]
        records.append({
            "_id": f"h{n}", "question": "how many meters has the river of the tower?", "answer": number,
            "supporting_facts": [["Tower", 0], ["River", place]],
            "context": [["Tower", ["The tower is in the river."]], ["River", river],
                        ["City", ["The city is in the forest."]], ["Castle", ["The castle was built."]]],
        })  # fmt: skip
    (tmp_path / "two.json").write_text(json.dumps(records))
    config = load_config(
        ReaderTrainConfig,
        overrides={
            "out": tmp_path / "run",
            "train": [{"questions": tmp_path / "two.json", "paths": True, "held_out": 0}],
            "model": {"encoder": str(tiny_encoder(tmp_path / "encoder")), "freeze_word_embeddings": False},
            "objective": {"spans": "marginal", "fact_weight": 3.0},
            "stages": [{"epochs": 60, "negatives": 1, "max_tokens": 120, "full_tokens": 120,
                        "tokens_per_batch": 2048}],
            "optim": {"learning_rate": 5e-3},
            "run": {"threads": 1},
        },
    )  # fmt: skip
    reader = ExtractiveReader.load(train_reader(config))
    assert reader.reads_paths
    tower = Passage("t", "Tower", "The tower is in the river.")
    river = Passage("r", "River", "The river has 42 meters. The river is near the city.")
    paths = [steps(tower, river)]
    [found] = read_answers(reader, [str(records[0]["question"])], paths, [paths], 1, "v")
    assert found.answers[0].text == "42"
    joined = join_path([tower, river])
    spans = tuple(span for own in joined.sentences() for span in own)
    [logits] = reader.support([str(records[0]["question"])], [joined.passage], [spans])
    assert logits[0] > 0
    assert logits[1] > logits[2] + 1


def test_citations_notes_and_failures_reach_the_answer() -> None:
    class Cites:
        def read(self, questions: Any, *_: Any, **__: Any) -> list[ReadResult]:
            cited = (Citation(1), Citation(0, 4, 10))
            answer = ReadAnswer("Danube", 1.0, 0.1, 1, citations=cited, is_supported=False, note="beware")
            return [ReadResult((answer,), 0.9), ReadResult((), 1.0, failure="HTTP 500")][: len(questions)]

    found = [steps(DANUBE, GERMANY)] * 2
    cites, fails = read_answers(Cites(), ["p", "q"], found, [(), ()], 5, "v")
    shown = cites.to_json()["answers"][0]
    assert [evidence["passage_id"] for evidence in shown["citations"]] == [GERMANY.id, DANUBE.id]
    assert (shown["citations"][1]["start"], shown["is_supported"], shown["note"]) == (4, False, "beware")
    assert fails.to_json()["failure"] == "HTTP 500"
    printed = format_answer_set(cites.to_json(), colour=False)
    assert f"also cited: {DANUBE.title}" in printed
    assert "beware: beware" in printed
    assert "not read: HTTP 500" in format_answer_set(fails.to_json(), colour=False)
