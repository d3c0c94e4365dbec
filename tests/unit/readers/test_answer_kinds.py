"""What a reader of spans gives for questions that ask for a list, or for yes or no."""

from dataclasses import replace
from pathlib import Path

import pytest

import rag
from rag.core.types import Answer, AnswerSet, Evidence, Passage
from rag.pipeline import Pipeline
from rag.policies import Finish, SearchOnce, State
from readers.answer_kinds import asks_yes_no, list_around, present_spans
from tests.pipeline_parts import LastWordsReader

TEXT = "It is a server.\n\nIt runs on Linux and on BSD. Windows is not supported."
YES_NO = "Does it run on Windows?"


def answers_of(*spans: tuple[str, float]) -> tuple[Answer, ...]:
    passage = Passage("1", "", TEXT)
    places = [(at, at + len(text)) if (at := TEXT.find(text)) >= 0 else None for text, _ in spans]
    evidence = [Evidence.of(passage, 1.0, place) for place in places]
    return tuple(
        Answer(text, p, p, place) for (text, p), place in zip(spans, evidence, strict=True)
    )


@pytest.mark.parametrize(
    ("question", "asks"),
    [
        ("Is it possible to run it twice?", True),
        ("So, doesn't it need a key?", True),
        ("Is it red or blue?", False),
        ("Could you please list the options?", False),
        ("Island names?", False),
        ("What is supported, and is it free?", False),
    ],
)
def test_what_asks_for_yes_or_no(question: str, asks: bool) -> None:
    assert asks_yes_no(question) is asks


def test_sentences_stand_for_the_spans_in_them() -> None:
    spans = answers_of(("yes", 0.5), ("not supported", 0.1), ("Linux", 0.08), ("BSD", 0.07))
    shown = present_spans(AnswerSet(YES_NO, spans, 0.2), 5)
    assert shown.kind == "passage"
    texts = ["It runs on Linux and on BSD.", "Windows is not supported."]
    assert [answer.text for answer in shown.answers] == texts
    assert [answer.confidence for answer in shown.answers] == pytest.approx([0.8 * 0.6, 0.8 * 0.4])
    for answer in shown.answers:
        assert answer.evidence.text[answer.evidence.start : answer.evidence.end] == answer.text
    assert len(present_spans(AnswerSet(YES_NO, spans, 0.2), 1).answers) == 1
    assert present_spans(AnswerSet(YES_NO, spans[:1], 0.2), 1).answers == ()


def test_other_questions_and_readers_that_tell_keep_their_answers() -> None:
    spans = answers_of(("yes", 0.5), ("Linux", 0.1))
    other_question = AnswerSet("What does it run on?", spans, 0.2)
    other_reader = LastWordsReader()
    for shown in (
        present_spans(other_question, 1),
        other_reader.present(AnswerSet(YES_NO, spans, 0.2), 1),
    ):
        assert (shown.kind, shown.answers) == ("answer", spans[:1])
    assert other_reader.count_candidates(YES_NO, 3) == 3


def test_the_pipeline_shows_the_sentence_and_answers_other_questions_in_the_same_batch() -> None:
    with rag.Pipeline.from_texts([TEXT, "Oslo is the capital of Norway."]) as pipeline:
        first, second = pipeline.ask_many([YES_NO, "What is the capital of Norway?"], n_best=2)
        alone = pipeline.ask("What is the capital of Norway?", n_best=2)
    assert first.to_json()["kind"] == "passage"
    assert {item.evidence.text for item in first.answers} == {TEXT}
    assert all(
        item.text in TEXT.replace("\n", " ") and item.text.endswith(".") for item in first.answers
    )
    assert "kind" not in second.to_json()
    assert second.answers[0].text == "Oslo"
    assert len(second.answers) == 2
    assert [item.text for item in second.answers] == [item.text for item in alone.answers]


STEPS = "Before you begin, you need:\n\n1. a key,\n2. a name, and\n3. a server.\n\nThen start it."


def test_the_list_around_a_span_ends_where_its_entries_end() -> None:
    whole = "1. a key,\n2. a name, and\n3. a server."
    for part in ("you need", "a key", "a server"):
        start = STEPS.index(part)
        result = list_around(STEPS, start)
        assert result is not None
        assert STEPS[slice(*result)] == whole
    for text, part in (
        (STEPS, "start"),
        ("One:\n\n• entry", "entry"),
        ("Nothing:", "Nothing"),
        ("", ""),
    ):
        assert list_around(text, text.index(part)) is None


@pytest.mark.parametrize(
    ("question", "text", "kind"),
    [
        ("How do I start it?", STEPS, "list"),
        ("And how can we start it?", STEPS, "list"),
        ("What are the things that it needs?", STEPS, "list"),
        ("How many keys does it need?", STEPS, "answer"),
        ("How do I start it?", "You need:\n• a key\n• a name", "answer"),
    ],
)
def test_what_is_found_is_shown_though_no_short_answer_is_likely(
    question: str, text: str, kind: str
) -> None:
    start = text.index("a key")
    evidence = Evidence.of(Passage("1", "", text), 1.0, (start, start + 5))
    result = AnswerSet(question, (Answer("a key", 1.0, 0.1, evidence),), 0.65)
    shown = present_spans(result, 3)
    assert (shown.kind, shown.is_answered) == (kind, kind == "list")
    sentences = present_spans(replace(result, question=YES_NO), 3)
    assert (sentences.kind, sentences.certainty) == ("passage", "perhaps")


def test_rules_for_english_are_off_in_other_languages(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "1", "text": "Die Hauptstadt von Österreich ist Wien."}\n')
    kinds = {}
    for language in ("en", "de"):
        place = tmp_path / language
        rag.index(corpus, place, retriever="bm25", language=language, threads=1)
        with Pipeline.open(place) as pipeline:
            assert pipeline.reader is not None
            # "Was", what, is no auxiliary verb.
            kinds[language] = pipeline.ask("Was ist die Hauptstadt?").kind
            candidates = pipeline.reader.count_candidates("Was ist die Hauptstadt?", 5)
            policy = SearchOnce.of(pipeline.reader)
        assert (candidates > 5) is (language == "en")
        assert isinstance(policy.step(State("Okay")), Finish) is (language == "en")
    assert kinds == {"en": "passage", "de": "answer"}
