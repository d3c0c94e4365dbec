"""Questions and passages as rows of tokens, by a reader's template."""

from collections.abc import Sequence
from typing import Any

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


def _cut(tokenizer: Any, question: str, tokens: int) -> str:
    """The question, or as much of its beginning as `tokens` tokens hold."""
    if len(question) <= tokens:
        return question
    ids = tokenizer(question, add_special_tokens=False, verbose=False)["input_ids"]
    return question if len(ids) <= tokens else str(tokenizer.decode(ids[:tokens]))
