"""Arguments that do not fit their annotations are refused by name, before any work."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest

import rag
from rag.core.arguments import checked
from rag.core.errors import ConfigError

if TYPE_CHECKING:
    from indexers.index import Index


@checked
def _job(
    out: str | Path,
    *,
    inputs: str | Path | Sequence[str | Path] = (),
    count: int | None = None,
    share: float = 0.5,
    overwrite: bool = False,
    until: Literal["passages", "dense"] = "dense",
    filter: Mapping[str, Any] | None = None,
    index: "Index | None" = None,
    **settings: Any,
) -> dict[str, Any]:
    return {"out": out, "inputs": inputs, "count": count, "share": share, "overwrite": overwrite, **settings}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"out": 5}, "out is 5, expected str | Path"),
        ({"inputs": [5]}, "inputs is [5], expected str | Path | Sequence[str | Path]"),
        ({"count": True}, "count is True, expected int | None"),
        ({"overwrite": "no"}, "overwrite is 'no', expected bool"),
        ({"until": "bm25"}, "until is 'bm25', expected Literal['passages', 'dense']"),
        ({"filter": "path=x"}, "filter is 'path=x', expected Mapping[str, Any] | None"),
    ],
)
def test_what_was_found_and_what_is_expected_is_said(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        _job(**{"out": "place", **given})
    assert str(refused.value) == message


def test_numbers_of_numpy_are_taken() -> None:
    found = _job(Path("x"), inputs=("a", Path("b")), count=np.int64(3), share=1, overwrite=np.True_, other=5)  # type: ignore[arg-type]
    assert found == {
        "out": Path("x"), "inputs": ("a", Path("b")), "count": 3, "share": 1, "overwrite": True, "other": 5,
    }  # fmt: skip
    assert (type(found["count"]), type(found["overwrite"])) == (int, bool)


_INDEX: dict[str, Any] = {"corpus": "sample", "out": "new", "retriever": "bm25"}
_EVALUATE: dict[str, Any] = {"index": "one", "questions": "q.jsonl"}


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        (rag.index, {**_INDEX, "overwrite": "no"}, "overwrite is 'no', expected bool"),
        (rag.index, {**_INDEX, "words": "five"}, "words = 'five': Input should be"),
        (rag.index, {**_INDEX, "split": "paragraphs"}, "split = 'paragraphs': Input should be"),
        (rag.index, {**_INDEX, "metadata": 5}, r"metadata = \[5\]: |metadata = 5: |metadata.0 = 5: "),
        (rag.index, {**_INDEX, "metadata": "path"}, "filters reserve the name 'path'"),
        (rag.mine, {"index": 5, "questions": "q.jsonl", "out": "x.json"}, "index is 5, expected str"),
        (
            rag.retrieve,
            {"index": "one", "questions": "q.jsonl", "out": "x.run", "limit": "3"},
            "limit is '3', expected int",
        ),
        (rag.train, {"recipe": "dpr", "out": 5}, "out is 5, expected str"),
        (rag.train_rounds, {"recipe": "colbert", "index": "one", "questions": "q", "out": 5}, "out is 5"),
        (rag.adapt, {"index": None, "out": "x"}, "index is None, expected str"),
        (rag.evaluate, {**_EVALUATE, "out": [5]}, r"out is \[5\], expected str"),
        (rag.compare, {"results": ["a", 5]}, r"results is \['a', 5\], expected Sequence"),
        (rag.Pipeline.open, {"index": 5}, "index is 5, expected str"),
        (rag.Pipeline.open, {"index": "one", "fusion": 5}, "fusion"),
        (rag.Pipeline.from_texts, {"texts": ["a"], "overwrite": "no"}, "overwrite is 'no'"),
    ],
)
def test_public_functions_check_their_arguments(
    function: Callable[..., Any], given: dict[str, Any], message: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        function(**given)
    assert list(tmp_path.iterdir()) == []
