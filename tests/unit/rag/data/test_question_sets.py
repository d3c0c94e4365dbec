"""The usual question sets in their official shape and in that of their copies on data-set hubs."""

import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rag.core.errors import DataError
from rag.core.types import GoldPassage, Passage, Question
from rag.data.questions import questions_from, read_questions
from rag.eval.gold import gold_facts, gold_keys, gold_passages, needs_all
from tests.support.messages import refusal

HOTPOT = {
    "id": "h1",
    "question": "Were A and B of the same nationality?",
    "answer": "yes",
    "type": "comparison",
    "supporting_facts": {"title": ["A", "B"], "sent_id": [0, 1]},
    "context": {
        "title": ["A", "B"],
        "sentences": [["A was American.", " More."], ["One.", " Two."]],
    },
}
TRIVIA = {
    "question": "Which band?",
    "question_id": "tc_1",
    "answer": {
        "aliases": ["Beatles", "The Beatles"],
        "value": "The Beatles",
        "type": "WikipediaEntity",
    },
}
KILT = {
    "id": "k1",
    "input": "who?",
    "output": [
        {"answer": "X", "provenance": [{"wikipedia_id": "12", "title": "P"}]},
        {"answer": "", "provenance": [{"wikipedia_id": "13", "title": "Q"}]},
    ],
}
MUSIQUE = {
    "id": "2hop__1_2",
    "question": "Where?",
    "answer": "Stanley",
    "answer_aliases": ["Stanley, ND"],
    "answerable": True,
    "question_decomposition": [
        {"id": 1, "question": "q", "answer": "a", "paragraph_support_idx": 0}
    ],
    "paragraphs": [
        {
            "idx": 0,
            "title": "County",
            "paragraph_text": "Its seat is Stanley.",
            "is_supporting": True,
        },
        {"idx": 1, "title": "Noise", "paragraph_text": "No.", "is_supporting": False},
        {"idx": 2, "title": "Town", "paragraph_text": "It lies in County.", "is_supporting": True},
    ],
}
SQUAD = {
    "id": "s1",
    "title": "Nikola%20Tesla_%26_co",
    "context": "Tesla was born in Smiljan.",
    "question": "Where?",
    "answers": {"text": ["Smiljan"], "answer_start": [18]},
}


def question(record: dict) -> Question:
    return questions_from([record])[0]


def titles(passages: Iterable[GoldPassage]) -> list[str]:
    return [item.passage.title for item in passages]


@pytest.mark.parametrize(
    "record",
    [
        {"question": "Who?", "golden_answers": ["Ann", "Anna"]},
        {"user_input": "Who?", "reference": "Ann"},
        {"question": "Who?", "ground_truths": ["Ann"]},
        {"query": "Who?", "reference_answer": "Ann", "reference_contexts": ["Ann did."]},
        {"input": "Who?", "expected_output": "Ann"},
        {"question": "Who?", "golden_answers": [1], "choices": ["Bob", "Ann"]},
        {"question": "Who?", "golden_answers": ["Ann"], "choices": ["Bob", "Ann"]},
        {"question": "Who?", "possible_answers": '["Ann", "Anna"]'},
    ],
)
def test_sets_for_other_evaluations(record: dict) -> None:
    assert question(record).text == "Who?"
    assert question(record).answers[0] == "Ann"


def test_hotpot_columns_become_the_official_pairs() -> None:
    result = question(HOTPOT)
    gold = GoldPassage(
        Passage("", "A", "A was American. More."), ("A was American.", " More."), (0,)
    )
    assert (result.gold[0], result.context, result.meta) == (gold, (), {"type": "comparison"})
    assert gold_facts(result) == (("A", 0), ("B", 1))
    assert needs_all(result)
    assert [passage.text for passage in gold_passages(result)] == [
        "A was American. More.",
        "One. Two.",
    ]


def test_columns_of_json_are_read_as_lists() -> None:
    """Of copies of 2WikiMultiHopQA."""
    columns = {name: json.dumps(HOTPOT[name]) for name in ("supporting_facts", "context")}
    assert question({**HOTPOT, **columns}) == question(HOTPOT)
    pairs = {"supporting_facts": '[["A", 0], ["B", 1]]'}
    assert gold_facts(question({**HOTPOT, **pairs})) == (("A", 0), ("B", 1))
    with refusal(DataError):
        question({**HOTPOT, "supporting_facts": "A, B"})


@pytest.mark.parametrize("answers", ["", [""], [" "], {"text": [""], "answer_start": [0]}])
def test_an_empty_answer_is_none(answers: object) -> None:
    assert question({"question": "Who?", "answers": answers}).answers == ()
    assert question({"question": "Who?", "answers": [answers, "Ann"]}).answers == ("Ann",)


@pytest.mark.parametrize("indent", [None, 1])
def test_triviaqa_from_the_hub_and_from_its_official_file(
    tmp_path: Path, indent: int | None
) -> None:
    assert (question(TRIVIA).id, question(TRIVIA).answers) == ("tc_1", ("The Beatles", "Beatles"))
    assert question({**TRIVIA, "answer": {"value": "<unk>", "aliases": []}}).answers == ()
    answer = {"Value": "The Beatles", "Aliases": ["Beatles"], "HumanAnswers": ["Fab Four"]}
    official = {
        "Data": [{"Answer": answer, "Question": "Which band?", "QuestionId": "tc_1"}],
        "Version": 1.0,
    }
    path = tmp_path / "unfiltered-web-dev.json"
    path.write_text(json.dumps(official, indent=indent))
    [asked] = read_questions(path)
    assert (asked.id, asked.answers) == ("tc_1", ("The Beatles", "Beatles", "Fab Four"))


