"""Answers as everybody gets them."""

import json

from rag.core.types import Answer, AnswerSet, Evidence


def _answer_set(confidence: float, none: float) -> AnswerSet:
    evidence = Evidence("p1", "Danube", "It rises in Germany.", 12, 19, 1.5)
    answer = Answer("Germany", 3.0, confidence, evidence)
    return AnswerSet("Where?", (answer,), none, "abc123", {"total": 1.23456})


def test_answer_set_has_the_public_shape_and_compares_with_no_answer() -> None:
    assert _answer_set(0.6, 0.4).is_answered
    assert not _answer_set(0.3, 0.7).is_answered
    assert not _answer_set(0.1, 0.46).is_answered
    assert not AnswerSet("q", (), 0.0, "v", {}).is_answered
    shape = _answer_set(0.75, 0.25).to_json()
    assert json.loads(json.dumps(shape)) == {
        "question": "Where?",
        "answers": [
            {
                "text": "Germany",
                "score": 3.0,
                "confidence": 0.75,
                "evidence": {
                    "passage_id": "p1",
                    "title": "Danube",
                    "text": "It rises in Germany.",
                    "start": 12,
                    "end": 19,
                    "score": 1.5,
                },
            }
        ],
        "no_answer_confidence": 0.25,
        "index_version": "abc123",
        "certainty": "likely",
        "timings_ms": {"total": 1.235},
    }
