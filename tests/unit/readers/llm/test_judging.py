"""Every sentence of a cited reply is judged by the passages that it cites, and so is each citation."""

from collections.abc import Sequence
from typing import Any

import pytest

from rag.core.arrays import Float32
from rag.core.types import Answer, AnswerSet, Passage, SearchResult, Verdict
from rag.eval.settings import EvaluationSettings
from rag.eval.source import QuestionSource
from rag.metrics.citations import citation_scores
from readers.llm.judging import judge_sentences, sentences_of
from readers.llm.prompt import Completion
from readers.llm.reader import LanguageModelReader
from readers.llm.reply import parse_reply
from readers.llm.specs import LanguageModel
from readers.protocols import ReadRequest, Verifier
from tests.support.completing import MadeModel
from tests.support.verifying import WordVerifier
from tests.unit.rag.eval.conftest import QUESTIONS, ToySystem, evaluate

PASSAGES = [
    Passage("a", "Danube", "The Danube rises in Baden."),
    Passage("b", "", "Baden lies in Germany, and its capital was Karlsruhe."),
    Passage("c", "", "The Danube never rises in Baden."),
]
CITED = LanguageModel(model="made", style="cited")


@pytest.mark.parametrize("verifier", [None, WordVerifier()])
@pytest.mark.parametrize(
    ("reply", "recall", "precision"),
    [
        ("The Danube rises in Baden [1].", [True], 1),
        # Each passage alone has a third of the words, both have two thirds.
        ("Danube rises where capital Karlsruhe painters [1, 2].", [True], 1),
        ("The Danube rises in Baden [1, 2].", [True], 0.5),
        ("The Danube rises in Baden [2].", [False], 0),
        ("The Danube rises in Baden [9].", [False], 0),
        ("The Danube rises in Baden.", [False], 0),
        ("The Danube rises in Baden [1]. Turner painted Venice [1].", [True, False], 0.5),
        ("The Danube rises in Baden. Turner painted Venice [1].", [True, False], 0.5),
        ("Yes [2].", [True], 1),
        # Cited in its middle, a sentence is still one.
        ("In Baden [1] rises the Danube.", [True], 1),
        ("According to [1], the Danube rises in Baden.", [True], 1),
        # No passage has this number.
        ("Danube rises [1] where capital Karlsruhe painters [2, 9].", [True], 2 / 3),
        ("The Danube rises in Baden [1]. Turner painted Venice [9].", [True, False], 0.5),
        ("The Danube rises in Baden [1] Turner painted Venice [1].", [True, False], 0.5),
    ],
)
def test_recall_and_precision_of_citations(
    reply: str, recall: list[bool], precision: float, verifier: Verifier | None
) -> None:
    judged = judge_sentences(sentences_of(parse_reply(reply, "cited")), PASSAGES, verifier)
    assert [sentence.is_supported for sentence in judged] == recall
    assert citation_scores(judged) == {
        "citation_recall": pytest.approx(sum(recall) / len(recall)),
        "citation_precision": pytest.approx(precision),
    }


def test_a_verifier_knows_a_refutation_from_a_repetition() -> None:
    sentences = sentences_of(parse_reply("The Danube rises in Baden [3].", "cited"))
    by_words, judged = (
        judge_sentences(sentences, PASSAGES, verifier)[0] for verifier in (None, WordVerifier())
    )
    assert (by_words.is_supported, judged.is_supported) == (True, False)
    assert judged.support < 0.5


def test_one_sentence_of_a_long_passage_supports_what_it_says() -> None:
    class ShortSighted(WordVerifier):
        """Sees nothing in a long text."""

        def probabilities(self, claims: Sequence[str], texts: Sequence[str]) -> Float32:
            return super().probabilities(
                claims, [text if len(text) < 60 else "-" for text in texts]
            )

    filler = "It is a town of many houses, old and new."
    long = Passage("d", "", f"{filler} Ulm lies on the Danube. {filler}")
    [judged] = judge_sentences([("Ulm lies on a Danube.", (1,))], [long], ShortSighted())
    assert judged.is_supported


