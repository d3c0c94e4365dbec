"""What is masked: dates and names by rule."""

import pytest

from rag.core.types import Passage
from rag.data.salient import find_dates, find_names, title_hashes


@pytest.mark.parametrize(
    ("text", "dates"),
    [
        ("Born 12th of June 1901 or June 13, 1901.", ["12th of June 1901", "June 13, 1901"]),
        ("It may march in May.", []),
        (
            "From March 1850 to the 1860s, 1500 ships, 1,500 men and 1850.5 tons",
            ["March 1850", "1860s", "1500"],
        ),
        ("room 12345 in 0999", []),
    ],
)
def test_dates(text: str, dates: list[str]) -> None:
    assert [text[slice(*span)] for span in find_dates(text)] == dates


def test_names_by_looks_and_by_titles() -> None:
    passages = [
        Passage("1", "Danube (river)", "x"),
        Passage("2", "Danube (river)", "y"),
        Passage("3", "", "z"),
    ]
    hashes = title_hashes(passages)
    assert len(hashes) == 1
    cases = {
        "Danube rises there.": ["Danube"],  # a title
        "Rivers rise there.": [],  # a sentence's first word
        "The Danube and It rise.": ["Danube"],
        "Ludwig van Beethoven met the Duke of York.": ["Ludwig van Beethoven", "Duke of York"],
        "“The Bank” opened in São Paulo, not I.": ["Bank", "São Paulo"],
        "nothing here": [],
    }
    actual = [[text[slice(*span)] for span in find_names(text, hashes)] for text in cases]
    assert actual == list(cases.values())
