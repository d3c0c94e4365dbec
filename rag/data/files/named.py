"""Data sets by name: `hf:owner/name` of the Hugging Face Hub, `irds:beir/scifact` of ir_datasets.

Of the hub only data files (Parquet, JSON, CSV, …) are read, a data set's own code is never run. The
package ir_datasets fetches what a name needs and keeps it in a cache of its own, in ~/.ir_datasets.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rag.core.errors import ConfigError, DataError, RagError
from rag.core.optional import require
from rag.data.records import PlacedRecord

HF_PREFIX = "hf:"
IRDS_PREFIX = "irds:"
_TITLES = ("title", "document_title")

Grades = dict[str, dict[str, int]]  # question id → passage id → grade


def is_named(path: object) -> bool:
    """Whether a path is the name of a data set."""
    return str(path).startswith((HF_PREFIX, IRDS_PREFIX))


def named_documents(name: str) -> Iterator[PlacedRecord]:
    """The documents of a data set.

    Raises:
        ConfigError: a malformed name, or several splits and none named.
        DataError: the data set, configuration or split is missing, private, or needs a script, or
            its server cannot be reached.
    """
    is_hub = name.startswith(HF_PREFIX)
    return _numbered(name, _stream(name) if is_hub else map(_document_record, _irds(name, "docs")))


def named_questions(name: str) -> tuple[Iterator[PlacedRecord], Grades]:
    """The questions of a data set, and its judgements, if it has any; raises as
    `named_documents`.
    """
    if name.startswith(HF_PREFIX):
        return _numbered(name, _stream(name)), {}
    grades: Grades = {}
    for judged in _irds(name, "qrels"):
        grades.setdefault(judged.query_id, {})[judged.doc_id] = int(judged.relevance)
    return _numbered(name, map(_question_record, _irds(name, "queries"))), grades


def _numbered(name: str, records: Iterable[Mapping[str, Any]]) -> Iterator[PlacedRecord]:
    return (
        (f"{name}: record {number}", number, record)
        for number, record in enumerate(records, start=1)
    )


def _document_record(document: Any) -> dict[str, Any]:
    fields = dict(document._asdict())
    title = next((fields.pop(field) for field in _TITLES if isinstance(fields.get(field), str)), "")
    return {"id": fields.pop("doc_id"), "title": title, **fields}


def _question_record(query: Any) -> dict[str, Any]:
    fields = dict(query._asdict())
    text = next(
        (fields.pop(field) for field in ("text", "query", "title") if fields.get(field)), ""
    )
    return {"id": fields.pop("query_id"), "question": text, "answers": fields.pop("answers", ())}


def corpus_of(name: str) -> str:
    """The name of the corpus that a set's questions are asked of: "irds:beir/scifact" of
    "…/test".
    """
    module = require("ir_datasets", "irds")
    return IRDS_PREFIX + str(module.docs_parent_id(name.removeprefix(IRDS_PREFIX)))


def _irds(name: str, part: str) -> Iterator[Any]:
    """Documents ("docs"), questions ("queries") or judgements ("qrels") of a set; no judgements may
    be.
    """
    with _reading(name):
        dataset = require("ir_datasets", "irds").load(name.removeprefix(IRDS_PREFIX))
        if getattr(dataset, f"has_{part}")():
            yield from getattr(dataset, f"{part}_iter")()
        elif part != "qrels":
            raise DataError(
                f"{name} has no {part}", hint="see https://ir-datasets.com for what it has"
            )


def _stream(name: str) -> Iterator[Mapping[str, Any]]:
    """Rows of a data set of the hub, or of a folder with data files; without a split, of the only
    one.
    """
    place, *parts = name.removeprefix(HF_PREFIX).split(":")
    if not all((place, *parts)) or len(parts) > 2:
        raise ConfigError(
            f"{name!r} does not name a data set", hint="write hf:owner/name[[:config]:split]"
        )
    configuration, split = [None, None, *parts][-2:]
    with _reading(name):
        import datasets  # takes about a second, and most inputs do not need it

        rows: Any = datasets.load_dataset(place, configuration, split=split, streaming=True)
        if split is None:
            if len(rows) != 1:
                raise ConfigError(
                    f"{name} has the splits {', '.join(rows)}, and none was named",
                    hint=f"write for example {name}:{[*rows][-1]}",
                )
            rows = next(iter(rows.values()))
        yield from rows


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Turn errors of the libraries, and of what lies under them, into ours."""
    try:
        yield
    except RagError:
        raise
    except Exception as error:
        raise DataError(
            f"{name}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}",
            hint="check the network and the name, hf:owner/name[[:config]:split] or irds: with one of "
            "https://ir-datasets.com; log in to the hub for private sets; those with a script are never run",
        ) from error
