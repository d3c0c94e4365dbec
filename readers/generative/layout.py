"""Questions and passages as rows of tokens, by a reader's template."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rag.core.types import Passage
from readers.generative.settings import GeneratorSettings
from readers.protocols import PassageLists


def encode_rows(
    tokenizer: Any, settings: GeneratorSettings, questions: Sequence[str], passages: PassageLists
) -> list[list[list[int]]]:
    """Token ids of every passage of every question; rows over `passage_tokens` are cut at their end.

    Special tokens that the template contains (such as "[SEP]") become these tokens; the tokenizer adds its
    usual special tokens around rows.
    """
    shortened = [_cut(tokenizer, question, settings.question_tokens) for question in questions]
    texts = [
        settings.template.format(question=question, title=passage.title, text=passage.text)
        for question, found in zip(shortened, passages, strict=True)
        for passage in found
    ]
    if not texts:
        return [[] for _ in questions]
    flat = iter(
        tokenizer(texts, truncation=True, max_length=settings.passage_tokens, verbose=False)["input_ids"]
    )
    return [[list(next(flat)) for _ in found] for found in passages]


def marked(passage: Passage, start: int, end: int, words: int = 110) -> Passage:
    """A passage cut to its words around the characters from `start` to `end`, which are put into [[ ]].

    Of the other words two thirds stand before them, if there are so many.

    Source:
        Chan & Fan 2019, "A Recurrent BERT-based Model for Question Generation", section 3.3 (marked answers).

    Example:
        >>> marked(Passage("1", "Numbers", "one two three four five six"), 8, 13, words=3).text
        'two [[three]] four'
    """
    places = [word.span() for word in re.finditer(r"\S+", passage.text)]
    inside = [number for number, (a, b) in enumerate(places) if a < end and b > start]
    before = 2 * max(0, words - len(inside)) // 3
    first = max(0, min(inside[0] - before, len(places) - words))
    last = min(max(inside[-1], first + words - 1), len(places) - 1)
    text, begin, stop = passage.text, places[first][0], places[last][1]
    return replace(passage, text=f"{text[begin:start]}[[{text[start:end]}]]{text[end:stop]}")


def _cut(tokenizer: Any, question: str, tokens: int) -> str:
    """The question, or as much of its beginning as `tokens` tokens hold."""
    if len(question) <= tokens:
        return question
    ids = tokenizer(question, add_special_tokens=False, verbose=False)["input_ids"]
    return question if len(ids) <= tokens else str(tokenizer.decode(ids[:tokens]))
