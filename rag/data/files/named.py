"""Data sets by name: `hf:owner/name` of the Hugging Face Hub, `irds:beir/scifact` of ir_datasets.

Of the hub only data files (Parquet, JSON, CSV, …) are read, a data set's own code is never run. The package
ir_datasets fetches what a name needs and keeps it in a cache of its own, in ~/.ir_datasets.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rag.core.errors import ConfigError, DataError, RagError, ResourceError
from rag.core.optional import require

HF_PREFIX = "hf:"
IRDS_PREFIX = "irds:"
_UNREACHABLE = {
    *("ConnectionError", "HTTPError", "TimeoutError", "OfflineModeIsEnabled", "ConnectError"),
    *("TimeoutException", "URLError"),
}
_USUAL_SPLITS = ("train", "test", "validation", "dev")
_TITLES = ("title", "document_title")

Grades = dict[str, dict[str, int]]  # question id → passage id → grade


def is_named(path: object) -> bool:
    """Whether a path is the name of a data set."""
    return str(path).startswith((HF_PREFIX, IRDS_PREFIX))


def named_documents(name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The documents of a data set as records, numbered from 1; of the hub the split "train" if none is named.

    Raises:
        ConfigError, DataError, ResourceError: see `stream_rows`.
    """
    if name.startswith(HF_PREFIX):
        return stream_rows(name, default_split="train")
    return _irds(name, "docs", _document_record)


def _document_record(document: Any) -> dict[str, Any]:
    fields = dict(document._asdict())
    title = next((fields.pop(field) for field in _TITLES if isinstance(fields.get(field), str)), "")
    return {"id": fields.pop("doc_id"), "title": title, **fields}


def irds_questions(name: str) -> tuple[Iterator[tuple[int, Mapping[str, Any]]], Grades]:
    """The questions of a set of ir_datasets as records, and its judgements; raises as `named_documents`."""
    grades: Grades = {}
    if load_irds(name).has_qrels():
        for _, judged in _irds(name, "qrels", lambda it: it):
            grades.setdefault(judged.query_id, {})[judged.doc_id] = int(judged.relevance)
    return _irds(name, "queries", _question_record), grades


def _question_record(query: Any) -> dict[str, Any]:
    fields = dict(query._asdict())
    text = next((fields.pop(field) for field in ("text", "query", "title") if fields.get(field)), "")
    return {"id": fields.pop("query_id"), "question": text, "answers": fields.pop("answers", ())}


def corpus_of(name: str) -> str:
    """The name of the corpus that a set's questions are asked of: "irds:beir/scifact" of "…/test"."""
    module = require("ir_datasets", "irds")
    return IRDS_PREFIX + str(module.docs_parent_id(name.removeprefix(IRDS_PREFIX)))


def load_irds(name: str) -> Any:
    """A data set of ir_datasets by its name.

    Raises:
        ConfigError: there is none of this name.
    """
    module = require("ir_datasets", "irds")
    try:
        return module.load(name.removeprefix(IRDS_PREFIX))
    except KeyError as error:
        raise ConfigError(
            f"{name}: ir_datasets has no data set of this name", hint="see https://ir-datasets.com for names"
        ) from error


def _irds(name: str, part: str, record: Any) -> Iterator[tuple[int, Any]]:
    """Documents ("docs"), questions ("queries") or judgements ("qrels") of a set."""
    dataset = load_irds(name)
    if not getattr(dataset, f"has_{part}")():
        raise DataError(f"{name} has no {part}", hint="see https://ir-datasets.com for what it has")
    try:
        yield from enumerate(map(record, getattr(dataset, f"{part}_iter")()), start=1)
    except RagError:
        raise
    except Exception as error:
        raise _explained(name, error) from error


