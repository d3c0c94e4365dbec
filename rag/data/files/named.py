"""Data sets by name: `hf:owner/name` of the Hugging Face Hub, `irds:beir/scifact` of ir_datasets.

Of the hub only data files (Parquet, JSON, CSV, …) are read, the code of a data set is never run.
The package ir_datasets fetches what a name needs and keeps it in its cache, ~/.ir_datasets.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rag.core.errors import ConfigError, DataError, RagError
from rag.core.optional import require
from rag.data.files.fields import first_of
from rag.data.records import PlacedRecord

HF_PREFIX = "hf:"
IRDS_PREFIX = "irds:"

Grades = dict[str, dict[str, int]]
"""The grade of each judged passage of a question, by the ids of questions and passages."""


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
    if name.startswith(HF_PREFIX):
        return _numbered(name, _hub_rows(name))
    return _numbered(name, map(_document_record, _irds_entries(name, "docs")))


def named_questions(name: str) -> tuple[Iterator[PlacedRecord], Grades]:
    """The questions of a data set, and its judgements, if it has any.

    Raises:
        ConfigError, DataError: as `named_documents`.
    """
    if name.startswith(HF_PREFIX):
        return _numbered(name, _hub_rows(name)), {}
    grades: Grades = {}
    # Where the parts of a question are judged apart, the best grade of a passage is the last.
    for judged in sorted(_irds_entries(name, "qrels"), key=lambda judged: judged.relevance):
        grades.setdefault(judged.query_id, {})[judged.doc_id] = int(judged.relevance)
    return _numbered(name, map(_question_record, _irds_entries(name, "queries"))), grades


def _numbered(name: str, records: Iterable[Mapping[str, Any]]) -> Iterator[PlacedRecord]:
    for number, record in enumerate(records, start=1):
        yield PlacedRecord(f"{name}: record {number}", number, record)


def _document_record(document: Any) -> dict[str, Any]:
    fields = document._asdict()
    name, title = first_of(fields, ("title", "document_title"))
    fields.pop(name, None)
    return {"id": fields.pop("doc_id"), "title": title, **fields}


def _question_record(query: Any) -> dict[str, Any]:
    fields = query._asdict()
    _, text = first_of(fields, ("text", "query", "title"))
    return {"id": fields["query_id"], "question": text, "answers": fields.get("answers", ())}


def corpus_of(name: str) -> str:
    """The name of the corpus that a set's questions are asked of.

    It is "irds:beir/scifact" of "irds:beir/scifact/test".
    """
    module = require("ir_datasets", "irds")
    return IRDS_PREFIX + str(module.docs_parent_id(name.removeprefix(IRDS_PREFIX)))


def _irds_entries(name: str, part: str) -> Iterator[Any]:
    """The entries of one part of a set: "docs", "queries", or "qrels", which may be missing."""
    with _reading(name):
        dataset = require("ir_datasets", "irds").load(name.removeprefix(IRDS_PREFIX))
        if getattr(dataset, f"has_{part}")():
            yield from getattr(dataset, f"{part}_iter")()
        elif part != "qrels":
            raise DataError(
                f"{name} has no {part}", hint="see https://ir-datasets.com for what it has"
            )


def _hub_rows(name: str) -> Iterator[Mapping[str, Any]]:
    """Rows of a data set of the hub, or of a folder with data files; of its only split by default."""
    path, *parts = name.removeprefix(HF_PREFIX).split(":")
    if not all((path, *parts)) or len(parts) > 2:
        raise ConfigError(
            f"{name!r} does not name a data set", hint="write hf:owner/name[[:config]:split]"
        )
    split = parts.pop() if parts else None
    configuration = parts.pop() if parts else None
    with _reading(name):
        # Its import takes about a second, and most inputs do not need it.
        import datasets

        rows: Any = datasets.load_dataset(path, configuration, split=split, streaming=True)
        if split is None:
            splits = dict(rows)
            if len(splits) != 1:
                raise ConfigError(
                    f"{name} has the splits {', '.join(splits)}, and none was named",
                    hint=f"write for example {name}:{[*splits][-1]}",
                )
            [rows] = splits.values()
        yield from rows


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Turn errors of the libraries, and of what lies under them, into ours."""
    try:
        yield
    except RagError:
        raise
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        raise DataError(
            f"{name}: {type(error).__name__}: {first_line}",
            hint="check the network and the name, hf:owner/name[[:config]:split] or irds: with one of "
            "https://ir-datasets.com; log in to the hub for private sets; those with a script are never run",
        ) from error