def test_what_one_cited_passage_says_is_said_whatever_else_is_cited() -> None:
    class Distracted(WordVerifier):
        """Says no where two passages stand together."""

        def probabilities(self, claims: Sequence[str], texts: Sequence[str]) -> Float32:
            return super().probabilities(
                claims, ["-" if "Karls" in text else text for text in texts]
            )

        def judge_found(self, results: Sequence[SearchResult]) -> list[Verdict]:
            return [Verdict(result.query, "not_enough") for result in results]

    judged = judge_sentences([("A Danube rises in Baden.", (1, 2))], PASSAGES, Distracted())[0]
    assert judged.is_supported
    assert judged.relevant == ("a",)


def test_a_quotation_and_an_endless_sentence_are_judged() -> None:
    endless = f"Far away, {'very ' * 300}far away."
    sentences = [("rises in Baden", (1,)), (endless, (1,))]
    quoted, judged = judge_sentences(sentences, PASSAGES, WordVerifier())
    assert (quoted.support, judged.is_supported) == (1.0, False)


@pytest.mark.parametrize(
    ("verifier", "language", "is_supported"),
    [("shipped", "en", False), ("shipped", "de", True), ("words", "en", True)],
)
def test_the_shipped_verifier_judges_english_replies(
    verifier: str, language: str, is_supported: bool
) -> None:
    model = MadeModel(lambda _: Completion("The Danube never rises in Baden [1]."))
    reader = LanguageModelReader(model, CITED.replaced(verifier=verifier)).for_language(language)
    [answers] = reader.read([ReadRequest.of("Where does it rise?", PASSAGES[:1])])
    assert answers.answers[0].is_supported == is_supported


def read(reply: str, **settings: Any) -> AnswerSet:
    changed = CITED.replaced(**settings)
    model = MadeModel(lambda _: Completion(reply))
    reader = LanguageModelReader(model, changed, verifier=WordVerifier())
    [answers] = reader.read([ReadRequest.of("Where does it rise?", PASSAGES)])
    return answers


def ask(reply: str, **settings: Any) -> Answer:
    return read(reply, **settings).answers[0]


BOTH = "The Danube rises in Baden [1]. Turner painted Venice [1, 9]."


def test_unsupported_sentences_are_marked_or_dropped_and_never_all_of_them() -> None:
    marked = ask(BOTH)
    assert marked.text == "The Danube rises in Baden. Turner painted Venice."
    assert not marked.is_supported
    assert "do not say: Turner painted Venice." in marked.note
    assert "it cites passage 9, but was shown 3" in marked.note
    shown = [(sentence.text, sentence.is_supported) for sentence in marked.sentences]
    assert shown == [("The Danube rises in Baden.", True), ("Turner painted Venice.", False)]
    dropped = ask(BOTH, unsupported="drop")
    assert (dropped.text, dropped.is_supported) == ("The Danube rises in Baden.", True)
    assert "left out: Turner painted Venice." in dropped.note
    assert dropped.confidence > marked.confidence
    alone = ask("Turner painted Venice [1].", unsupported="drop")
    assert (alone.text, alone.is_supported) == ("Turner painted Venice", False)


@pytest.mark.parametrize(
    ("reply", "certainty"),
    [
        ("The Danube rises in Baden [1].", "likely"),
        # Half of it holds: an answer with a note, and not "no answer".
        (BOTH, "perhaps"),
        ("Turner painted Venice [1].", "none"),
    ],
)
def test_a_reply_of_which_a_part_holds_is_an_answer(reply: str, certainty: str) -> None:
    assert read(reply).certainty == certainty


def test_evaluations_show_how_true_citations_are(tmp_path: Any) -> None:
    system = ToySystem()
    model = MadeModel(lambda _: Completion(BOTH))
    system.reader = LanguageModelReader(model, CITED, verifier=WordVerifier())
    settings = EvaluationSettings(ks=(1,), read=3)
    metrics = evaluate(system, QUESTIONS[:1], tmp_path, settings, source=QuestionSource("toy"))
    figures = metrics["figures"]
    assert figures["citation_recall"]["value"] == pytest.approx(0.5)
    assert figures["citation_precision"]["value"] == pytest.approx(1 / 3)