def test_what_squad_2_says_to_be_impossible() -> None:
    plain = {
        "question": "Who?",
        "answers": [],
        "is_impossible": True,
        "plausible_answers": [{"text": "x"}],
    }
    assert (question(plain).answers, question(plain).is_impossible) == ((), True)
    assert [*question(plain).meta] == ["plausible_answers"]  # what is used is not named as unread
    copied = {
        "context": "C.",
        "title": "T",
        "question": "Who?",
        "answers": {"text": [], "answer_start": []},
    }
    assert question(copied).is_impossible
    squad = question(SQUAD)
    assert (squad.is_impossible, squad.answers, squad.answer_starts) == (False, ("Smiljan",), (18,))
    assert titles(squad.gold) == ["Nikola Tesla & co"]
    assert not question({"question": "Who?", "answers": []}).is_impossible


def test_musique_paragraphs_become_context_and_gold_passages() -> None:
    result = question(MUSIQUE)
    assert result.answers == ("Stanley", "Stanley, ND")
    assert gold_keys(result) == ("title", ("County", "Town"))
    assert [passage.title for passage in gold_passages(result)] == ["County", "Town"]
    assert [(item.passage.title, item.sentences) for item in result.context] == [
        ("Noise", ("No.",))
    ]
    steps = [{"question": "q", "answer": "a", "paragraph_support_idx": n} for n in (2, 0)]
    ordered = question(
        {**MUSIQUE, "question_decomposition": steps}
    )  # hop order, not that of the paragraphs
    assert titles(ordered.gold) == ["Town", "County"]
    assert (ordered.gold_are_ordered, result.gold_are_ordered) == (True, False)
    assert gold_facts(result) == (("County", 0), ("Town", 0))  # whole paragraphs support
    unanswerable = question({**MUSIQUE, "answerable": False})
    assert (unanswerable.answers, unanswerable.is_impossible) == ((), True)
    assert not result.is_impossible


def test_a_table_says_which_questions_are_impossible(tmp_path: Path) -> None:
    path = tmp_path / "questions.csv"
    path.write_text('question,answers,is_impossible\nWho?,"(""Ann"")",False\nWhere?,,True\n')
    read = [(question.answers, question.is_impossible) for question in read_questions(path)]
    assert read == [(("Ann",), False), ((), True)]


def test_the_files_of_mdr_have_both_paragraphs_and_wrong_ones() -> None:
    """The paragraph of the bridge is that of the second hop."""
    paragraphs = [{"title": title, "text": f"{title} is."} for title in "BAXY"]
    record = {
        "_id": "5a",
        "question": "q",
        "answer": ["a"],
        "sp": ["A", "B"],
        "type": "bridge",
        "bridge": "B",
        "pos_paras": paragraphs[:2],
        "neg_paras": paragraphs[2:],
    }
    result = question(record)
    assert (result.id, result.answers) == ("5a", ("a",))
    assert [item.passage.text for item in result.gold] == ["A is.", "B is."]
    assert (titles(result.context), needs_all(result)) == (["X", "Y"], True)
    compared = {**record, "type": "comparison", "bridge": None}
    assert titles(question(compared).gold) == ["B", "A"]
    assert (result.gold_are_ordered, question(compared).gold_are_ordered) == (True, False)


def test_gold_passages_stand_in_hop_order_with_their_supporting_sentences() -> None:
    context = [["Noise", ["No."]], ["B", ["B1.", " B2."]], ["A", ["A1.", " A2."]]]
    record = {
        "question": "q",
        "answer": "a",
        "supporting_facts": [["A", 1], ["B", 0], ["A", 5], ["C", 0]],
    }
    result = question({**record, "context": context})
    assert [(item.passage.title, item.supporting) for item in result.gold] == [
        ("A", (1, 5)),
        ("B", (0,)),
        ("C", (0,)),
    ]
    assert [item.passage.text for item in result.gold] == [
        "A1. A2.",
        "B1. B2.",
        "",
    ]  # C is only named
    assert titles(result.context) == ["Noise"]
    assert titles(question({**record, "context": None}).gold) == ["A", "B", "C"]
    twice = question(
        {"question": "q", "gold_titles": ["A", "A"], "context": [["A", ["a"]], ["A", ["b"]]]}
    )
    assert [item.passage.text for item in twice.gold] == ["a", "b"]
    unlabelled = question({"question": "q", "context": context})  # a test file
    assert (unlabelled.gold, len(unlabelled.context)) == ((), 3)


def test_kilt_evidence_beside_answers_and_alone() -> None:
    result = question(KILT)
    pages = [[page["wikipedia_id"] for page in pages] for pages in result.provenance]
    assert (result.answers, pages) == (("X",), [["12"], ["13"]])


def test_tevatron_names_positives_by_their_ids() -> None:
    named = {"query_text": "Who?", "query_id": 3, "positive_document_ids": [7, "8"]}
    assert question(named) == Question(
        "3", "Who?", gold_passage_ids=("7", "8"), gold_are_alternatives=True
    )


def test_parquet_files(tmp_path: Path) -> None:
    path = tmp_path / "dev"  # told by its first bytes
    pq.write_table(pa.Table.from_pylist([HOTPOT]), path)
    assert [gold_facts(q) for q in read_questions(path)] == [(("A", 0), ("B", 1))]
    pq.write_table(pa.Table.from_pylist([SQUAD, SQUAD]), path)
    with refusal(DataError):
        list(read_questions(path))
