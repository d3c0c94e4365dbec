"""Training files of other libraries in DPR's shape: pairs, triplets, Tevatron's, FlagEmbedding's records."""

import io
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rag.core.errors import DataError
from rag.data.files.delimited import delimiter_of, named_rows, parquet_rows
from rag.data.files.streams import (
    first_line,
    first_mark,
    head_of,
    is_json_lines,
    json_lines,
    json_values,
    read_lines,
)

_QUESTIONS = ("anchor", "query", "question")
_POSITIVES = ("positive", "positives", "pos", "positive_passages")
_NEGATIVES = re.compile(r"negatives?|neg|negative_passages|negative_\d+")
_BY_ID = "positive_document_ids"
_BY_POSITION = ("anchor", "positive", "negative")  # MS MARCO's triples


def training_shape(record: Any) -> Any:
    """A record with `positive_ctxs` and `hard_negative_ctxs`; others come back as they are.

    | library | record |
    |---|---|
    | sentence-transformers | `anchor` (or `query`), `positive`, `negative`, `negative_1`, …; lists of texts |
    | FlagEmbedding | `query`, `pos`, `neg`: lists of texts |
    | Tevatron | `query_id`, `query`, `positive_passages`, `negative_passages` |

    Tevatron 2 names passages of a corpus instead (`query_text`, `positive_document_ids`): such records become
    questions with `gold_passage_ids`.

    Example:
        >>> training_shape(["who", "x is", "y is"])["hard_negative_ctxs"]
        [{'text': 'y is'}]
    """
    if isinstance(record, list) and len(record) >= 2 and all(isinstance(text, str) for text in record):
        record = {"query": record[0], "pos": record[1], "neg": record[2:]}
    if not isinstance(record, Mapping):
        return record
    if isinstance(ids := record.get(_BY_ID), list):
        rest = {name: value for name, value in record.items() if name not in {_BY_ID, "query_text", "query"}}
        return {**rest, "question": record.get("query_text", record.get("query")), "gold_passage_ids": ids}
    question = next((name for name in _QUESTIONS if isinstance(record.get(name), str)), None)
    named = [name for name in _POSITIVES if name in record]  # the first that holds something
    positive = next((name for name in named if record[name]), named[0] if named else None)
    if question is None or positive is None:
        return record
    wrong = [name for name in record if _NEGATIVES.fullmatch(str(name))]
    rest = {name: value for name, value in record.items() if name not in {question, positive, *wrong}}
    return {
        **rest,
        "question": record[question],
        "positive_ctxs": _passages(record[positive]),
        "hard_negative_ctxs": [passage for name in wrong for passage in _passages(record[name])],
    }


def _passages(value: Any) -> list[Any]:
    given = value if isinstance(value, list | tuple) else [value]
    return [{"text": item} if isinstance(item, str) else item for item in given if item]


def training_rows(stream: io.BufferedReader, path: str) -> tuple[bool, Iterator[tuple[int, Any]]]:
    """The records of a training file: JSON, JSON lines, Parquet, or a table of pairs or triplets.

    Returns:
        Whether a record is a line, and the numbered records.

    Raises:
        DataError: a table whose columns are something else.
    """
    head = head_of(stream)
    if head.startswith(b"PAR1"):
        return False, parquet_rows(path)
    if first_mark(stream) in ("{", "[", ""):
        is_lines = is_json_lines(head) or head.lstrip().startswith(b'["')
        return is_lines, json_lines(stream) if is_lines else json_values(stream, path)
    delimiter = delimiter_of(first_line(stream), _is_header)

    def columns(row: list[str]) -> tuple[list[str], bool]:
        if _is_header(row):
            return [name.strip().lower() for name in row], True
        are_texts = all(" " in cell.strip() and not cell.lstrip().startswith("[") for cell in row)
        if delimiter == "\t" and len(row) in (2, 3) and are_texts:
            return list(_BY_POSITION[: len(row)]), False
        shown = ", ".join(cell[:40] for cell in row)
        raise DataError(
            f"{path}: no training examples: its first row is {shown}",
            hint="expected columns called anchor (or query), positive and perhaps negative, each a text; "
            "questions with answers become examples by `rag mine`",
        )

    return True, named_rows(read_lines(stream), delimiter, columns, quoted=delimiter != "\t")


def _is_header(row: list[str]) -> bool:
    names = {name.strip().lower() for name in row}
    return bool(names & set(_QUESTIONS) and names & set(_POSITIVES))
