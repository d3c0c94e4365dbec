"""Models given in memory, several threads, and how answers look in a notebook."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexers.protocols import EncoderIdentity
from rag.core.errors import ConfigError, MismatchedArtifactError, RetrievalError
from rag.core.types import Answer, AnswerSet, Hit, Query
from rag.pipeline import Pipeline
from readers.protocols import Reader, ReadRequest
from tests.pipeline_parts import MadeRetriever
from tests.support.messages import refusal

TEXTS = ["the danube rises in the black forest", "who wrote the river", "in the title text"]


def everything(questions: Sequence[str], top_k: int) -> list[list[Hit]]:
    """Every passage for each question, in the order of the index."""
    return [[Hit(row, str(row), -row) for row in range(len(TEXTS))][:top_k] for _ in questions]


class _EncoderOfMine:
    """A researcher's own encoder: letters of a text, counted."""

    dim = 26
    identity = EncoderIdentity("mine", "0" * 64, dim=26)

    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Any:
        counts = [[text.count(chr(97 + n)) for n in range(26)] for text in texts]
        return np.array(counts, np.float32)

    def encode_queries(self, queries: Sequence[Query]) -> Any:
        return self.encode_passages([], [query.question for query in queries])


def test_own_objects_that_meet_a_protocol_are_taken(tmp_path: Path) -> None:
    encoder = _EncoderOfMine()
    reader = _CountingReader()
    with Pipeline.from_texts(TEXTS, out=tmp_path / "i", encoder=encoder, reader=reader) as pipeline:
        assert pipeline.retrieve("title title text", 1)[0][1].text == TEXTS[2]
    mine = MadeRetriever(everything)
    with Pipeline.open(tmp_path / "i", retriever=mine, reader=reader) as own:
        assert [hit.passage_id for hit, _ in own.retrieve("x", 3)] == ["0", "1", "2"]
        assert own.ask("who wrote it").answers[0].text == "who"
    with Pipeline.open(
        tmp_path / "i", retriever="dense", index_encoder=encoder, reader=False
    ) as again:
        assert again.retrieve("title title text", 1)[0][1].text == TEXTS[2]


@pytest.mark.parametrize(
    "setting",
    [
        {"retriever": 5},
        {"retriever": "sparse"},
        {"fusion": "max"},
        {"rerank": "reader,deep=2"},
        {"read": 5},
    ],
)
def test_wrong_settings_are_refused_before_anything_is_opened(setting: dict[str, Any]) -> None:
    with refusal(ConfigError):
        Pipeline.open("nowhere", **setting)


MISTAKES = {
    "list lost": lambda lists: lists[:1],
    "list added": lambda lists: [*lists, []],
    "score of NaN": lambda lists: [[Hit(1, "1", math.nan)], lists[1]],
    "infinite score": lambda lists: [lists[0], [Hit(0, "0", math.inf)]],
    "id of another row": lambda lists: [[*lists[0][:1], Hit(2, "0", -1.0)], lists[1]],
    "row outside": lambda lists: [[Hit(7, "7", 1.0)], []],
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models") / "index"
    Pipeline.from_texts(TEXTS, out=place, retriever="bm25", reader=False).close()
    return place


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_mistakes_of_ones_own_retriever_are_named(
    index: Path, mistake: Callable[[Any], Any]
) -> None:
    mine = MadeRetriever(lambda questions, top_k: mistake(everything(questions, top_k)))
    with Pipeline.open(index, retriever=mine, reader=_CountingReader()) as pipeline:
        for call in (pipeline.retrieve_many, pipeline.ask_many):
            with refusal(RetrievalError):
                call(["who?", "when?"])


def test_other_weights_and_other_objects_are_refused(
    tiny: Any, tiny_bert: Path, tmp_path: Path
) -> None:
    Pipeline.from_texts(TEXTS, out=tmp_path / "index", encoder=str(tiny_bert), reader=False).close()
    with refusal(MismatchedArtifactError):
        Pipeline.open(
            tmp_path / "index", reader=False, index_encoder=tiny.bert(tmp_path / "other", seed=9)
        )
    with refusal(ConfigError):
        Pipeline.from_texts(TEXTS, encoder=3, reader=False)


class _CountingReader(Reader):
    """Counts how many calls run at the same time."""

    name = "counting"

    def __init__(self) -> None:
        self.running = 0
        self.most = 0

    def read(self, requests: Sequence[ReadRequest], n_best: int = 5) -> list[AnswerSet]:
        self.running += 1
        self.most = max(self.most, self.running)
        time.sleep(0.01)
        self.running -= 1
        results = []
        for request in requests:
            answer = Answer(request.question[:3], 1.0, 0.9, request.evidence(0, (0, 3)))
            results.append(AnswerSet(request.question, (answer,), 0.1))
        return results


def test_eight_threads_get_the_answers_of_one() -> None:
    reader = _CountingReader()
    pipeline = Pipeline.from_texts(TEXTS, retriever="hybrid", reader=reader)
    questions = [
        f"{word} {n}"
        for n, word in enumerate(
            ["danube", "river", "forest", "title", "text", "black", "wrote", "who"]
        )
    ]
    expected = [pipeline.retrieve(question) for question in questions]
    answers = [pipeline.ask(question).answers[0].evidence.passage_id for question in questions]
    barrier = threading.Barrier(8)

    def ask(number: int) -> tuple[Any, str]:
        barrier.wait()
        question = questions[number]
        return pipeline.retrieve(question), pipeline.ask(question).answers[0].evidence.passage_id

    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            assert list(pool.map(ask, range(8))) == list(zip(expected, answers, strict=True))
    assert reader.most == 1
    asked = threading.Thread(target=pipeline.ask_many, args=(questions * 20,))
    asked.start()
    pipeline.close()  # waits for what runs
    asked.join()
    assert repr(pipeline) == "Pipeline(closed)"
