"""Values computed with the official scripts of SQuAD, HotpotQA, DPR, ORQA and DrQA."""

import unicodedata
from typing import Any, cast

import pytest

from rag.core.errors import ConfigError
from rag.data.text import AnswerMatcher, exact_match, f1, nfd, normalize_answer, simple_tokenize
from tests.support.messages import refusal

COMPOSED = "Beyoncé"
DECOMPOSED = unicodedata.normalize("NFD", COMPOSED)


def has_answer(answers: list[str], text: str, regex: bool = False) -> bool:
    return AnswerMatcher(answers, "trec_search" if regex else "squad").matches(text)


@pytest.mark.parametrize("profile", ["squad", "hotpot", "squad2"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The U.S.A.", "usa"),
        ("a-b the-cat", "ab thecat"),
        ("“Hello” – World", "“hello” – world"),
        ("The", ""),
        ("10,000", "10000"),
        ("Beyoncé's", "beyoncés"),
        ("  an  apple\ta day\n", "apple day"),
    ],
)
def test_normalization_follows_the_squad_script(text: str, expected: str, profile) -> None:
    assert normalize_answer(text, profile) == expected


def test_only_the_nfd_profiles_unify_accents() -> None:
    assert not exact_match(COMPOSED, [DECOMPOSED], "squad")
    assert not exact_match(COMPOSED, [DECOMPOSED], "hotpot")
    assert exact_match(COMPOSED, [DECOMPOSED], "nq_open")
    assert not exact_match("Beyonce", [COMPOSED], "nq_open")


@pytest.mark.parametrize(("prediction", "answer"), [("the", "a"), ("", "")])
def test_empty_against_empty(prediction: str, answer: str) -> None:
    assert exact_match(prediction, [answer], "hotpot")
    assert f1(prediction, [answer], "hotpot") == 0
    assert f1(prediction, [answer], "squad") == 0
    assert f1(prediction, [answer], "squad2") == 1
    assert f1("x", [answer], "squad2") == 0


@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        ("The U.S. economy grew", "U.S.", True),
        ("The US economy", "U.S.", False),
        ("Café Paris", unicodedata.normalize("NFD", "café paris"), True),
        ("1000 people", "1,000", False),
        ("rock-and-roll", "rock and roll", False),
        ("smithsonian", "smith", False),
        ("Smith's dog", "Smith", True),
        ("rock-and-roll", "rock-and-roll", True),
        ("the end", "the", True),
        ("new  york\ncity", "New York City", True),
        ("", "x", False),
        ("any text", "\u200b", False),
        ("any text", " ", False),
        ("ΟΔΟΣ'Α", "οδος", True),  # the sigma's form depends on its neighbours
    ],
)
def test_has_answer_follows_dpr(text: str, answer: str, expected: bool) -> None:
    assert has_answer([answer], text) is expected
    assert has_answer(["something else", answer], text) is expected


def test_regex_answers() -> None:
    pattern = ["Alaska|AK"]
    assert all(exact_match(p, pattern, "trec_search") for p in ("Alaska", "in Alaska", "akin"))
    assert has_answer([r"19\d\d"], "born in 1984", regex=True)
    assert has_answer(["é"], "caf" + nfd("é"), regex=True)
    for invalid in ("(", ""):
        assert not exact_match("(", [invalid], "trec_search")
        assert not has_answer([invalid], "(", regex=True)
    with refusal(ConfigError):
        AnswerMatcher(pattern, cast("Any", "regex"))


def test_tokens_of_ascii_and_other_text_follow_one_rule() -> None:
    ascii_text = "".join(map(chr, range(128)))
    with_other = simple_tokenize(ascii_text + " é")
    assert simple_tokenize(ascii_text) == with_other[:-1]
    assert simple_tokenize("x\u00a0y\u200bz 東京1") == ["x", "y", "z", "東京1"]
