"""A model behind an address, played by a local server that speaks the protocol."""

import threading
import time
from typing import Any

import pytest

from rag.core.errors import ConfigError, ReaderError
from rag.core.types import Passage
from readers.open import open_reader, reader_kind
from readers.protocols import ReadRequest
from tests.chat_server import Server, chat, streamed
from tests.support.messages import refusal
from tests.support.reading import read_lists, read_one

PASSAGES = [
    Passage("p1", "Danube", "The Danube rises in the Black Forest."),
    Passage("p2", "", "Nothing here."),
]


def ask(
    source: str, questions: tuple[str, ...] = ("Where does the Danube rise?",), **settings: Any
) -> Any:
    reader = open_reader(source, **settings)
    return read_lists(
        reader, list(questions), [PASSAGES] * len(questions), [[0.1, 0.9]] * len(questions)
    )


def test_the_answer_has_the_passage_it_names_as_the_caller_counts_them(server: Server) -> None:
    server.replies = [
        chat(
            '{"answer": "Black Forest", "passages": [2]}',
            [
                {"token": token, "logprob": log_p, "bytes": given, "top_logprobs": []}
                for token, log_p, given in [
                    ('{"answer": "', -9.0, None),
                    ("?", -0.1, list(b"Black")),
                    (" Forest", -0.1, None),
                    ('", "passages": [2]}', -9.0, None),
                ]
            ],
        )
    ]
    assert reader_kind(server.source) == "endpoint"
    answer = ask(server.source)[0].answers[0]
    assert (answer.text, answer.evidence.passage_id) == ("Black Forest", "p1")
    assert answer.confidence == pytest.approx(0.905, abs=5e-4)
    shown = server.requests[0]["messages"][-1]["content"]
    assert shown.index("Nothing here") < shown.index(
        "The Danube"
    )  # the better score is shown first
    assert server.requests[0]["model"] == "tiny"


def test_one_question_fails_alone(server: Server) -> None:
    def reply(body: dict[str, Any]) -> tuple[int, bytes]:
        question = body["messages"][-1]["content"].rsplit("Question: ", 1)[1]
        if question == "broken?":
            return chat("<think>so")
        return (
            (500, b"{}")
            if question == "down?"
            else chat('{"answer": "Black Forest", "passages": [1]}')
        )

    server.replies = [reply]
    good, broken, down = ask(server.source, ("good?", "broken?", "down?"), retries=0)
    assert good.answers[0].text == "Black Forest"
    assert (good.failure, broken.answers, down.answers) == ("", (), ())
    assert "the reply is empty" in broken.failure
    assert "HTTP 500" in down.failure
    with refusal(ReaderError):
        ask(server.source, ("broken?", "down?"), retries=0)


def test_a_hanging_server_takes_the_time_limit_and_no_more(server: Server) -> None:
    released = threading.Event()

    def hang(_: dict[str, Any]) -> tuple[int, bytes]:
        released.wait(30)
        return chat("late")

    server.replies = [hang]
    began = time.monotonic()
    with refusal(ReaderError) as caught:
        ask(server.source + ",timeout_s=0.5,retries=0")
    assert time.monotonic() - began < 3
    assert "#tiny,timeout_s=1" in str(caught.value)
    assert len(server.requests) == 1
    released.set()


def test_a_server_without_probabilities_is_asked_without_them(server: Server) -> None:
    refusal = (400, b'{"error": {"message": "unknown parameter: logprobs"}}')
    server.replies = [refusal, chat('{"answer": "Black Forest", "passages": [2]}')]
    assert ask(server.source, retries=0)[0].answers[0].text == "Black Forest"
    assert ["logprobs" in body for body in server.requests] == [True, False]


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (
            (400, b'{"error": {"message": "unknown parameter: response_format"}}'),
            [True, False, False],
        ),
        (chat("I read on: it is the Black Forest [2]."), [True, False]),
        (chat('{"answer": "Black Forest", "passages": [2]}'), [True, True]),
    ],
)
def test_a_server_is_held_to_a_schema_until_it_refuses_or_ignores_it(
    server: Server, first: tuple[int, bytes], words: list[bool]
) -> None:
    server.replies = [first, chat("Black Forest [2]")]
    reader = open_reader(server.source, retries=0)
    for _ in range(2):
        result = read_one(reader, "Where does the Danube rise?", PASSAGES, [0.1, 0.9])
        assert "Black Forest" in result.answers[0].text
    assert ["response_format" in body for body in server.requests] == words
    asks_for_line = "short line" in server.requests[-1]["messages"][0]["content"]
    assert asks_for_line != words[-1]


