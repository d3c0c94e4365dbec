"""Evaluations of claims: figures, official predictions, resuming, refusals."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import rag
from rag.core.arrays import Float32
from rag.core.errors import ConfigError, DataError, RagError
from rag.data.files.rows import json_records, write_json_lines
from rag.pipeline import Pipeline
from tests.support.messages import refusal
from tests.support.verifying import WordVerifier

ARTICLES = [
    ("Danube", "The Danube rises in the Black Forest. It ends in the Black Sea."),
    ("Rhine (river)", "The Rhine begins in the Alps. It reaches Basel."),
    ("Ulm", "Ulm is a town. Its minster is high."),
]
FEVER = [
    (1, "SUPPORTS", "The Danube rises in the Black Forest.", [[["Danube", 0]]]),
    (2, "REFUTES", "The Danube never ends in the Black Sea.", [[["Danube", 0], ["Danube", 1]]]),
    (3, "SUPPORTS", "The Rhine reaches Basel.", [[["Rhine_-LRB-river-RRB-", 1]], [["Basel", 2]]]),
    (4, "NOT ENOUGH INFO", "Munich hosts many beer festivals each autumn.", [[[None, None]]]),
    ("005", "REFUTES", "Ulm is a town.", [[["Paris", 4]]]),
]  # fmt: skip


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    rows = [{"id": title.lower(), "title": title, "text": text} for title, text in ARTICLES]
    place = tmp_path_factory.mktemp("claims") / "index"
    rag.Pipeline.from_texts(rows, retriever="bm25", reader=False, out=place).close()
    return rag.Pipeline.open(place, reader=False, verifier=WordVerifier())


def fever_file(folder: Path) -> Path:
    lines = []
    for number, label, claim, sets in FEVER:
        evidence = [[[0, 0, *sentence] for sentence in each] for each in sets]
        lines.append({"id": number, "label": label, "claim": claim, "evidence": evidence})
    return written(folder / "fever-dev.jsonl", lines)


def written(file: Path, records: Sequence[dict[str, Any]]) -> Path:
    write_json_lines(file, records)
    return file


def test_figures_over_what_is_found(pipeline: Pipeline, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = rag.evaluate(pipeline, claims=fever_file(tmp_path), out=out)
    figures = {name: figure.value for name, figure in result.figures.items()}
    predicted = list(json_records(out / "predictions.fever.jsonl"))
    assert [line["id"] for line in predicted] == [1, 2, 3, 4, "005"]
    labels = [line["predicted_label"] for line in predicted]
    assert labels == ["SUPPORTS", "REFUTES", "SUPPORTS", "NOT ENOUGH INFO", "SUPPORTS"]
    assert predicted[2]["predicted_evidence"][0] == ["Rhine_-LRB-river-RRB-", 1]
    # What `fever-scorer` gives for these predictions.
    assert figures["label_accuracy"] == pytest.approx(0.8)
    assert figures["fever_score"] == pytest.approx(0.6)
    assert figures["evidence_precision"] == pytest.approx(0.75)
    assert figures["evidence_recall"] == pytest.approx(0.5)
    assert result.figures["macro_f1"].n == 5
    assert "Label accuracy" in str(result)
    assert "1 of 5 claims, such as '005', names articles that are not in this index" in str(result)
    assert "FEVER score" in (out / "report.html").read_text(encoding="utf-8")
    assert result.metrics["calibration"]["n"] == 5
    assert "judge" in result.metrics["latency_ms"]
    again = rag.evaluate(pipeline, claims=fever_file(tmp_path), out=out)
    assert again.metrics == result.metrics


def test_given_evidence_is_judged_within_the_labels_of_each_set(tmp_path: Path) -> None:
    rows = [
        {"set": "two", "claim": "Ulm is old.", "label": "supported", "evidence": ["Ulm is old."]},
        {"set": "two", "claim": "Ulm is big.", "label": "refuted", "evidence": ["Ulm is not big."]},
        {"set": "two", "claim": "Ulm is far.", "label": "supported", "evidence": ["Bread."]},
        {"set": "joined", "claim": "Ulm is a", "label": "not_supported", "evidence": ["Bread."]},
        {"set": "joined", "claim": "Is it so?", "label": "supported", "evidence": ["Is it so?"]},
        {"set": "joined", "claim": "Nobody says.", "evidence": ["Nobody."]},
        # Nothing may be the evidence of a claim that is not decided.
        {"set": "open", "claim": "It is blue.", "label": "supported", "evidence": ["It is blue."]},
        {"set": "open", "claim": "It is old.", "label": "not_enough", "evidence": []},
    ]
    claims = written(tmp_path / "claims.jsonl", rows)
    result = rag.evaluate(claims=claims, gold=True, verifier=WordVerifier(), by=("set",))
    predicted = [record.prediction for record in result.records()]
    assert predicted == [
        *("supported", "refuted", "refuted", "not_supported", "supported"),
        *("supported", "supported", "not_enough"),
    ]
    assert result.figures["label_accuracy"].value == pytest.approx(6 / 7)
    assert result.figures["label_accuracy"].n == 7
    assert set(result.figures) == {"label_accuracy", "macro_f1"}
    # Labels of the claims that are not drawn are possible, too.
    rows[:3] = [{**row, "set": "three"} for row in rows[:3]]
    rows.append({**rows[0], "label": "not_enough"})
    claims = written(tmp_path / "three.jsonl", rows)
    two = rag.evaluate(claims=claims, gold=True, verifier=WordVerifier(), limit=3).records()
    assert [record.prediction for record in two][2] == "not_enough"
    groups = {group["value"]: group["figures"] for group in result.metrics["groups"]["set"]}
    assert groups["joined"]["macro_f1"]["value"] == 1.0
    assert groups["two"]["macro_f1"]["value"] == pytest.approx(2 / 3)


def test_a_group_without_labels_has_no_figures(tmp_path: Path) -> None:
    row = {"claim": "Ulm is old.", "evidence": ["Ulm is old."]}
    rows = [{**row, "kind": "a", "label": "supported"}, {**row, "kind": "b", "label": None}]
    claims = written(tmp_path / "claims.jsonl", rows)
    result = rag.evaluate(claims=claims, gold=True, verifier=WordVerifier(), by=("kind",))
    # Both figures of the group are undefined.
    assert str(result).count("–") >= 2
    for group in result.metrics["groups"]["kind"]:
        assert (group["figures"]["macro_f1"]["value"] is None) == (group["value"] == "b")


class Stopping(WordVerifier):
    """Stops the program at a claim."""

    def probabilities(self, claims: Sequence[str], texts: Sequence[str]) -> Float32:
        if any("Basel" in claim for claim in claims):
            raise KeyboardInterrupt
        return super().probabilities(claims, texts)


def test_a_stopped_evaluation_continues(pipeline: Pipeline, tmp_path: Path) -> None:
    claims = fever_file(tmp_path)
    stopping = Pipeline(pipeline.index, pipeline.retriever, None, Stopping())
    with pytest.raises(KeyboardInterrupt):
        rag.evaluate(stopping, claims=claims, out=tmp_path / "a", batch_size=1)
    assert len(list(json_records(tmp_path / "a" / "per_question.jsonl.part"))) == 2
    continued = rag.evaluate(pipeline, claims=claims, out=tmp_path / "a", batch_size=1)
    whole = rag.evaluate(pipeline, claims=claims, out=tmp_path / "b", batch_size=1)
    assert continued.figures == whole.figures
    [compared, *_] = rag.compare([continued, whole])
    assert (compared.figure, compared.value_a) == ("label_accuracy", compared.value_b)


REFUSED = {
    "no label": ([{"claim": "A."}], {}, DataError),
    "labels of two kinds": (
        [{"claim": "A.", "label": "refuted"}, {"claim": "B.", "label": "not_supported"}],
        {},
        DataError,
    ),
    "gold texts that are not there": (
        [{"claim": "A.", "label": "refuted"}],
        {"gold": True},
        DataError,
    ),
    "a run": ([{"claim": "A.", "label": "refuted"}], {"run": "a.run"}, ConfigError),
    "search alone": ([{"claim": "A.", "label": "refuted"}], {"reads": False}, ConfigError),
    "unknown field": ([{"claim": "A.", "label": "refuted"}], {"by": ("set",)}, DataError),
    "long claim": ([{"claim": "so " * 201, "label": "refuted"}], {}, DataError),
}


@pytest.mark.parametrize(("rows", "options", "error"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_evaluated_is_refused(
    pipeline: Pipeline,
    tmp_path: Path,
    rows: list[dict[str, Any]],
    options: Any,
    error: type[RagError],
) -> None:
    with refusal(error):
        rag.evaluate(pipeline, claims=written(tmp_path / "c.jsonl", rows), **options)


def test_claims_need_passages(tmp_path: Path) -> None:
    claims = fever_file(tmp_path)
    with refusal(ConfigError):
        rag.evaluate(claims=claims)
    with refusal(ConfigError):
        rag.evaluate(object(), claims=claims)  # type: ignore[arg-type]
