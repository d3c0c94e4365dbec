"""A promise withholds answers, and is void where anything else than it was fitted on answers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rag.answering import AnswerOptions, Outcome
from rag.core.errors import ArtifactError
from rag.core.manifest import PROMISE_NAME
from rag.core.types import Answer, AnswerSet, Evidence, Promise, SearchResult
from rag.pipeline import Pipeline
from rag.policies import SearchOnce, State
from rag.promises import PromiseKeeper, StoredPromise
from readers.protocols import ReadRequest, TextSink
from tests.pipeline_parts import LastWordsReader
from tests.support.messages import refusal

CONDITIONS = {"index_version": "v1", "reader": "r", "encoder": {"name": "e"}, "top_k": 20}
CONFIDENCES = np.linspace(0.0, 1.0, 101)
PROMISE = Promise(0.1, 0.95, coverage=0.4, n=101, threshold=0.6)
STORED = StoredPromise.of(PROMISE, CONFIDENCES, CONDITIONS)


def outcome(confidence: float, **fields: Any) -> Outcome:
    evidence = Evidence("d", "", "In Ulm.", 3, 6, 1.0)
    shown = AnswerSet("Where?", (Answer("Ulm", 1.0, confidence, evidence),), 0.9, **fields)
    return Outcome(State("Where?", searches=(SearchResult("Where?", ()),)), shown, shown)


def kept(confidence: float, keeper: PromiseKeeper | None = None, **fields: Any) -> AnswerSet:
    keeper = keeper or PromiseKeeper(STORED)
    return keeper.keep(outcome(confidence, **fields), CONDITIONS).presented


@pytest.mark.parametrize(
    ("confidence", "certainty"), [(0.6, "likely"), (0.599, "none"), (0.1, "none"), (1.0, "likely")]
)
def test_the_threshold_alone_decides_whether_an_answer_is_given(
    confidence: float, certainty: str
) -> None:
    shown = kept(confidence)
    assert shown.to_json()["certainty"] == certainty
    assert shown.to_json()["promise"] == PROMISE.to_json()


@pytest.mark.parametrize("fields", [{"kind": "list"}, {"kind": "passage"}, {"failure": "HTTP 500"}])
def test_what_is_no_short_answer_is_not_covered(fields: dict[str, str]) -> None:
    shown = kept(0.9, **fields)
    assert (shown.promise, shown.notice) == (None, "")
    assert "promise" not in shown.to_json()


def test_other_conditions_void_the_promise_by_name() -> None:
    changed = {**CONDITIONS, "reader": "other", "effort": "full", "encoder": {"name": "f"}}
    presented = PromiseKeeper(STORED).keep(outcome(0.5), changed).presented
    assert presented.promise is None
    assert presented.notice.endswith("other values of effort, encoder, reader")


@pytest.mark.parametrize("compares", [True, False])
def test_a_promise_is_void_where_comparisons_are_answered_in_another_way(compares: bool) -> None:
    pipeline = Pipeline.from_texts(["Ulm."], retriever="bm25", reader=LastWordsReader())
    usual = pipeline.conditions(AnswerOptions())
    assert type("Other", (SearchOnce,), {})().identity != usual["policy"]
    keeper = PromiseKeeper(StoredPromise.of(PROMISE, CONFIDENCES, usual))
    asked = AnswerOptions(policy=SearchOnce(compares=compares))
    shown = keeper.keep(outcome(0.9), pipeline.conditions(asked)).presented
    assert (shown.promise is None) == (not compares)
    assert shown.notice.endswith("other values of policy") == (not compares)


def test_confidences_that_leave_the_fitted_range_are_noticed() -> None:
    keeper = PromiseKeeper(STORED)
    draw = np.random.default_rng(1)
    assert not any(kept(value, keeper).notice for value in draw.random(400).tolist())
    notices = [kept(0.99, keeper).notice for _ in range(60)]
    assert "of the last 200 confidences leave the range" in notices[-1]
    again = [kept(value, keeper).notice for value in draw.random(400).tolist()]
    assert again[0]
    assert not again[-1]


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", json.dumps({**STORED.model_dump(), "promise": {"n": 1}})]
)
def test_a_stored_promise_is_read_again_and_a_damaged_one_refused(
    content: str, tmp_path: Path
) -> None:
    path = tmp_path / PROMISE_NAME
    assert PromiseKeeper.open(path) is None
    STORED.write(path)
    assert StoredPromise.model_validate_json(path.read_text()) == STORED
    path.write_text(content)
    with refusal(ArtifactError):
        PromiseKeeper.open(path)


def test_an_answer_that_may_be_withheld_is_not_said_as_it_comes(tmp_path: Path) -> None:
    class Speaks(LastWordsReader):
        def stream(self, request: ReadRequest, on_text: TextSink, n_best: int = 5) -> AnswerSet:
            on_text("said")
            return super().stream(request, on_text, n_best)

    said = list[str]()
    index = tmp_path / "index"
    Pipeline.from_texts(["The Danube rises in Ulm."], out=index, retriever="bm25", reader=False)
    for promised in (False, True):
        if promised:
            STORED.write(index / PROMISE_NAME)
        with Pipeline.open(index, reader=Speaks()) as pipeline:
            pipeline.ask("Where does the Danube rise?", on_text=said.append)
    assert said == ["said"]
