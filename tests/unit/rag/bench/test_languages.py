import json
from pathlib import Path

import pytest

from rag.bench.languages import run_languages_benchmark
from rag.core.errors import DataError
from tests.support.messages import refusal


def squad(id: str, question: str, context: str) -> str:
    answers = {"text": ["x"], "answer_start": [0]}
    return json.dumps({"id": id, "question": question, "context": context, "answers": answers})


def test_questions_are_searched_in_their_language_among_all_passages(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    rows = [
        ("de-1", "Welches Haus?", "Die Häuser am Rand."),
        ("de-2", "Welcher Fluss?", "Viele Flüsse der Alpen."),
        ("fr-1", "quel cheval", "Les chevaux de la France."),
        ("xx-1", "who", "A passage in no known language."),
    ]
    path.write_text("\n".join(squad(*row) for row in rows))
    report = run_languages_benchmark(path)
    assert list(report.rows) == ["de", "fr", "all"]
    assert report.title.startswith("MRR in the first 100 of 3 passages")
    whole = report.rows["all"]
    assert whole["questions"] == "3"
    assert (whole["English words"].value, whole["own words"].value) == (0.0, 100.0)
    assert whole["over English words"].value == pytest.approx(100)
    # Translations are no further questions: copies of a language change no interval.
    alone = [row for row in rows if row[0].startswith("de")]
    copied = [*alone, *((f"nl-{id[3:]}", question, context) for id, question, context in alone)]
    widths = []
    for given in (alone * 1, copied):
        path.write_text("\n".join(squad(*row) for row in given))
        interval = run_languages_benchmark(path).rows["all"]["English words"]
        widths.append((interval.low, interval.high))
    assert widths[0] == widths[1]
    path.write_text(squad(*rows[-1]))
    with refusal(DataError):
        run_languages_benchmark(path)
