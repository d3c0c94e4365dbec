"""The sample corpus and its questions keep the promises of their README."""

import json
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from rag.sample import corpus_path, questions_path

Record = dict[str, Any]
RUN_LENGTH = 8


def read_lines(path: Path) -> list[Record]:
    text = path.read_bytes().decode("utf-8")
    assert text.endswith("\n")
    return [json.loads(line) for line in text[:-1].split("\n")]


@cache
def passages() -> dict[str, Record]:
    return {record["id"]: record for record in read_lines(corpus_path())}


@cache
def questions() -> tuple[Record, ...]:
    return tuple(read_lines(questions_path()))


def of_type(kind: str) -> list[Record]:
    return [q for q in questions() if q["type"] == kind]


def gold_texts(question: Record) -> list[str]:
    return [passages()[i]["text"] for i in question["gold_passage_ids"]]


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def test_passages_have_unique_ids_and_the_documented_fields() -> None:
    records = read_lines(corpus_path())
    assert len(records) >= 220
    assert len({r["id"] for r in records}) == len(records)
    for r in records:
        assert set(r) == {"id", "title", "text"}
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", r["id"]), r["id"]
        assert r["title"] == r["title"].strip() != ""
        assert r["text"] == r["text"].strip()
        assert 60 <= len(r["text"].split()) <= 120, r["id"]


def test_passages_are_written_apart_from_one_another() -> None:
    owner: dict[tuple[str, ...], str] = {}
    for i, p in passages().items():
        tokens = words(p["text"])
        for start in range(len(tokens) - RUN_LENGTH + 1):
            run = tuple(tokens[start : start + RUN_LENGTH])
            assert owner.setdefault(run, i) == i, (owner[run], i, run)


def test_corpus_has_documents_of_two_passages_and_letters_beyond_ascii() -> None:
    titles = Counter(p["title"] for p in passages().values())
    assert max(titles.values()) == 2
    assert sum(count == 2 for count in titles.values()) >= 4
    assert {"Charlotte Brontë", "São Paulo", "Curaçao", "Antonín Dvořák"} <= set(titles)


def test_questions_have_unique_ids_unique_wording_and_the_documented_fields() -> None:
    assert len({q["id"] for q in questions()}) == len(questions())
    assert len({" ".join(words(q["question"])) for q in questions()}) == len(questions())
    fields = {"id", "question", "answers", "type", "gold_passage_ids", "split"}
    for q in questions():
        assert set(q) == fields
        assert q["question"].endswith("?")
        assert q["split"] in {"dev", "test"}
        assert all(a == a.strip() != "" for a in q["answers"])
        assert len(set(q["answers"])) == len(q["answers"])
        assert len(set(q["gold_passage_ids"])) == len(q["gold_passage_ids"])


def test_there_are_enough_questions_of_each_type_halved_between_the_splits() -> None:
    counts = Counter(q["type"] for q in questions())
    least = {"factoid": 85, "bridge": 20, "comparison": 12, "unanswerable": 24}
    assert set(counts) == set(least)
    for kind, minimum in least.items():
        assert counts[kind] >= minimum
        dev = sum(q["split"] == "dev" for q in of_type(kind))
        assert abs(2 * dev - counts[kind]) <= 2


def test_a_factoid_answer_stands_in_its_gold_passage() -> None:
    for q in of_type("factoid"):
        assert len(q["gold_passage_ids"]) >= 1
        assert any(q["answers"][0] in text for text in gold_texts(q)), q["id"]
        assert len(q["answers"][0].split()) <= 5, q["id"]


def test_a_bridge_answer_stands_only_in_the_last_of_two_passages() -> None:
    for q in of_type("bridge"):
        first, last = gold_texts(q)
        assert q["answers"][0] in last, q["id"]
        assert q["answers"][0] not in first, q["id"]


def test_a_comparison_is_answered_by_one_of_its_two_sides_or_by_yes_or_no() -> None:
    for q in of_type("comparison"):
        assert len(gold_texts(q)) == 2
        answer = q["answers"][0]
        if answer in {"yes", "no"}:
            assert q["answers"] == [answer]
        else:
            assert any(a in q["question"] for a in q["answers"]), q["id"]
    assert {"yes", "no"} <= {q["answers"][0] for q in of_type("comparison")}


def test_an_unanswerable_question_has_neither_answers_nor_gold_passages() -> None:
    for q in of_type("unanswerable"):
        assert q["answers"] == []
        assert q["gold_passage_ids"] == []


def test_a_question_does_not_copy_its_gold_passage() -> None:
    for q in questions():
        asked = words(q["question"])
        runs = {tuple(asked[i : i + 7]) for i in range(len(asked) - 6)}
        for text in gold_texts(q):
            tokens = words(text)
            assert not runs & {tuple(tokens[i : i + 7]) for i in range(len(tokens) - 6)}, q["id"]


def test_the_readme_states_the_true_counts() -> None:
    readme = corpus_path().with_name("README.md").read_text(encoding="utf-8")
    assert f"`corpus.jsonl`: {len(passages())} passages" in readme
    assert f"`questions.jsonl`: {len(questions())} questions" in readme
    for kind in ("factoid", "bridge", "comparison", "unanswerable"):
        dev = sum(q["split"] == "dev" for q in of_type(kind))
        assert f"| `{kind}` | {dev} | {len(of_type(kind)) - dev} |" in readme
