"""Options for reading and cutting documents, from the arguments of `rag.index`."""

from collections.abc import Mapping, Sequence
from typing import Any

from rag.core.arguments import fitting, types_of
from rag.data.documents.limits import Limits
from rag.data.files.sources import ReadOptions
from rag.data.split import SplitOptions

_LIMITS = {"max_pages": "max_pages", "document_timeout": "timeout_s"}
_READING = {
    name: name
    for name in ("id_field", "title_field", "text_field", "encoding", "max_bad_share", "strict", "metadata")
}
_SPLITTING = {"split": "mode", "words": "words", "wrap": "wrap"}
DOCUMENT_ARGUMENTS = (*_LIMITS, *_READING, *_SPLITTING)


def read_and_split(given: Mapping[str, Any], **split: Any) -> tuple[ReadOptions, SplitOptions]:
    """Options for reading and splitting documents, from arguments as in `rag.index`; `split` adds to these.

    Raises:
        ConfigError: an argument has another type, or a value out of range.
    """
    homes = ((Limits, _LIMITS), (ReadOptions, _READING), (SplitOptions, _SPLITTING))
    types = {name: types_of(kind)[field] for kind, names in homes for name, field in names.items()}
    types["metadata"] = str | Sequence[str] | None
    fitted = fitting({name: given[name] for name in types if name in given}, types)
    metadata = fitted.get("metadata") or ()
    fitted["metadata"] = (metadata,) if isinstance(metadata, str) else tuple(metadata)
    limits, reading, cutting = (
        {field: fitted[name] for name, field in names.items() if name in fitted} for _, names in homes
    )
    options = ReadOptions(**reading, limits=Limits(**limits))
    return options, SplitOptions(**{**cutting, **split})
