"""A promise is fitted to an index by a command, kept by its pipeline, and void for others."""

import shutil
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import rag
from rag.answering import AnswerOptions
from rag.cli.show import format_verdict
from rag.core.errors import DataError
from rag.core.types import Claim, Passage, Question
from rag.data.files.rows import write_json_lines
from rag.eval.promise_fitting import fit_verdict_promise, judge_answers, split_questions
from rag.eval.settings import EvaluationSettings
from rag.eval.systems import system_of
from rag.metrics.selective import Limits
from tests.api.fakes import KEY, application, listening, serving
from tests.commands import exit_code, run_command, run_successfully
from tests.support.messages import refusal
from tests.support.verifying import WordVerifier

RIVERS = {"Danube": "Sulina", "Rhine": "Rotterdam", "Elbe": "Cuxhaven", "Loire": "Nantes"}
PASSAGES = [
    Passage(river.lower(), river, f"The {river} ends in the town of {town}.")
    for river, town in RIVERS.items()
]
FORMS = ("In which town does the {} end?", "What town does the {} end in?")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("promise") / "index"
    rag.Pipeline.from_texts(PASSAGES, out=place, retriever="bm25", reader=False).close()
    return place


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("promise") / "asked.jsonl"
    records = [
        {"id": f"{form} {river}", "question": form.format(river), "answers": [town]}
        for form in FORMS
        for river, town in RIVERS.items()
    ]
    records += [
        {"id": f"none {n}", "question": f"Who was the mayor of the town in 190{n}?", "answers": []}
        for n in range(8)
    ]
    records.append({"id": "yes", "question": "Does the Elbe end in a town?", "answers": ["yes"]})
    write_json_lines(path, records)
    return path


def test_a_promise_is_fitted_kept_and_void_for_other_settings(
    index: Path, questions: Path, tmp_path: Path
) -> None:
    promised = tmp_path / "index"
    shutil.copytree(index, promised)
    common = ["tune", "confidence", "--index", promised, "--questions", questions]
    limits = ["--max-error", "0.4", "--confidence", "0.9", "--max-false-answers", "0.4"]
    printed = run_successfully(*common, *limits)
    assert "wrong answers  given answers\n0                          5\n" in printed
    assert "1 further ones ask for more than a short answer" in printed
    with rag.Pipeline.open(promised) as pipeline:
        shown = pipeline.ask("In which town does the Elbe end?")
        assert (shown.promise.max_error, shown.promise.max_false_answers) == (0.4, 0.4)
        assert shown.is_answered == (shown.answers[0].confidence >= shown.promise.threshold)
        assert pipeline.ask("Hello!").promise is None
        others = {
            "top_k": {"top_k": 5},
            "filter": {"filter": {"document": "elbe"}},
            "context": {"context": "Which town?"},
        }
        for name, options in others.items():
            notice = pipeline.ask("In which town does it end?", **options).notice
            assert notice.endswith(f"other values of {name}")
        # The index hides nothing from anybody.
        person = pipeline.for_groups(frozenset({"staff"}))
        assert person.ask("Which river ends in Sulina?").promise == shown.promise
    with rag.Pipeline.open(promised, effort="full") as other:
        assert other.ask("Which river ends in Sulina?").notice.endswith("values of reader")
    printed = run_successfully("ask", "In which town does the Elbe end?", "-i", promised)
    assert "promised: at most 40% of the given answers are wrong and at most 40% of" in printed


