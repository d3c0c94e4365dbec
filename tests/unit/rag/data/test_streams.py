import io
import json
import random
from pathlib import Path

import pytest

from rag.core.errors import DataError
from rag.data.corpus import IdSet
from rag.data.files.streams import (
    first_line,
    first_mark,
    head_of,
    iter_json_array,
    load_json,
    open_binary,
    read_lines,
)
from rag.data.records import BadRecord


def reader(data: bytes) -> io.BufferedReader:
    return io.BufferedReader(io.BytesIO(data))  # type: ignore[arg-type]


def test_a_head_keeps_the_tab_of_an_unnamed_first_column() -> None:
    stream = reader(b"\xef\xbb\xbf\r\n  \tquestion\r\n0\tWho?\n")
    assert head_of(stream) == b"\tquestion\r\n0\tWho?\n"
    assert (first_line(stream), first_mark(stream)) == ("\tquestion", "q")
    assert stream.read(4) == b"\xef\xbb\xbf\r"  # nothing is consumed


def test_lines_that_are_too_long_cost_only_themselves() -> None:
    lines = list(
        read_lines(reader(b"one\n" + b"x" * 50 + b"\n12345678\r\n123456789\nlast"), max_line_bytes=10)
    )
    assert [n for n, _ in lines] == [1, 2, 3, 4, 5]
    assert [line for _, line in lines if isinstance(line, str)] == ["one", "12345678", "123456789", "last"]
    assert isinstance(lines[1][1], BadRecord)


def test_lists_of_any_size_are_streamed() -> None:
    rng = random.Random(3)
    values = [{"n": i, "text": "é" * rng.randrange(3 * 2**16)} for i in range(40)] + [
        12,
        "x",
        None,
        [1, [2]],
        3.5,
    ]
    for indent in (None, 1):
        data = json.dumps(values, indent=indent, ensure_ascii=False).encode()
        assert [value for _, value in iter_json_array(reader(data), "x")] == values
    assert list(iter_json_array(reader(b" [ ] \n"), "x")) == []
    numbers = list(range(400_000))  # the border of a chunk falls into a number
    assert [value for _, value in iter_json_array(reader(json.dumps(numbers).encode()), "x")] == numbers


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "expected a JSON list"),
        (b"{}", "expected a JSON list"),
        (b"[", "malformed"),
        (b"[1", "truncated JSON list"),
        (b"[1 2]", "found '2'"),
        (b"[1,]", "malformed"),
        (b"[1, {]", "after record 1"),
        (b"[1] x", "more text behind"),
        (b'[{"a": "b', "malformed"),
        (b"[" * 5000, "malformed"),
    ],
)
def test_broken_lists_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(DataError, match=words):
        list(iter_json_array(reader(data), "x.json"))


def test_elements_have_a_limit() -> None:
    with pytest.raises(DataError, match="more than 1,000 characters"):
        list(iter_json_array(reader(b'["' + b"x" * 3_000_000), "x", max_element_chars=1000))


def test_load_json_names_the_file() -> None:
    with pytest.raises(DataError, match=r"x\.json: not valid JSON"):
        load_json(reader(b"{"), "x.json")


def test_open_binary_explains(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a directory"), open_binary(tmp_path):
        pass
    with pytest.raises(DataError, match="no such file"), open_binary(tmp_path / "x"):
        pass


def test_id_set_equals_a_set() -> None:
    rng = random.Random(1)
    seen, expected = IdSet(recent=16), set()
    for _ in range(60_000):
        item = str(rng.randrange(40_000))
        assert seen.add(item) is (item not in expected)
        expected.add(item)
    assert len(seen) == len(expected)
    assert seen._sorted.nbytes >= 0.9 * 8 * len(seen)  # nearly all in the array of 8 bytes each
