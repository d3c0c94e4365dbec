"""Restrict generated answers to spans of given texts: which tokens may follow a partial answer."""

import re
from collections import defaultdict
from collections.abc import Sequence

from readers.generative.causal import Causal
from readers.generative.marginal_decoding import Allowed

_WORD = re.compile(r"\S+")
_CHARS_A_TOKEN = 8  # texts are cut to so many characters per token of the answer


def span_rule(network: Causal, texts: Sequence[str], answer_tokens: int) -> Allowed:
    """Make a function that returns the tokens by which a partial answer remains a span of one of the texts.

    Spans begin where a word begins and end where one ends. Each is tokenised as an answer is, from its own
    beginning.

    Args:
        network: the network that generates the answers.
        texts: the passages.
        answer_tokens: maximum length of a span.

    Returns:
        A function from the tokens so far to the tokens that may follow, including the end token after a word.
    """
    follow: dict[tuple[int, ...], set[int]] = defaultdict(set)
    blank, tokenizer = network.blank, network.tokenizer
    for text in dict.fromkeys(texts):
        starts = [found.start() for found in _WORD.finditer(text)]
        pieces = [blank + text[start : start + answer_tokens * _CHARS_A_TOKEN] for start in starts]
        if not pieces:
            continue
        made = tokenizer(pieces, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        for piece, ids, places in zip(pieces, made["input_ids"], made["offset_mapping"], strict=True):
            before: tuple[int, ...] = ()
            for token, (_, end) in zip(ids[:answer_tokens], places, strict=False):
                follow[before].add(token)
                before = (*before, token)
                if piece[:end].strip() and not _inside_a_word(piece, end):
                    follow[before].add(network.end)
    return lambda ids: follow.get(ids) or {network.end}


def _inside_a_word(text: str, place: int) -> bool:
    return place < len(text) and text[place - 1].isalnum() and text[place].isalnum()
