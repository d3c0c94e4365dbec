"""Answers consist of whole tokens of one unit of the text."""

import pytest

from readers.borders import one_unit, whole_tokens

CUT = [
    ("Use --no-cache-dir, please", "cache", "--no-cache-dir"),
    ("costs $ 1,299.50 today", "299", "$ 1,299.50"),
    ("write to jane.doe+x@mail.example.org.", "example", "jane.doe+x@mail.example.org"),
    ("see https://a.example.org/x?y=1.", "example", "https://a.example.org/x?y=1"),
    ("in /etc/apt/sources.list.d/foo.list,", "apt", "/etc/apt/sources.list.d/foo.list"),
    ("keep .newsauth there", "newsauth", ".newsauth"),
    ("call os.path.join() now", "path", "os.path.join()"),
    ("-16.17 degrees", "16.17", "-16.17"),
    ("at 12:30 pm", "12", "12:30"),
    ("by Dorothy Hodgkin's group", "othy Hodg", "Dorothy Hodgkin"),
    ("по реке Дунай.", "уна", "Дунай"),
    ("多瑙河很长", "瑙河", "瑙河"),
]
WHOLE = ["1990-95 ended", "and/or this", "1945.Then it", "red, white"]


@pytest.mark.parametrize(("text", "part", "whole"), CUT)
def test_words_options_versions_addresses_paths_and_prices_are_not_cut(
    text: str, part: str, whole: str
) -> None:
    start = text.index(part)
    assert text[slice(*whole_tokens(text, start, start + len(part)))] == whole


@pytest.mark.parametrize("text", WHOLE)
def test_words_of_prose_are_left_as_they_are(text: str) -> None:
    first = len(text) - len(
        text.lstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
    )
    assert whole_tokens(text, 0, first) == (0, first)


MARKED = [  # what a span model marked, between brackets, and the answer
    ("Run [head -c 256 /dev/random > key\n\n• 2.13] Next", "head -c 256 /dev/random > key"),
    ("[)\n\nMozambique]", "Mozambique"),
    ("| Letter | Name |\n| l | lookup [|\n| r | read] |", "r"),
    ("ID: 4; Measure: [seawall, demo\nID: 5; Measure: sandbags]", "seawall, demo"),
    ("listening to feedback [from the\nusers] of the site", "from the\nusers"),
    ("played by [Star Wars: Episode IV] in 1977", "Star Wars: Episode IV"),
]


@pytest.mark.parametrize(("marked", "answer"), MARKED)
def test_borders_of_answers(marked: str, answer: str) -> None:
    text = marked.replace("[", "").replace("]", "")
    start, end = one_unit(text, *whole_tokens(text, marked.index("["), marked.index("]") - 1))
    assert text[start:end].strip() == answer