def test_an_index_with_a_promise_is_changed_and_the_promise_is_void(
    questions: Path, tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    promised = tmp_path / "index"
    texts = [passage.text for passage in PASSAGES]

    def add(text: str) -> None:
        texts.append(text)
        write_json_lines(corpus, [{"text": text} for text in texts])

    def notice() -> str:
        with rag.Pipeline.open(promised) as pipeline:
            return pipeline.ask("In which town does the Elbe end?").notice

    void = "no error rate is promised: the promise was fitted with other values of index_version"
    add("The Seine ends in Honfleur.")
    run_successfully("index", corpus, "--out", promised, "--retriever", "bm25")
    fit = ["tune", "confidence", "-i", promised, "-q", questions, "--max-error", "0.4"]
    run_successfully(*fit)
    assert notice() == ""
    add("The Tagus ends in Lisbon.")
    run_successfully("index", corpus, "--update", promised)
    assert notice() == void
    run_successfully(*fit)
    add("The Weser ends in Bremerhaven.")
    assert rag.update(promised, corpus).added == 1
    assert notice() == void
    run_successfully(*fit)
    with listening(application(promised)) as address:
        sent = {"documents": [{"id": "ems", "text": "The Ems ends in Emden."}]}
        url = f"{address}/v1/documents?wait=true"
        assert httpx.post(url, json=sent, headers=KEY, timeout=60).status_code == 200
    assert notice() == void


def test_a_sample_that_is_too_small_is_refused_with_the_number(
    index: Path, questions: Path, tmp_path: Path
) -> None:
    common = ("tune", "confidence", "-i", index, "-q", questions)
    result = run_command(*common, "--max-error", 0.1, "--limit", 8)
    assert result.exit_code == DataError.exit_code
    assert "8 answers to judge, expected at least 29" in result.output
    claims = tmp_path / "claims.jsonl"
    claims.write_text('{"id": "1", "claim": "The Elbe ends in Cuxhaven.", "label": "supported"}')
    common = ("tune", "verdicts", "-i", index, "--claims", claims)
    output = run_command(*common, "--max-error", 0.1).output
    assert "wrong verdicts  given verdicts\n0                           29\n" in output
    assert "1 verdicts to judge, expected at least 29" in output
    assert not list(index.glob("promise*"))


def test_verdicts_are_promised_likewise(index: Path, tmp_path: Path) -> None:
    promised = tmp_path / "index"
    shutil.copytree(index, promised)
    claims = []
    for river, town in RIVERS.items():
        said = f"The {river} ends in the town of {town}."
        denied = f"The {river} ends not in the town of {town}."
        unclear = f"The {river} town seems perhaps rather big nowadays."
        for text, label in ((said, "supported"), (denied, "not_supported"), (unclear, "supported")):
            claims.append(Claim(text, text, label=label))
    opening: dict[str, Any] = {"verifier": WordVerifier(), "retriever": "bm25"}
    promise = fit_verdict_promise(promised, claims, Limits(0.35), top_k=1, **opening)
    with rag.Pipeline.open(promised, reads=False, **opening) as pipeline:
        [given] = pipeline.verify(["The Elbe ends in the town of Cuxhaven."], 1)
        assert (given.label, given.promise) == ("supported", promise)
        assert "promised: at most 35% of the given verdicts are" in format_verdict(
            given.to_json(), colour=False
        )
        [other] = pipeline.verify(["The Elbe ends in the town of Cuxhaven."], 2)
        assert (other.promise, other.label) == (None, "supported")
        assert other.notice.endswith("values of top_k")
        [withheld] = pipeline.verify(["The Elbe town seems perhaps rather big nowadays."], 1)
        assert withheld.confidence < promise.threshold
        assert (withheld.label, withheld.probabilities) == ("not_judged", {})
        assert withheld.notice == "no verdict is sure enough for what is promised"
        opening["verifier"].name = "elsewhere"
        with serving(pipeline) as address:
            asked = {"claims": [given.claim, withheld.claim], "top_k": 1}
            results = httpx.post(f"{address}/v1/verify", json=asked).json()["results"]
        assert [each["label"] for each in results] == ["supported", "not_judged"]
        assert [each["promise"] for each in results] == [promise.to_json()] * 2
    opening["verifier"].version = "2"
    with rag.Pipeline.open(promised, reads=False, **opening) as pipeline:
        [other] = pipeline.verify([given.claim], 1)
    assert other.notice.endswith("values of verifier")
    with refusal(DataError):
        fit_verdict_promise(promised, claims, Limits(0.1), top_k=1, **opening)


@pytest.mark.parametrize(
    "wrong", [[], ["--max-false-answers", "0.1"], ["--max-error", "10"], ["--max-error", "0"]]
)
def test_what_is_no_promise_is_refused(wrong: list[str]) -> None:
    for what in ("confidence", "verdicts"):
        assert exit_code("tune", what, "--index", "i", "--questions", "q", *wrong) == 2


def test_the_confidence_and_the_threshold_have_questions_of_their_own() -> None:
    questions = [Question(str(n), "q") for n in range(41)]
    first, second = split_questions(questions, 3)
    assert (len(first), len(second)) == (10, 31)
    assert sorted(int(q.id) for q in (*first, *second)) == list(range(41))
    assert (first, second) == split_questions(questions, 3)
    assert first != split_questions(questions, 4)[0]


def test_answers_are_judged_as_people_get_them(index: Path) -> None:
    asked = [Question("1", FORMS[0].format("Elbe"), ("Cuxhaven",)), Question("2", "Who is Bob?")]
    with rag.Pipeline.open(index) as pipeline:
        judged = judge_answers(system_of(pipeline), asked, EvaluationSettings())
        outcomes = pipeline.answer([question.text for question in asked], AnswerOptions())
    answer_sets = [outcome.presented for outcome in outcomes]
    best = [answers.answers[0].confidence if answers.answers else 0.0 for answers in answer_sets]
    assert judged.tolist() == pytest.approx(np.array([best, [0, 1], [0, 1]]))