def parse_name(name: str) -> tuple[str, str | None, str | None]:
    """Split `hf:owner/name[:config][:split]` into name, configuration and split, None where it has none.

    A single extra part is a split if it is one of the usual names (slices such as `train[:100]` are not
    streamed), otherwise a configuration.

    Raises:
        ConfigError: no name, or too many parts.

    Example:
        >>> parse_name("hf:owner/wiki:20231101.en:train"), parse_name("hf:owner/wiki:test")
        (('owner/wiki', '20231101.en', 'train'), ('owner/wiki', None, 'test'))
    """
    parts = name.removeprefix(HF_PREFIX).split(":")
    if not all(parts) or len(parts) > 3:
        raise ConfigError(f"{name!r} does not name a data set", hint="write hf:owner/name[:config][:split]")
    if len(parts) == 3:
        return parts[0], parts[1], parts[2]
    if len(parts) == 2:
        return (parts[0], None, parts[1]) if parts[1] in _USUAL_SPLITS else (parts[0], parts[1], None)
    return parts[0], None, None


def shown_name(name: str) -> tuple[str, str]:
    """A data set's name as people write it, and what names its split; "" if nothing does.

    Example:
        >>> shown_name("hf:owner/nq:open:test"), shown_name("irds:beir/scifact/test")
        (('owner/nq (open)', 'test'), ('beir/scifact/test', 'beir/scifact/test'))
    """
    if not name.startswith(HF_PREFIX):
        return (name.removeprefix(IRDS_PREFIX),) * 2
    place, configuration, split = parse_name(name)
    return f"{place} ({configuration})" if configuration else place, split or ""


def stream_rows(name: str, *, default_split: str | None = None) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows of a data set of the hub with their 1-based numbers.

    Args:
        name: `hf:owner/name[:config][:split]`; a folder with data files stands for owner/name too.
        default_split: taken if the name has none; if None, the data set's only split is.

    Raises:
        ConfigError: a malformed name, an unknown configuration or split, or several splits and none named.
        DataError: the data set is missing, private, or needs a script.
        ResourceError: the hub cannot be reached.
    """
    place, configuration, split = parse_name(name)
    try:
        import datasets  # takes about a second, and most inputs do not need it

        chosen = split or default_split
        rows: Any = datasets.load_dataset(place, configuration, split=chosen, streaming=True)
        if chosen is None:
            if len(rows) != 1:
                # the one to propose is for measuring, not for training
                proposed = next((s for s in ("validation", "dev", "test") if s in rows), [*rows][-1])
                raise ConfigError(
                    f"{name} has the splits {', '.join(rows)}, and none was named",
                    hint=f"write for example {name}:{proposed}",
                )
            rows = next(iter(rows.values()))
        yield from enumerate(rows, start=1)
    except RagError:
        raise
    except Exception as error:
        raise _explained(name, error) from error


def revision_of(name: str) -> str:
    """The commit of a hub's data set; "" for other names and local folders. Raises as `stream_rows`."""
    if not name.startswith(HF_PREFIX) or Path(place := parse_name(name)[0]).exists():
        return ""
    try:
        from huggingface_hub import HfApi

        return HfApi().dataset_info(place).sha or ""
    except Exception as error:
        raise _explained(name, error) from error


def _explained(name: str, error: Exception) -> RagError:
    """Sort the many errors of the libraries, and of what lies under them, into ours."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "scripts are no longer supported" in str(error):
        return DataError(
            f"{name} is a data set with a script, which is never run: {text}",
            hint="use a copy that holds data files, or download it and give its files",
        )
    if kinds & {"DatasetNotFoundError", "RepositoryNotFoundError", "GatedRepoError"}:
        return DataError(
            f"{name}: {text}", hint="check the name; for private data sets log in to the hub first"
        )
    if kinds & _UNREACHABLE:
        return ResourceError(
            f"{name}: its server cannot be reached ({type(error).__name__}: {text})",
            hint="check the network, or download the data set elsewhere and give its files",
        )
    if isinstance(error, ValueError):
        return ConfigError(f"{name}: {text}", hint="write hf:owner/name[:config][:split]")
    return DataError(f"{name}: {type(error).__name__}: {text}")
