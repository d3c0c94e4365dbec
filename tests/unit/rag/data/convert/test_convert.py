"""Conversions: what is lossless comes back equal, what cannot be said is refused."""

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
            {"answer": "C", "provenance": [{"wikipedia_id": "12", "title": "T", "start_paragraph_id": 3}]},
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
    [("dpr-results", RESULTS), ("dpr-train", TRAINING)],
)
def test_a_file_survives_its_own_format(tmp_path: Path, name: str, value: Any) -> None:
    source = write_json(tmp_path / "in.json", value)
    report = convert(source, name, tmp_path / "out.json", name, strict=True)
    assert not report.dropped
    assert read(tmp_path / "out.json") == value


def test_results_survive_fid(tmp_path: Path) -> None:
    source = write_json(tmp_path / "in.json", RESULTS)
    convert(source, "dpr-results", tmp_path / "fid", "fid", strict=True)
    convert(tmp_path / "fid", "fid", tmp_path / "back", "dpr-results", strict=True)
    assert read(tmp_path / "back") == RESULTS


def test_pyserini_keeps_the_title_in_the_text(tmp_path: Path) -> None:
    contexts = [{"docid": "7", "score": 81.25, "text": '"Hamlet"\nA play.', "has_answer": True}]
    body = {"question": "who wrote hamlet", "answers": ["Shakespeare"], "contexts": contexts}
    source = write_json(tmp_path / "in", {"q1": body})
    convert(source, "pyserini", tmp_path / "out", "dpr-results", strict=True)
    [record] = read(tmp_path / "out")
    assert (record["id"], record["question"], record["answers"]) == ("q1", body["question"], ["Shakespeare"])
    known = {"id": "7", "title": "Hamlet", "text": "A play.", "score": 81.25, "has_answer": True}
    assert record["ctxs"] == [known]


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
        st.fixed_dictionaries(
            {"id": TEXT, "question": TEXT.filter(str.strip), "answers": st.lists(TEXT), "ctxs": CONTEXTS}
        ),
        min_size=1,
        max_size=3,
        unique_by=lambda r: r["id"],
    )
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_results_survive_fid(tmp_path: Path, value: list[dict[str, Any]]) -> None:
    source = write_json(tmp_path / "in", value)
    convert(source, "dpr-results", tmp_path / "fid", "fid", strict=True)
    convert(tmp_path / "fid", "fid", tmp_path / "back", "dpr-results", strict=True)
    assert read(tmp_path / "back") == value


def test_a_folder_of_colbert_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "colbert"
    folder.mkdir()
    (folder / "queries.tsv").write_text("5\twho wrote hamlet\n6\tnothing found\n")
    (folder / "collection.tsv").write_text("0\tA play by Shakespeare.\tHamlet\n1\tA novel.\n")
    (folder / "ranking.tsv").write_text("5\t1\t1\t80.5\n5\t0\t2\t7\n")
    (folder / "qas.jsonl").write_text('{"qid": 5, "answers": ["Shakespeare"]}\n')
    convert(folder, "colbert", tmp_path / "out", "dpr-results", strict=True)
    first, second = read(tmp_path / "out")
    assert first["answers"] == ["Shakespeare"]
    assert first["ctxs"] == [
        {"id": "1", "title": "", "text": "A novel.", "score": 80.5},
        {"id": "0", "title": "Hamlet", "text": "A play by Shakespeare.", "score": 7.0},
    ]
    assert (second["id"], second["ctxs"]) == ("6", [])


def test_question_sets_become_training_examples(tmp_path: Path) -> None:
    convert(write_json(tmp_path / "in", HOTPOT[:1]), "hotpot", tmp_path / "train", "dpr-train")
    record = read(tmp_path / "train")[0]
    assert [c["title"] for c in record["positive_ctxs"]] == ["A", "B"]
    assert record["positive_ctxs"][1]["text"] == "Three. Rome."
    assert [c["title"] for c in record["hard_negative_ctxs"]] == ["C"]
    convert(write_json(tmp_path / "s", SQUAD), "squad", tmp_path / "t", "dpr-train")
    found = {r["id"]: (r["answers"], r["positive_ctxs"][0]["passage_id"]) for r in read(tmp_path / "t")}
    rome = {"s1": (["Rome"], "Rome-0"), "s2": ([], "Rome-0"), "s3": (["Rome"], "Rome-1")}
    assert found == {**rome, "s4": (["Oslo"], "Oslo-0")}
    convert(write_json(tmp_path / "k", KILT), "kilt", tmp_path / "q", "trec-qrels")
    assert (tmp_path / "q").read_text() == "k1 0 12 1\n"


def test_training_to_results_says_that_roles_are_lost(tmp_path: Path) -> None:
    report = convert(write_json(tmp_path / "a", TRAINING), "dpr-train", tmp_path / "r", "dpr-results")
    assert report.dropped == {"positives": 1}
    assert [c["id"] for c in read(tmp_path / "r")[0]["ctxs"]] == ["7", "9"]


def test_mined_examples_become_a_run_without_the_scores_of_other_searches(tmp_path: Path) -> None:
    """A gold passage has no score, or a lower one than the negatives behind it."""
    one = {
        "id": "q", "question": "x", "answers": ["a"],
        "positive_ctxs": [{"passage_id": "7", "title": "", "text": "a"}],
        "hard_negative_ctxs": [{"passage_id": "9", "title": "", "text": "b", "score": 11.5}],
    }  # fmt: skip
    report = convert(write_json(tmp_path / "a", [one]), "dpr-train", tmp_path / "r.run", "trec-run")
    assert report.dropped["scores"] == 1
    lines = [line.split() for line in (tmp_path / "r.run").read_text().splitlines()]
    assert [(line[2], line[3]) for line in lines] == [("7", "1"), ("9", "2")]
    lost = report.summary().partition("for: ")[2].split(", ")
    assert lost == sorted(lost)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("dpr-results", '[{"answers": []}]', "record 1: no question"),
        ("dpr-results", '[{"question": "x", "ctxs": [3]}]', "not an object"),
        ("dpr-results", '[{"question": "x", "answers": [null], "ctxs": []}]', "list of answers"),
        (
            "dpr-results",
            '[{"question": "x", "ctxs": [{"id": 1, "text": "t", "score": "high"}]}]',
            "finite number",
        ),
        ("fid", '{"question": "x", "ctxs": []}\n{"question"', "in:2"),
        ("fid", '{"question": "x", "ctxs": []}\n', "no record has contexts"),
        ("trec-run", "a b c\n", "3 fields"),
        ("trec-run", "a Q0 b 1 x t\n", "finite"),
        ("trec-run", "a Q0 b 1 1 t\nb Q0 b 1 1 t\na Q0 c 1 1 t\n", "do not stand together"),
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
    source = write_json(tmp_path / "in", RESULTS)
    with pytest.raises(ConfigError, match=r"read, but not written(.|\n)*dpr-results, dpr-train"):
        convert(source, "dpr-results", tmp_path / "out", "hotpot")


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
