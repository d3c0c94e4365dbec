"""Verdicts: label, deciding sentence, page, and what is refused."""

from collections.abc import Sequence

import numpy as np
import pytest

from rag.core.arrays import Float32
from rag.core.errors import ArtifactError, ConfigError, QuestionError
from rag.core.types import VERDICT_LABELS, Hit, Location, Passage, SearchResult
from rag.data.claims import MAX_CLAIM_WORDS
from readers.verdicts import over_texts
from readers.verifying.open import load_verifier
from tests.support.messages import refusal
from tests.support.verifying import WordVerifier

CLAIM = "Ulm lies on the Danube"
TEXT = "The town is old. Ulm lies on the Danube. It has a minster."


@pytest.mark.parametrize(
    ("texts", "label", "sentence"),
    [
        ([TEXT], "supported", "Ulm lies on the Danube."),
        (["Minsters are big.", TEXT], "supported", "Ulm lies on the Danube."),
        (["A town. Ulm never lies on the Danube."], "refuted", "Ulm never lies on the Danube."),
        (["Bread is baked. Ulm bakes bread."], "not_enough", "Ulm bakes bread."),
    ],
)
def test_the_deciding_sentence_is_marked(texts: Sequence[str], label: str, sentence: str) -> None:
    (verdict,) = WordVerifier().judge([CLAIM], [texts])
    assert verdict.label == label
    assert sum(verdict.probabilities.values()) == pytest.approx(1)
    assert verdict.evidence is not None
    start, end = verdict.evidence.supporting[0]
    assert verdict.evidence.text[start:end] == sentence
    assert len(verdict.path) == len(texts)
    assert verdict.evidence in verdict.path


@pytest.mark.parametrize(
    ("related", "expected"),
    [
        ([(0.05, 0.15, 0.8)] * 20, "supported"),
        ([(0.2, 0.5, 0.3)], "supported"),
        ([(0.02, 0.95, 0.03)], "refuted"),
    ],
)
def test_what_is_nearest_decides(related: list[tuple[float, ...]], expected: str) -> None:
    alone = np.array([(0.8, 0.1, 0.1), *related], np.float32)
    row = over_texts(alone)
    assert VERDICT_LABELS[int(row.argmax())] == expected
    assert row.sum() == pytest.approx(1)
    np.testing.assert_allclose(over_texts(alone[::-1]), row, rtol=1e-5)
    np.testing.assert_allclose(over_texts(alone[:1]), alone[0], rtol=1e-5)


def test_many_sentences_that_are_hardly_related_are_not_enough() -> None:
    alone = np.tile(np.array([(0.1, 0.5, 0.4)], np.float32), (40, 1))
    assert over_texts(alone[:1]).argmax() == 1
    assert over_texts(alone).argmax() == 2


def test_a_text_about_another_code_says_nothing() -> None:
    text = "E-4711 stops the pump. A-100 starts the pump."
    claims = ["E-4711 stops the pump.", "E-4712 stops the pump.", "e-4711 stops the pump."]
    verdicts = WordVerifier().judge(claims, [[text], [text], ["It stops the pump."]])
    labels = [verdict.label for verdict in verdicts]
    assert labels == ["supported", "not_enough", "supported"]


def test_claims_keep_their_order_and_their_texts() -> None:
    verdicts = WordVerifier().judge([CLAIM, "x y", CLAIM], [[" "], ["x y."], [TEXT]])
    assert [verdict.label for verdict in verdicts] == ["not_enough", "supported", "supported"]
    assert verdicts[0].evidence is None
    assert verdicts[0].notice
    assert verdicts[0].probabilities["not_enough"] == 1
    assert verdicts[2].evidence is not None
    assert verdicts[2].evidence.text == TEXT


def test_a_path_is_judged_as_one_text_and_the_page_is_that_of_the_sentence() -> None:
    seen: list[str] = []

    class Seeing(WordVerifier):
        def probabilities(self, claims: Sequence[str], texts: Sequence[str]) -> Float32:
            seen.extend(texts)
            return super().probabilities(claims, texts)

    first = Passage("a", "Ulm", "It is a town.")
    pages = ((0, "1"), (TEXT.index("Ulm"), "2"))
    second = Passage("b", "Danube", TEXT, Location("b.pdf", "1", ("Rivers",), pages))
    path = [(Hit(0, "a", 2.0), first), (Hit(1, "b", 1.0), second)]
    (verdict,) = Seeing().judge_found([SearchResult(CLAIM, path[:1], [path])])
    assert seen[-1] == f"Ulm: It is a town. Danube: {TEXT}"
    assert [evidence.passage_id for evidence in verdict.path] == ["a", "b"]
    assert verdict.evidence is not None
    assert verdict.evidence.location is not None
    assert verdict.evidence.location.page == "2"
    shown = verdict.to_json()
    assert shown["label"] == "supported"
    assert set(shown["probabilities"]) == {"supported", "refuted", "not_enough"}


BAD_CLAIMS = {
    "empty": ([" "], [["x"]], QuestionError),
    "too long": (["x " * (MAX_CLAIM_WORDS + 1)], [["x"]], QuestionError),
    "without texts": (["x"], [], ConfigError),
}


@pytest.mark.parametrize(("claims", "texts", "error"), BAD_CLAIMS.values(), ids=BAD_CLAIMS)
def test_bad_claims_are_refused(
    claims: list[str], texts: list[list[str]], error: type[Exception]
) -> None:
    with refusal(error):
        WordVerifier().judge(claims, texts)


def test_a_verifier_that_is_missing_is_named(tmp_path: object) -> None:
    with refusal(ArtifactError, "verifier"):
        load_verifier(str(tmp_path))