BAD_REPLIES = {
    "nothing but a bracket": chat("{"),
    "page of HTML": (200, b"<html><body>Welcome</body></html>"),
    "broken JSON": (200, b'{"choices": [{"message": '),
    "no content": chat(None),
    "no choices": (200, b'{"choices": []}'),
    "bad key": (401, b'{"error": {"message": "bad key"}}'),
    "unknown model": (404, b'{"error": {"message": "model not found"}}'),
    "too long": (400, b'{"error": {"message": "too long"}}'),
    "too many requests": (429, b'{"error": {"message": "slow down"}}'),
    "failure of the server": (500, b'{"error": {"message": "oops"}}'),
    "no server": None,
}


@pytest.mark.parametrize("reply", BAD_REPLIES.values(), ids=BAD_REPLIES)
def test_bad_replies_are_clear_errors(server: Server, reply: tuple[int, bytes] | None) -> None:
    server.replies = [reply] if reply else []
    if reply is None:
        server.close()
    with refusal(ReaderError):
        ask(server.source, retries=0)


def test_a_key_is_never_shown_and_may_end_with_a_line_break(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.replies = [chat('{"answer": "the Black Forest", "passages": [1]}')]
    for key, header in (("sk-secret\n", "Bearer sk-secret"), ("", "Bearer none")):
        monkeypatch.setenv("RAG_READER_API_KEY", key)
        assert ask(server.source)[0].answers
        assert server.keys[-1] == header
    monkeypatch.setenv("RAG_READER_API_KEY", "schlüssel")
    with refusal(ConfigError) as caught:
        open_reader(server.source)
    assert "schl" not in str(caught.value)


def test_sentences_come_as_they_are_written(server: Server) -> None:
    pieces = list[str]()
    request = ReadRequest.of("Where does the Danube rise?", PASSAGES, [0.9, 0.1])
    server.replies = [streamed("<think>Hm</think>It rises in the ", "Black Forest [", "1].")]
    cited = open_reader(f"{server.source},style=cited,retries=0")
    answers = cited.stream(request, pieces.append)
    assert (len(pieces) > 1, "".join(pieces)) == (True, "It rises in the Black Forest [1].")
    assert (answers.answers[0].text, answers.answers[0].is_supported) == (
        "It rises in the Black Forest",
        True,
    )
    server.replies = [chat("Black Forest [1]")]
    pieces.clear()
    # A short reply may be JSON, and a sentence may be dropped.
    for settings in ("", ",style=cited,unsupported=drop"):
        answers = open_reader(f"{server.source}{settings}").stream(request, pieces.append)
        assert (answers.answers[0].evidence.passage_id, pieces) == ("p1", [])


HALF_STREAMS = {
    "end without a mark": streamed("It rises", is_whole=False),
    "event cut off": (200, b'data: {"choices": [{"del'),
    "page of HTML": (200, b"<html><body>Welcome</body></html>"),
    "error in an event": (200, b'data: {"error": {"message": "out of memory"}}\n\n'),
    "event that is no JSON": (200, b"data: {no\n\n"),
    "status 503": (503, b"{}"),
}


@pytest.mark.parametrize("reply", HALF_STREAMS.values(), ids=HALF_STREAMS)
def test_half_a_stream_is_an_error(server: Server, reply: tuple[int, bytes]) -> None:
    server.replies = [reply]
    reader = open_reader(f"{server.source},style=cited,retries=0")
    with refusal(ReaderError):
        reader.stream(ReadRequest.of("Where?", PASSAGES), list[str]().append)
