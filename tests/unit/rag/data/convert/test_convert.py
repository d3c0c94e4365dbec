"""Conversions: what is lossless comes back equal, what cannot be said is refused."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rag.core.errors import ConfigError, DataError
from rag.data.files.convert import FORMATS, ConversionReport, convert, get_format

RESULTS = [
    {
        "id": "q1",
        "question": "who wrote hamlet",
        "answers": ["Shakespeare", "William “Bill” Shakespeare"],
        "ctxs": [
            {
                "id": "7",
                "title": "Hamlet",
                "text": "A play by Shakespeare.",
                "score": 81.25,
                "has_answer": True,
                "rank": 1,
            },
            {
                "id": "9",
                "title": "Emma",
                "text": "A novel.\nBy Austen.",
                "score": 80.5,
                "has_answer": False,
                "rank": 2,
            },
        ],
    },
    {
        "id": "q2",
        "question": "empty",
        "answers": [],
        "ctxs": [{"id": "7", "title": "Hamlet", "text": "A play by Shakespeare.", "score": -1.5}],
    },
]
TRAINING = [
    {
        "id": "t1",
        "question": "who wrote hamlet",
        "answers": ["Shakespeare"],
        "dataset": "nq_train",
        "positive_ctxs": [
            {
                "passage_id": "7",
                "title": "Hamlet",
                "text": "By Shakespeare.",
                "score": 1000.0,
                "title_score": 1,
            }
        ],
        "negative_ctxs": [],
        "hard_negative_ctxs": [{"passage_id": "9", "title": "Emma", "text": "By Austen."}],
    }
]
HOTPOT = [
    {
        "_id": "h1",
        "question": "Where?",
        "answer": "Rome",
        "type": "bridge",
        "level": "hard",
        "supporting_facts": [["A", 0], ["B", 1]],
        "context": [["A", ["One.", " Two."]], ["C", ["Other."]], ["B", ["Three.", " Rome."]]],
    },
    {"_id": "h2", "question": "No gold?", "context": [["A", ["One."]]]},
]
SQUAD = {
    "data": [
        {
            "title": "Rome",
            "paragraphs": [
                {
                    "context": "Rome is old.",
                    "qas": [
                        {
                            "id": "s1",
                            "question": "What is old?",
                            "answers": [
                                {"text": "Rome", "answer_start": 0},
                                {"text": "Rome", "answer_start": 0},
                            ],
                        },
                        {"id": "s2", "question": "How old?", "answers": [], "is_impossible": True},
                    ],
                },
                {
                    "context": "Rome is big.",
                    "qas": [
                        {"id": "s3", "question": "Big?", "answers": [{"text": "Rome", "answer_start": 0}]}
                    ],
                },
            ],
        },
        {
            "title": "Oslo",
            "paragraphs": [
                {
                    "context": "Oslo is cold.",
                    "qas": [
                        {"id": "s4", "question": "Cold?", "answers": [{"text": "Oslo", "answer_start": 0}]}
                    ],
                }
            ],
        },
    ],
    "version": "v2.0",
}
KILT = [
    {
        "id": "k1",
        "input": "who",
        "output": [
            {"answer": "A", "provenance": [{"wikipedia_id": "12", "title": "T", "bleu_score": 1.0}]},
            {"answer": "B"},
        ],
        "meta": {"x": 1},
    },
    {"id": "k2", "input": "what", "output": []},
]


def write_json(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
    return path


def read(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("name", "value"),
    [("dpr-results", RESULTS), ("dpr-train", TRAINING), ("hotpot", HOTPOT), ("squad", SQUAD), ("kilt", KILT)],
)
def test_a_file_survives_its_own_format(tmp_path: Path, name: str, value: Any) -> None:
    source = write_json(tmp_path / "in.json", value)
    report = convert(source, name, tmp_path / "out.json", name, strict=True)
    assert not report.dropped
    assert read(tmp_path / "out.json") == value


@pytest.mark.parametrize(
    ("chain", "value"),
    [
        (["dpr-results", "fid", "dpr-results"], RESULTS),
        (["dpr-results", "pyserini", "dpr-results"], RESULTS),
        (["dpr-results", "pyserini", "fid", "dpr-results"], RESULTS),
    ],
)
def test_lossless_chains(tmp_path: Path, chain: list[str], value: Any) -> None:
    place = write_json(tmp_path / "0", value)
    for step, (old, new) in enumerate(itertools.pairwise(chain), start=1):
        convert(place, old, tmp_path / str(step), new, strict=True)
        place = tmp_path / str(step)
    assert read(place) == value


TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="\x00\r", exclude_categories=("Cs",)),
    min_size=1,
    max_size=12,
)
CONTEXTS = st.lists(
    st.fixed_dictionaries(
        {
            "id": TEXT,
            "title": TEXT.filter(lambda t: "\n" not in t and t == t.strip('"')),
            "text": TEXT,
            "score": st.floats(-1e6, 1e6),
        }
    ),
    min_size=1,
    max_size=3,
)


@given(
    st.lists(
        st.fixed_dictionaries({"id": TEXT, "question": TEXT, "answers": st.lists(TEXT), "ctxs": CONTEXTS}),
        min_size=1,
        max_size=3,
        unique_by=lambda r: r["id"],
    )
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_results_survive_fid_and_pyserini(tmp_path: Path, value: list[dict[str, Any]]) -> None:
    source = write_json(tmp_path / "in", value)
    for name in ("fid", "pyserini"):
        convert(source, "dpr-results", tmp_path / name, name, strict=True)
        convert(tmp_path / name, name, tmp_path / "back", "dpr-results", strict=True)
        assert read(tmp_path / "back") == value


def test_what_was_retrieved_is_a_prediction_of_pages(tmp_path: Path) -> None:
    contexts = [
        {"id": f"{page}-{n}", "title": f"T{page}", "text": "t", "score": 1.0}
        for page, n in ((290, 3), (7, 0), (290, 4))
    ]
    source = write_json(
        tmp_path / "in", [{"id": "k", "question": "q", "answers": ["x", "y"], "ctxs": contexts}]
    )
    report = convert(source, "dpr-results", tmp_path / "out", "kilt")
    [record] = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    pages = [{"wikipedia_id": "290", "title": "T290"}, {"wikipedia_id": "7", "title": "T7"}]
    assert record["output"] == [{"provenance": pages}]
    assert "answers" in report.dropped
    with pytest.raises(DataError, match="answers"):
        convert(source, "dpr-results", tmp_path / "strict", "kilt", strict=True)


def test_colbert_folder_keeps_ids(tmp_path: Path) -> None:
    value = [
        dict(
            RESULTS[0],
            ctxs=[
                {k: v for k, v in c.items() if k in ("id", "title", "text", "score")}
                for c in RESULTS[0]["ctxs"]
            ],
        )
    ]  # type: ignore[attr-defined]
    value[0]["ctxs"][1]["text"] = "A novel."
    source = write_json(tmp_path / "in", value)
    convert(source, "dpr-results", tmp_path / "colbert", "colbert", strict=True)
    assert (tmp_path / "colbert/collection.tsv").read_text().splitlines()[
        0
    ] == "0\tA play by Shakespeare.\tHamlet"
    assert (tmp_path / "colbert/ranking.tsv").read_text().splitlines()[1] == "0\t1\t2\t80.5"
    convert(tmp_path / "colbert", "colbert", tmp_path / "back", "dpr-results", strict=True)
    assert read(tmp_path / "back") == value
    with pytest.raises(DataError, match="tab or a line end"):
        convert(write_json(tmp_path / "in2", RESULTS), "dpr-results", tmp_path / "c2", "colbert")
    assert not (tmp_path / "c2").exists()


def test_hotpot_to_training_and_squad(tmp_path: Path) -> None:
    source = write_json(tmp_path / "in", HOTPOT[:1])
    convert(source, "hotpot", tmp_path / "train", "dpr-train")
    record = read(tmp_path / "train")[0]
    assert [c["title"] for c in record["positive_ctxs"]] == ["A", "B"]
    assert record["positive_ctxs"][1]["text"] == "Three. Rome."
    assert [c["title"] for c in record["hard_negative_ctxs"]] == ["C"]
    with pytest.raises(DataError, match="answer_start"):  # the answer stands in the second paragraph only
        convert(source, "hotpot", tmp_path / "squad", "squad")
    convert(write_json(tmp_path / "s", SQUAD), "squad", tmp_path / "t", "dpr-train")
    assert len(read(tmp_path / "t")) == 4


def test_training_to_hotpot_needs_a_single_answer(tmp_path: Path) -> None:
    convert(write_json(tmp_path / "a", TRAINING), "dpr-train", tmp_path / "h", "hotpot")
    assert read(tmp_path / "h")[0]["context"] == [["Hamlet", ["By Shakespeare."]], ["Emma", ["By Austen."]]]
    two = [dict(TRAINING[0], answers=["x", "y"])]
    with pytest.raises(DataError, match="2 answers"):
        convert(write_json(tmp_path / "b", two), "dpr-train", tmp_path / "h2", "hotpot")


def test_training_to_results_says_that_roles_are_lost(tmp_path: Path) -> None:
    report = convert(write_json(tmp_path / "a", TRAINING), "dpr-train", tmp_path / "r", "dpr-results")
    assert report.dropped == {"positives": 1}
    assert [c["id"] for c in read(tmp_path / "r")[0]["ctxs"]] == ["7", "9"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("dpr-results", '[{"answers": []}]', "record 1: no question"),
        ("dpr-results", '[{"question": "x", "ctxs": [3]}]', "not an object"),
        ("dpr-results", '[{"question": "x", "answers": 3, "ctxs": []}]', "list of answers"),
        (
            "dpr-results",
            '[{"question": "x", "ctxs": [{"id": 1, "text": "t", "score": "high"}]}]',
            "finite number",
        ),
        ("fid", '{"question": "x", "ctxs": []}\n{"question"', "in:2"),
        ("fid", '{"question": "x", "ctxs": []}\n', "no record has contexts"),
        ("kilt", '{"id": "1"}\n', "not a KILT record"),
        ("hotpot", '[{"_id": "1"}]', "not a HotpotQA record"),
        ("squad", '{"data": [{"title": "x"}]}', "malformed SQuAD"),
        ("trec-run", "a b c\n", "3 fields"),
        ("trec-run", "a Q0 b 1 x t\n", "finite"),
        ("trec-run", "a Q0 b 1 1 t\nb Q0 b 1 1 t\na Q0 c 1 1 t\n", "comes back"),
        ("trec-qrels", "a 0 b x\n", "whole number"),
    ],
)
def test_malformed_input_names_its_place(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / "in").write_text(content)
    with pytest.raises(DataError, match=message):
        convert(tmp_path / "in", name, tmp_path / "out", name)
    assert not (tmp_path / "out").exists()


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown format"):
        get_format("xml")
    with pytest.raises(DataError, match="no such file"):
        convert(tmp_path / "absent", "fid", tmp_path / "out", "fid")
    assert ConversionReport(3).summary() == "3 questions converted"
    assert all(fmt.needs <= fmt.keeps and fmt.about for fmt in FORMATS.values())


def test_nothing_is_evaluated(tmp_path: Path) -> None:
    source = write_json(
        tmp_path / "in", [{"question": "x", "answers": "__import__('os').abort()", "ctxs": [{"text": "t"}]}]
    )
    convert(source, "dpr-results", tmp_path / "out", "fid")
    assert read(tmp_path / "out")["answers"] == ["__import__('os').abort()"]


def test_questions_without_hits_or_positives_are_carried_along(tmp_path: Path) -> None:
    results = [*RESULTS, {"question": "nothing found", "answers": ["x"], "ctxs": []}]
    convert(write_json(tmp_path / "in", results), "dpr-results", tmp_path / "out", "dpr-results", strict=True)
    assert read(tmp_path / "out") == results
    report = convert(tmp_path / "out", "dpr-results", tmp_path / "train", "dpr-train")
    assert report.records == 3
    assert [len(r["positive_ctxs"]) for r in read(tmp_path / "train")] == [1, 0, 0]
