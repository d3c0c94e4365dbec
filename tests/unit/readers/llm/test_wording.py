"""The same number, date or name is the same in other words, and another one is another."""

import pytest

from readers.llm.wording import says

SAME = [
    ("17 %", "seventeen percent"),
    ("0.17", "17 per cent"),
    ("1,234 boats", "1234 boats"),
    ("two million people", "2,000,000 people"),
    ("1.5 million", "1500000"),
    ("twenty-one days", "21 days"),
    ("the 21st century", "the twenty-first century"),
    ("five thousand three hundred and twelve", "5312"),
    ("a hundred and five", "105"),
    ("3 May 1990", "1990-05-03"),
    ("Jan. 3, 1990", "January 3rd 1990"),
    ("the U.S. army", "US army"),
    ("5km", "5 km"),
    ("Beyoncé’s song", "beyonce song"),
    ("10\u202f000 boats", "ten thousand boats"),
]


@pytest.mark.parametrize(("left", "right"), SAME)
def test_other_words_say_the_same(left: str, right: str) -> None:
    assert says([left], right)
    assert says([right], left)


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("It is 2,850 km long.", "It is 2,811 km long."),
        ("seventeen percent", "eighteen percent"),
        ("3 May 1990", "4 May 1990"),
        ("In 2010, 200 people came.", "In 2010, 2,010,200 people came."),
        ("nineteen ninety", "109"),
        ("It rises in Germany.", "Turner painted Venice."),
        ("\u0301 ² .5km ٣", "1990-99-99"),
    ],
)
def test_another_number_or_name_is_not_said(text: str, statement: str) -> None:
    assert not says([text], statement)


def test_one_and_second_are_mostly_no_numbers() -> None:
    assert says(["The river of Ulm is long."], "The river of Ulm is one of the second kind, long.")
