"""Turn a mapping with the field's usual names into a document, or into a passage beside a
question.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from rag.core.errors import DataError
from rag.core.types import Passage
from rag.data.metadata import has_value, is_list, metadata_of_fields
from rag.data.records import BadRecord, CorpusOptions, Document

# psgs_w100 and Wikipedia extracts, BEIR, pyserini and Tevatron, KILT
ID_FIELDS = ("id", "_id", "docid", "wikipedia_id")
TITLE_FIELDS = ("title", "wikipedia_title")
TEXT_FIELDS = ("text", "contents", "context")
PASSAGE_ID_FIELDS = ("passage_id", "psg_id", "id", "docid")
_SENTENCE_MARKERS = (
    "sentences",
    "charoffset",
    "text_with_links",
)  # lists of sentences: HotpotQA's abstracts
_KILT_PREFIX = re.compile(r"^(?:Section::::|BULLET::::)")


class DocumentFields:
    """Turns mappings of one source into documents.

    If the first mapping has no id field, the source is taken to have none, and every document gets
    the id `{name}:{position}`, so that a bad record never changes the id of another. If the first
    mapping has one, a later mapping without it is a bad record.

    Attributes:
        layout: a description of the fields' roles; "" until the first mapping.
    """

    def __init__(self, options: CorpusOptions, name: str) -> None:
        chosen = {"id": options.id_field, "title": options.title_field, "text": options.text_field}
        usual = {"id": ID_FIELDS, "title": TITLE_FIELDS, "text": ("sentences", *TEXT_FIELDS)}
        self._roles = {role: (own,) if own else usual[role] for role, own in chosen.items()}
        self._required = list(filter(None, chosen.values()))
        self._has_ids = True
        self._metadata, self._absent = options.metadata, {*options.metadata}
        self._name, self._names = name, ""
        self.layout = ""

    def columns(self, row: list[str]) -> list[str] | None:
        """The names of a table's columns by its first row, if that does not name them.

        Those of MS MARCO's and ColBERT's collections are id, text and perhaps title; their ids have
        digits.
        """
        is_data = any(map(str.isdigit, row[0])) and not self._required
        if not is_data or len(row) not in (2, 3) or len(row[1]) < len("".join(row[2:])):
            return None
        self.layout = "no header: the columns are id, text" + (", title" if len(row) == 3 else "")
        return ["id", "text", "title"][: len(row)]

    def _choose(self, names: Sequence[str]) -> None:
        """Decide which fields become id, title and text; the others are ignored, which `layout`
        says.
        """
        self._names = listed_names(names)
        for name in self._required:
            if name not in names:
                raise DataError(
                    f"{self._name}: there is no field {name!r}; the fields are {self._names}"
                )
        roles = {role: [it for it in usual if it in names] for role, usual in self._roles.items()}
        if not roles["text"]:
            raise DataError(
                f"{self._name}: no field is known to hold the text; the fields are {self._names}",
                hint="name it: --text-field NAME (in Python text_field), also --title-field and --id-field; "
                "a table without a header has the columns id, text and perhaps title; "
                "tables are read row by row with --format documents",
            )
        self._has_ids = bool(roles["id"])
        first_choices = {present[0] for present in roles.values() if present}
        used = first_choices.union(self._metadata)
        if {*self._metadata} - {*names}:
            used.add("metadata")  # the record whose fields these are
        ignored = [name for name in names if name not in used]
        stated = {**roles, "metadata": self._metadata}
        parts = [f"{role} from {', '.join(fields)}" for role, fields in stated.items() if fields]
        self.layout = ", ".join(parts) + (f"; ignored: {listed_names(ignored)}" if ignored else "")

    def document(self, record: Any, position: int) -> Document | BadRecord:
        """Make one document; `position` is its line or record number. A bad record stays one.

        Raises:
            DataError: the first mapping has no text, or not the requested fields.
        """
        if isinstance(record, BadRecord):
            return record
        if not isinstance(record, Mapping):
            return BadRecord("not an object", f"found {type(record).__name__}")
        if not self.layout:
            self._choose(list(record))
        ids, titles, texts = self._roles.values()
        id, title = first_of(record, ids)[1], first_of(record, titles)[1] or ""
        text = next((record[name] for name in texts if record.get(name) is not None), None)
        if not self._has_ids:
            id = f"{self._name}:{position}"
        for what, value, names in (("id", id, ids), ("text", text, texts)):
            if value is None:
                expected = f"expected {' or '.join(names)}; there are {listed_names(record)}"
                return BadRecord(
                    "missing field", f"no {what}: {expected}; name it with --{what}-field"
                )
        if isinstance(id, bool) or not isinstance(id, str | int):
            return BadRecord("id is not text or a whole number", f"found {type(id).__name__}")
        if not isinstance(title, str):
            return BadRecord("title is not text", f"found {type(title).__name__}")
        joined = text if isinstance(text, str) else _joined(text, title, record)
        if joined is None:
            return BadRecord(
                "text is not text", "expected text, or a list of paragraphs or of sentences"
            )
        beside = record.get("metadata")
        fields = {**beside, **record} if isinstance(beside, Mapping) else record
        chosen = {name: fields[name] for name in self._metadata if has_value(fields.get(name))}
        self._absent -= chosen.keys()
        try:
            return Document(str(id), title, joined, metadata=metadata_of_fields(chosen))
        except ValueError as error:
            return BadRecord("metadata that filters cannot compare", str(error))

    def check(self) -> None:
        """Refuse, at the end, a source in which no mapping has a requested field of metadata."""
        if self._names and self._absent:
            raise DataError(
                f"{self._name}: no record holds the metadata field {min(self._absent)!r}; the first has the "
                f"fields {self._names}",
                hint="name a field of the records with --metadata, or leave it out",
            )


def _joined(value: Any, title: str, record: Mapping[str, Any]) -> str | None:
    """The text of a list of paragraphs, of sentences, or of paragraphs of sentences; None of
    another.
    """
    has_sentences = any(name in record for name in _SENTENCE_MARKERS)
    if _is_strings(value) and has_sentences:
        return join_sentences(value)
    if has_sentences and is_list(value) and all(map(_is_strings, value)):
        value = [join_sentences(paragraph) for paragraph in value]
    if not _is_strings(value):
        return None
    paragraphs = [paragraph.strip() for paragraph in value]
    if "wikipedia_id" in record:
        paragraphs = [_KILT_PREFIX.sub("", paragraph) for paragraph in paragraphs]
        del paragraphs[: paragraphs[:1] == [title.strip()]]
    return "\n".join(filter(None, paragraphs))


def first_of(record: Mapping[str, Any], names: Sequence[str]) -> tuple[str | None, Any]:
    """The first of these fields that is not empty, and its value; (None, None) if all are."""
    return next(
        ((name, record[name]) for name in names if record.get(name) not in (None, "")), (None, None)
    )


def passage_of(value: Any) -> Passage:
    """A passage beside a question, as in DPR's and FiD's `ctxs`; id and text may be "".

    Raises:
        ValueError: not an object, or its text or title is not text.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"a passage is not an object ({value!r:.40})")
    text, title = value.get("text"), value.get("title")
    if not isinstance(text, str | None) or not isinstance(title, str | None):
        raise ValueError(f"title or text of a passage is not text ({title!r:.40}, {text!r:.40})")
    _, identifier = first_of(value, PASSAGE_ID_FIELDS)
    return Passage("" if identifier is None else str(identifier), title or "", text or "")


def join_sentences(sentences: Iterable[str]) -> str:
    """Join sentences, with a space where neither side has one."""
    text = ""
    for sentence in filter(None, sentences):
        has_space = not text or text[-1].isspace() or sentence[0].isspace()
        text += sentence if has_space else f" {sentence}"
    return text.strip()


def _is_strings(value: Any) -> TypeGuard[Sequence[str]]:
    return is_list(value) and all(isinstance(v, str) for v in value)


def listed_names(names: Iterable[str], most: int = 12) -> str:
    """Names for a message, which shows the first of them."""
    listed = [str(name)[:40] or "(no name)" for name in names]
    return ", ".join(listed[:most]) + (
        f" and {len(listed) - most} more" if len(listed) > most else ""
    )
