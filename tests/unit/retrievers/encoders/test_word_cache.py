"""Token ids by the table of words are those of the tokenizer, for texts of any kind."""

import threading
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace

from rag.runtime.model_files import folder_tokenizer, model_folder
from retrievers.encoders.word_cache import WordCache

ODD = [
    "", " ", "Danube, the (second-longest) river's 2,850 km.", "  two   spaces\tand\nlines\r\n",
    "no\xa0break", "a\x00b c\x1fd e\x85f", "Zürich–Basel 東京 naïve CAFÉ", ") \u0301 and e\u0301",
    "[CLS] is [MASK]ed [sep] [SEP]x", "x" * 300, "ΣΟΦΟΣ İstanbul ﬁne ½", "$5.00—ten_percent @home #1",
    "\ufeffmark\u200bzero\u00adsoft",
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return folder_tokenizer(model_folder(None))


def by_tokenizer(tokenizer: Any, texts: list[str], limit: int) -> list[list[int]]:
    return [each.ids[:limit] for each in tokenizer.encode_batch(texts, add_special_tokens=False)]


def by_cache(cache: WordCache, texts: list[str]) -> list[list[int]]:
    values, bounds = cache(texts)
    return [values[a:b].tolist() for a, b in pairwise(bounds)]


@pytest.mark.parametrize("limit", [5, 512])
@pytest.mark.parametrize("most_words", [3, 1000])
def test_odd_texts(tokenizer: Any, limit: int, most_words: int) -> None:
    cache = WordCache(tokenizer, limit, most_words=most_words)
    for _ in range(2):  # learning words, and knowing them
        assert by_cache(cache, ODD) == by_tokenizer(tokenizer, ODD, limit)
    assert by_cache(cache, ODD[::-1]) == by_tokenizer(tokenizer, ODD[::-1], limit)
    assert by_cache(cache, []) == []


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=30), max_size=4))
def test_any_text(tokenizer: Any, texts: list[str]) -> None:
    assert by_cache(WordCache(tokenizer, 20), texts) == by_tokenizer(tokenizer, texts, 20)


def test_a_tokenizer_without_a_known_rule_reads_whole_texts() -> None:
    made = Tokenizer(WordPiece({"[UNK]": 0, "a": 1, ".": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    assert by_cache(WordCache(made, 2), ["a . a", "b"]) == [[1, 2], [0]]


def test_threads_share_a_small_table(tokenizer: Any) -> None:
    cache, wanted, wrong = WordCache(tokenizer, 512, most_words=7), by_tokenizer(tokenizer, ODD, 512), []

    def work(number: int) -> None:
        for turn in range(30):
            part = slice((number + turn) % 5, None)
            if by_cache(cache, ODD[part]) != wanted[part]:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
