"""Groups of questions and the guard of test sets."""

from typing import Any

import numpy as np
import pytest

from rag.core.errors import ConfigError
from rag.core.types import Passage, Question
from rag.data.files.question_fields import question_from_mapping
from rag.eval.breakdown import (
    TrainingOverlap,
    answer_length,
    answer_type,
    breakdown_table,
    hop_count,
    question_groups,
    question_word,
    rank_bucket,
    shared_words,
)
from rag.eval.guard import check_selection_split, guess_split


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("who's the president", "who"),
        ("To whom was it sent?", "who"),
        ("how many people live here", "how many"),
        ("how did it end", "how"),
        ("Are both magazines weekly?", "yes/no"),
        ("The seat of the county is", "other"),
        ("", "other"),
    ],
)
def test_question_word(text: str, word: str) -> None:
    assert question_word(text) == word


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("1980s", "year"),
        ("March 2014", "date"),
        ("seven", "number"),
        ("$5", "number"),
        ("", "none"),
        ("No", "yes/no"),
    ],
)
def test_answer_type(answer: str, kind: str) -> None:
    assert answer_type(answer) == kind


def test_answer_length_and_rank_classes() -> None:
    assert [answer_length(a) for a in ("a", "a b", "a b c d", "a b c d e f")] == [
        "1 word",
        "2 words",
        "3–5 words",
        "6+ words",
    ]
    assert [rank_bucket(r) for r in (1, 2, 6, 100, 101, None)] == [
        "1",
        "2–5",
        "6–20",
        "21–100",
        "> 100",
        "not retrieved",
    ]


def test_hops_come_from_facts_titles_or_ids() -> None:
    def question(**fields: Any) -> Question:
        return question_from_mapping({"question": "q", **fields}, "1")

    assert hop_count(question(supporting_facts=[["A", 0], ["A", 1], ["B", 0]])) == 2
    assert hop_count(question(gold_titles=["A", "B", "C"])) == 3
    assert hop_count(question(hops=4, gold_titles=["A", "B"])) == 4
    alternatives = [{"text": "a", "passage_id": "1"}, {"text": "b", "passage_id": "2"}]
    assert hop_count(question(positive_ctxs=alternatives)) == 1
    assert hop_count(Question("1", "q", gold_passage_ids=("p",))) == 1
    assert hop_count(Question("1", "q")) is None


def test_training_overlap() -> None:
    overlap = TrainingOverlap.from_training([Question("t", "Who wrote Hamlet?", ("William Shakespeare",))])
    assert overlap.group(Question("1", "who wrote the hamlet", ("x",))) == "question seen"
    assert overlap.group(Question("2", "author of Macbeth", ("william shakespeare",))) == "answer seen"
    assert overlap.group(Question("3", "author of Emma", ("Jane Austen", "the"))) == "nothing seen"


def test_patterns_are_not_classified_by_their_form() -> None:
    groups = question_groups(Question("1", "When?", (r"19\d\d",)), regex=True, first_rank=3)
    assert groups == {"question word": "when", "gold rank": "2–5"}


@pytest.mark.parametrize(
    ("question", "group"),
    [
        ("Where does the Danube rise?", "all"),  # case and function words count for nothing, titles do count
        ("In which forest and which black hills does it rise?", "75–99 %"),
        ("Which forest, which hills, which black lake, which rise?", "50–74 %"),
        ("Forest, hills, lakes, rivers?", "25–49 %"),
        ("Forest, hills, lakes, rivers, seas?", "under 25 %"),
        ("Danube, forest, black, rise, hills?", "75–99 %"),
        ("Who is it?", None),
    ],
)
def test_words_shared_with_the_gold_passages(question: str, group: str | None) -> None:
    gold = [Passage("1", "Danube", "RISE: (black)"), Passage("2", "", "forests; a forest")]
    assert shared_words(question, gold) == group
    assert shared_words(question, ()) is None


def test_table_leaves_out_questions_without_group() -> None:
    rows = breakdown_table({"b": [2], "a": [0, 3]}, np.array([[1.0], [1.0], [0.0], [np.nan]]), ["em"])
    assert [(row["group"], row["n"], row["figures"]["em"]["value"]) for row in rows] == [
        ("a", 2, 1.0),
        ("b", 1, 0.0),
    ]


def test_guard_refuses_what_is_marked_or_named_test() -> None:
    assert check_selection_split("squad-dev.json") == "dev"
    assert check_selection_split("mine.jsonl") is None
    assert check_selection_split("mine.jsonl", "train") == "train"
    for name, split in (("mine.jsonl", "test"), ("nq-test.jsonl", None), ("nq_test.jsonl", "dev")):
        with pytest.raises(ConfigError, match=r"(by its name|marked as) a test set"):
            check_selection_split(name, split)
    with pytest.raises(ConfigError, match="not known"):
        check_selection_split("mine.jsonl", "production")


def test_split_names_are_whole_words() -> None:
    assert guess_split("contest.jsonl") is None
    assert guess_split("latest_results.json") is None
    assert guess_split("train/nq-validation.jsonl.gz") == "dev"
