"""Paths read as one text: borders, evidence in its own passage, supporting sentences, and learning them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import BertModel

from rag.config import load_config
from rag.core.types import AnswerSet, Hit, Passage
from rag.data.sentences import Spans
from readers.extractive.model import SpanModel
from readers.extractive.reader import ExtractiveReader
from readers.extractive.settings import ReaderSettings
from readers.paths import join_path, read_answers, with_paths
from readers.protocols import ReadAnswer, ReadResult
from readers.training.config import ReaderTrainConfig
from readers.training.recipe import train_reader
from tests.tiny_reader import tiny_config, tiny_encoder, tiny_tokenizer

DANUBE = Passage("d", "Danube", "The Danube is long. It rises in Germany.")
GERMANY = Passage("g", "Germany", "A state in Europe. Its capital is Berlin.")
ULM = Passage("u", "Ulm", "A city on the Danube.")


class Scripted:
    """Answers with given words of the first text it is shown; says which sentences support it."""

    reads_paths = True

    def __init__(self, answer: str) -> None:
        self.answer, self.shown = answer, [[""]]

    def read(
        self, questions: Sequence[str], passages: Sequence[Sequence[Passage]], scores: Any, n_best: int = 5
    ) -> list[ReadResult]:
        self.shown = [[passage.text for passage in found] for found in passages]
        results = []
        for found in passages:
            start = found[0].text.index(self.answer)
            answer = ReadAnswer(self.answer, 1.0, 0.9, 0, start, start + len(self.answer))
            results.append(ReadResult((answer,), 0.1))
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
    [found] = read_answers(reader, ["q"], [steps(DANUBE, GERMANY, ULM)], [paths], 5, "v")
    return found


def test_an_answer_of_a_joined_path_stands_in_its_own_passage() -> None:
    reader = Scripted("Berlin")
    paths = [steps(DANUBE, GERMANY), steps(DANUBE, ULM)]
    found = answer(reader, paths)
    assert len(reader.shown[0]) == 1  # a second path would make four passages, and three are asked for
    evidence = found.answers[0].evidence
    assert evidence.passage_id == "g"
    assert GERMANY.text[slice(evidence.start, evidence.end)] == "Berlin"
    lit = [[step.text[s:e] for s, e in step.supporting] for step in found.answers[0].path]
    assert lit == [["It rises in Germany."], ["A state in Europe."]]  # of each its best, and those above 0
    assert with_paths(found, paths) == found


def test_words_of_a_title_are_found_in_a_text() -> None:
    found = answer(Scripted("Germany |"), [steps(DANUBE, GERMANY)])
    assert found.answers[0].evidence.start is None
    found = answer(Scripted("Ulm"), [steps(GERMANY, ULM)])
    assert (found.answers[0].evidence.passage_id, found.answers[0].evidence.start) == ("u", None)


def test_single_passages_are_read_as_ever() -> None:
    reader = Scripted("Danube")
    found = answer(reader, [steps(DANUBE), steps(ULM)])
    assert reader.shown == [[DANUBE.text, GERMANY.text, ULM.text]]
    assert found.answers[0].path == ()
    reader.reads_paths = False
    answer(reader, [steps(DANUBE, GERMANY)])
    assert reader.shown == [[DANUBE.text, GERMANY.text, ULM.text]]


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
            "stages": [{"epochs": 30, "negatives": 1, "max_tokens": 120, "full_tokens": 120,
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
