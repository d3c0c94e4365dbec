"""A reply in pieces reads like the whole reply, wherever it is cut."""

import time

import pytest

from readers.llm.streaming import ReplyStream

LONG = "a" * 60


@pytest.mark.parametrize(
    ("reply", "shown"),
    [
        ("It rises [3], it ends [1, 3] [9].", "It rises [1], it ends [2, 1] ."),
        ("<think>Is it [2]?</think>\n\nYes [2].", "Yes [1]."),
        ("<think>without an end [1]", ""),
        (
            "As <passage 0123 2> says </passage 0123 2>: a < b, x[i] = 1",
            "As  says : a < b, x[i] = 1",
        ),
        (f"open [ {LONG} and < {LONG}", f"open [ {LONG} and < {LONG}"),
        ("[0] and [00002]", "and [00002]"),
        ("", ""),
    ],
)
def test_any_pieces_give_the_same_text(reply: str, shown: str) -> None:
    for size in range(1, len(reply) + 1):
        pieces = list[str]()
        stream = ReplyStream(pieces.append, n_shown=4)
        for begin in range(0, len(reply), size):
            stream.feed(reply[begin : begin + size])
        stream.end()
        assert "".join(pieces) == shown
        assert all(pieces)


@pytest.mark.parametrize("before", ["", "<think>"])
def test_a_long_reply_takes_time_by_its_length(before: str) -> None:
    stream = ReplyStream(lambda text: None, n_shown=4)
    stream.feed(before)
    started = time.process_time()
    for _ in range(20_000):
        stream.feed("word ")
    # Ten times as long if every piece looked at the whole reply.
    assert time.process_time() - started < 1.0
