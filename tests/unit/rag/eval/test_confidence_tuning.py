"""A reader's confidence is fitted to a corpus from a few questions."""

from collections.abc import Sequence

import numpy as np
import pytest

from rag.core.errors import ConfigError, DataError
from rag.core.log import Timer
from rag.core.types import Answer, AnswerSet, Hit, Passage, Question, SearchResult
from rag.eval.confidence_tuning import tune_confidence
from rag.eval.settings import EvaluationSettings
from readers.confidence import AnswerFeatures, Ranked, Span, likelihoods
from readers.manifest import Calibration
from readers.protocols import Reader, ReadRequest
from tests.support.messages import refusal

OLD = Calibration(right=(0.0, 1.0, 0.5, 0.0, 0.0), absent=(0.2, -0.3, 0.0), temperature=2.0)
SETTINGS = EvaluationSettings()


class Corpus(Reader):
    """Answers with confidences that are wrong by a shift of the logit, for questions named by
    number.
    """

    def __init__(self, n: int, shift: float) -> None:
        self.identity = {"index_version": "v"}
        draw = np.random.default_rng(3)
        logits = draw.normal(0.0, 2.0, n)
        self.right = draw.random(n) < 1 / (1 + np.exp(-logits))
        self.empty = ~self.right & (draw.random(n) < 0.5)
        self.shown = 1 / (1 + np.exp(-logits + shift))
        self.questions = [
            Question(str(k), str(k), answers=() if self.empty[k] else ("yellow",)) for k in range(n)
        ]

    @property
    def reader(self) -> Reader:
        return self

    def search(
        self, queries: Sequence[str], top_k: int, *, timer: Timer = None
    ) -> list[SearchResult]:
        result = [(Hit(0, "p", 1.0), Passage("p", "", "yellow and blue"))]
        return [SearchResult(query, result, [result]) for query in queries]

    def read(self, requests: Sequence[ReadRequest], n_best: int = 5) -> list[AnswerSet]:
        # Paths come with the passages, as they do when people ask.
        assert [len(request.paths) for request in requests] == [1] * len(requests)
        results = []
        for request in requests:
            k = int(request.question)
            text = "yellow" if self.right[k] else "blue"
            answer = Answer(text, 1.0, float(self.shown[k]), request.evidence(0, (0, 4)))
            results.append(AnswerSet(str(k), (answer,), 1 - float(self.shown[k])))
        return results


def test_a_confidence_that_is_too_modest_is_put_right() -> None:
    corpus = Corpus(400, shift=2.0)
    tuning = tune_confidence(corpus, corpus.questions, OLD, SETTINGS)
    assert tuning.unanswerable == corpus.empty.sum()
    assert tuning.ece_after < 0.6 * tuning.ece_before
    # Half of the answers, given from 0.5 on, are surely better than all.
    assert tuning.curve[0].right == pytest.approx(corpus.right.mean())
    assert tuning.curve[5].right > tuning.curve[0].right + 0.1
    assert tuning.curve[0].refused == 0
    assert tuning.curve[5].refused > 0.5
    right = Corpus(400, shift=0.0)
    assert tune_confidence(right, right.questions, OLD, SETTINGS).fitted.right == pytest.approx(
        OLD.right, abs=0.35
    )


def test_the_fitted_calibration_shifts_the_readers_own_confidence() -> None:
    corpus = Corpus(60, shift=2.0)
    new = tune_confidence(corpus, corpus.questions, OLD, SETTINGS).fitted
    answers = [Span("x", 1.0, 0, (0, 1)), Span("y", 0.0, 0, (2, 3))]
    ranked = Ranked(answers, 0.5, AnswerFeatures(1.0, 0.5, 0.0, 0.7, 0.2))
    (before, *_), _ = likelihoods(ranked, OLD)
    (after, *_), _ = likelihoods(ranked, new)
    slope = new.right[1] / OLD.right[1]
    assert np.log(after / (1 - after)) == pytest.approx(
        slope * np.log(before / (1 - before)) + new.right[0], abs=1e-3
    )


def test_no_answer_is_not_fitted_to_questions_that_all_have_one() -> None:
    corpus = Corpus(60, shift=2.0)
    corpus.empty[:] = False
    questions = [Question(item.id, item.text, ("yellow",)) for item in corpus.questions]
    tuning = tune_confidence(corpus, questions, OLD, SETTINGS)
    assert (tuning.unanswerable, tuning.fitted.absent) == (0, OLD.absent)
    assert tuning.fitted.right != OLD.right


def test_what_cannot_be_fitted_is_refused() -> None:
    corpus = Corpus(12, shift=0.0)
    with refusal(ConfigError):
        tune_confidence(corpus, corpus.questions, Calibration(), SETTINGS)
    with refusal(DataError):
        tune_confidence(corpus, corpus.questions[:9], OLD, SETTINGS)
