"""The rows of the passages that a filter selects."""

from pathlib import PurePath
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from indexers.passages import PassageStore, metadata_of
from indexers.protocols import Selection
from rag.core.arrays import Bool
from rag.data.filters import Condition, Filter, FilterError

Naming = Literal["pieces", "whole", "unknown"]
"""How passages are named after their documents: `{document}-{n}`, or `{document}`."""


def select(passages: PassageStore, filter: Filter, naming: Naming = "unknown") -> Selection:
    """The rows whose passages meet all conditions; perhaps none.

    Values are compared once per distinct value; a metadata object usually belongs to several passages.

    Args:
        naming: "unknown" takes an id that looks like a piece of a document for one, and for a whole document
            too.

    Raises:
        FilterError: no passage has a field of this name.
    """
    mask = np.ones(len(passages), dtype=bool)
    for condition in filter.conditions:
        mask &= _matches(passages, condition, naming)
    return Selection(mask)


def folders(passages: PassageStore, most: int = 200) -> list[str]:
    """The folders that the passages' files lie in, each with a slash at its end; none if there are more.

    A search page offers them as filters: `{"path": "guide/"}` selects everything in the folder.
    """
    paths = passages.column("path")
    if paths is None:
        return []
    files = [path for path in pc.unique(paths).drop_null().to_pylist() if "://" not in path]
    parents = {parent.as_posix() for path in files for parent in PurePath(path).parents}
    named = sorted(f"{folder}/" for folder in parents - {".", "/"})
    return named if len(named) <= most else []


def _matches(passages: PassageStore, condition: Condition, naming: Naming) -> Bool:
    name = condition.field
    if name == "document":
        return _of_documents(passages, condition, naming)
    stored = passages.column("path" if name == "path" else "metadata")
    if stored is None:
        raise _unknown(passages, name)
    encoded = stored.combine_chunks().dictionary_encode()
    values: list[Any] = encoded.dictionary.to_pylist()
    if name != "path":
        records = [_fields_of(text) for text in values]
        if not any(name in record for record in records):
            raise _unknown(passages, name)
        values = [record.get(name) for record in records]
    test = condition.test()
    fits = np.array([*map(test, values), False])  # the last entry is for passages without a value
    return np.asarray(fits[pc.fill_null(encoded.indices, len(values)).to_numpy(zero_copy_only=False)])


def _fields_of(text: Any) -> dict[str, Any]:
    return {} if text is None else dict(metadata_of(str(text)))


def _of_documents(passages: PassageStore, condition: Condition, naming: Naming) -> Bool:
    """A passage belongs to the document that its id begins with, or bears the document's id itself."""
    ids = passages.column("id")
    documents = pa.array([str(value) for value in condition.values], pa.large_string())
    names = {"whole": ids, "pieces": pc.replace_substring_regex(ids, r"-\d+$", "")}  # of documents
    columns = [names[naming]] if naming in names else names.values()
    masks = [pc.is_in(column, value_set=documents).combine_chunks() for column in columns]
    return np.any([mask.to_numpy(zero_copy_only=False) for mask in masks], axis=0)


def _unknown(passages: PassageStore, name: str) -> FilterError:
    stored = passages.column("metadata")
    texts = () if stored is None else pc.unique(stored).drop_null()
    fields = [*["path"] * (passages.column("path") is not None), "document"]
    fields += [field for text in texts for field in _fields_of(text)]
    return FilterError(
        f"the filter names the field {name!r}, which no passage of this index has; there are "
        f"{', '.join(dict.fromkeys(fields))}",
        hint=f"index the corpus again with --metadata {name} if its records have this field",
    )
