"""Supporting facts: the sentences of an answer, and their figures in an evaluation."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rag.core.files import read_json
from rag.core.types import Answer, AnswerSet, Evidence, Hit, Passage, Question, SearchResult
from rag.data.corpus import read_documents
from rag.data.files.rows import write_json_lines
from rag.data.questions import questions_from
from rag.data.sentences import align_sentences
from rag.eval.report import render_report
from rag.eval.results import load_evaluation
from rag.eval.scoring import find_facts
from tests.support.reading import MadeReader
from tests.unit.rag.eval.conftest import evaluate, settings

# The boundary after "no. 5" is one that a rule would not find, and sentence 1 is blank.
SENTENCES = {
    "Silent Harbour": [
        "Silent Harbour is film no. 5",
        " ",
        " of the director Ada Moss.",
        " It is long.",
    ],
    "Ada Moss": ["Ada Moss was born in Norway.", " She paints."],
}
CORPUS = [
    {"id": f"d{n}", "title": title, "sentences": lines}
    for n, (title, lines) in enumerate(SENTENCES.items())
]
RECORD = {
    "id": "h1",
    "question": "Where was the director of Silent Harbour born?",
    "answer": "Norway",
    "type": "bridge",
    "supporting_facts": [["Silent Harbour", 2], ["Ada Moss", 0]],
}
CONTEXT = [[title, lines] for title, lines in SENTENCES.items()]
[QUESTION] = questions_from([RECORD])
[WITH_CONTEXT] = questions_from([{**RECORD, "context": CONTEXT}])


@pytest.fixture
def retrieved(tmp_path: Path) -> list[tuple[Hit, Passage]]:
    path = tmp_path / "paragraphs.jsonl"
    write_json_lines(path, CORPUS)
    return [
        (Hit(n, item.id, 2.0 - n), Passage(item.id, item.title, item.text))
        for n, item in enumerate(read_documents(path))
    ]


def answers(pairs: list[tuple[Hit, Passage]]) -> AnswerSet:
    _, passage = pairs[1]
    start = passage.text.index("Norway")
    evidence = Evidence(passage.id, passage.title, passage.text, start, start + 6, 1.0)
    return AnswerSet("q", (Answer("Norway", 1.0, 0.8, evidence),), 0.1, "v", {})


def reads(pairs: list[tuple[Hit, Passage]]) -> Any:
    """A system that finds the same passages and the same answer every time."""

    def search(queries: list[str], top_k: int, *, timer: Any = None) -> list[SearchResult]:
        return [SearchResult(query, pairs[:top_k]) for query in queries]

    return SimpleNamespace(search=search, reader=MadeReader(lambda _: answers(pairs)), identity={})


def test_alignment_refuses_other_text() -> None:
    assert align_sentences("One. Two.", ["One.", "Two."]) == ((0, 4), (5, 9))
    assert align_sentences("One. Two. Three.", ["One.", "Three."]) is None
    assert align_sentences("One. Two.", ["Two.", "One."]) is None
    assert align_sentences("", []) == ()


def test_boundaries_come_from_the_question_set_then_from_a_rule(retrieved: Any) -> None:
    expected = [("Silent Harbour", 2), ("Ada Moss", 0)]
    assert find_facts(WITH_CONTEXT, answers(retrieved), retrieved) == expected
    assert find_facts(QUESTION, answers(retrieved), retrieved) != expected
    assert find_facts(Question("x", "q"), AnswerSet("q", (), 1.0, "v", {}), []) == []


def test_sp_and_joint_figures_of_an_evaluation(tmp_path: Path, retrieved: Any) -> None:
    given = settings(profile="hotpot", ks=(1, 2), read=2)
    metrics = evaluate(reads(retrieved), [WITH_CONTEXT], tmp_path / "out", given)
    assert all(
        metrics["figures"][name]["value"] == 1.0 for name in ("em", "sp_em", "joint_em", "joint_f1")
    )
    text = render_report([load_evaluation(tmp_path / "out")])
    assert "Supporting facts F1" in text
    written = read_json(tmp_path / "out" / "predictions.hotpot.json")
    assert written["sp"] == {"h1": [["Silent Harbour", 2], ["Ada Moss", 0]]}
