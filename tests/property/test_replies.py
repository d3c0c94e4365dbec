"""Whatever a language model replies, nothing but an empty reply is an error, and no reply is
swallowed.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from rag.core.errors import ReaderError
from rag.core.types import Passage
from readers.llm.checking import Unsupported, to_result
from readers.llm.confidence import answer_log_p
from readers.llm.prompt import Completion
from readers.llm.reply import Statement, Style, parse_reply
from readers.llm.streaming import ReplyStream
from readers.protocols import ReadRequest

PASSAGES = [
    Passage("a", "Danube", "The Danube rises in Ulm on 1990-05-03, 17 % of 1,234."),
    Passage("b", "", "² ٣ x"),
]
PIECES = st.sampled_from(
    [
        *'{}[]:,.\\"\n%²٣\u0301\ud800',
        *('"answer"', '"passages"', "null", "99", "[2]", "[1, 3]", "<think>", "</think>"),
        *("The answer is ", "seventeen percent", "hundred", "and", "1990-05-03", ".5km", "Ulm"),
        *(" ", "but", "The passages do not say", "I don't know", "second", "U.S."),
    ]
)
REPLIES = st.lists(st.one_of(PIECES, st.text(max_size=5)), max_size=14).map("".join)
STYLES = st.sampled_from(["short", "cited"])


@settings(max_examples=300, deadline=None)
@given(REPLIES, STYLES, st.sampled_from(["mark", "drop"]))
def test_no_reply_is_fatal_and_none_is_swallowed(
    text: str, style: Style, unsupported: Unsupported
) -> None:
    shown = list[str]()
    stream = ReplyStream(shown.append, len(PASSAGES))
    for character in text:
        stream.feed(character)
    stream.end()
    fault = ""
    statements: tuple[Statement, ...] = ()
    try:
        statements = parse_reply(text, style)
    except ReaderError as error:
        fault = error.message
    assert fault in ("", "the reply is empty")
    request = ReadRequest.of("Where?", PASSAGES)
    result = to_result(request, statements, [0, 1], style, unsupported=unsupported)
    assert [bool(answer.text.strip()) for answer in result.answers] == [True] * bool(statements)
    tokens = tuple((character.encode("utf-8", "replace"), -1.0) for character in text)
    assert answer_log_p(Completion(text, tokens), statements) in (None, -1.0)
