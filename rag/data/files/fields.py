"""Turn a mapping with the field's usual names into a document, or into a passage beside a question."""

import datetime
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard, cast

from rag.core.errors import DataError
from rag.core.types import Metadata, Passage, Value
from rag.core.unicode import is_unicode
from rag.data.choices import FILTER_FIELDS
from rag.data.files.sources import ReadOptions
from rag.data.records import BadRecord, Document

# psgs_w100 and Wikipedia extracts, BEIR, pyserini and Tevatron, MS MARCO 2, KILT
ID_FIELDS = ("id", "_id", "pid", "docid", "wikipedia_id")
TITLE_FIELDS = ("title", "wikipedia_title")
TEXT_FIELDS = ("text", "contents", "passage", "body", "context")
PASSAGE_ID_FIELDS = ("passage_id", "psg_id", "id", "docid")
QUESTION_ID_FIELDS = ("id", "_id", "qid", "question_id", "query_id", "example_id")
_MAX_TITLE_CHARS = 300
_EMPTY: tuple[Any, ...] = (None, "", [])
_SENTENCE_MARKERS = ("charoffset", "text_with_links", "charoffset_with_links")  # of HotpotQA's abstracts
_KILT_PREFIX = re.compile(r"^(?:Section::::|BULLET::::)")


class DocumentFields:
    """Turns mappings of one source into documents.

    If the first mapping has no id field, the source is taken to have none, and every document gets the id
    `{name}:{position}`, so that a bad record never changes the id of another. If the first mapping has one, a
    later mapping without it is a bad record.

    Attributes:
        layout: a description of the fields' roles; "" until the first mapping with a text.

    Args:
        options: field names that replace the usual ones.
        name: name of the source, for generated ids.
    """

    def __init__(self, options: ReadOptions, name: str) -> None:
        self._ids = (options.id_field,) if options.id_field else ID_FIELDS
        self._titles = (options.title_field,) if options.title_field else TITLE_FIELDS
        self._texts = (options.text_field,) if options.text_field else TEXT_FIELDS
        self._required = [it for it in (options.id_field, options.title_field, options.text_field) if it]
        self._ids_are_made: bool | None = False if options.id_field else None
        self._metadata, self._seen_metadata = options.metadata, set[str]()
        self._name = name
        self._first_names: tuple[str, ...] = ()
        self.layout = ""

    def columns(self, row: list[str]) -> tuple[list[str], bool]:
        """The names of a table's columns, and whether its first row has them.

        Without a header the columns of DPR's and MS MARCO's files are id, text and perhaps title; their ids
        have digits.

        Raises:
            DataError: the row is no header, and the columns are others.
        """
        names = [cell.strip() for cell in row]
        is_data = any(map(str.isdigit, names[0])) and not self._required
        if is_data and len(row) in (2, 3) and len(row[1]) >= len("".join(row[2:])):
            self.layout = "no header: the columns are id, text" + ", title" * (len(row) == 3)
            return ["id", "text", "title"][: len(row)], False
        self.choose(names)
        return names, True

    def choose(self, names: Sequence[str]) -> list[str]:
        """The columns that documents are made of; the others are ignored, which `layout` says.

        Raises:
            DataError: no column holds the text, or a requested one does not exist.
        """
        self._first_names = self._first_names or tuple(names)
        columns = f"the fields are {listed_names(names)}"
        for name in self._required:
            if name not in names:
                raise DataError(f"{self._name}: there is no field {name!r}; {columns}")
        text = [name for name in ("sentences", *self._texts) if name in names]
        if not text:
            raise DataError(
                f"{self._name}: no field is known to hold the text; {columns}",
                hint="name it: --text-field NAME (in Python text_field), also --title-field and --id-field; "
                "a table without a header has the columns id, text and perhaps title",
            )
        ids, titles = ([name for name in known if name in names] for known in (self._ids, self._titles))
        metadata = [name for name in self._metadata if name in names]
        parts = [f"id from {ids[0]}" if ids else "id by number"]
        parts += [f"title from {titles[0]}" if titles else "no title", f"text from {text[0]}"]
        parts += [f"metadata {', '.join(metadata)}"] if metadata else []
        ignored = [name for name in names if name not in {*ids[:1], *titles[:1], *text[:1], *metadata}]
        self.layout = ", ".join(parts) + (f"; ignored: {listed_names(ignored)}" if ignored else "")
        read = {*ids, *titles, *text, *metadata, "url", *(["metadata"] if self._metadata else [])}
        return [name for name in names if name in read]

    def document(self, record: Any, position: int) -> Document | BadRecord:
        """Make one document; `position` is its line or record number."""
        if not isinstance(record, Mapping):
            return BadRecord("not an object", f"found {type(record).__name__}")
        document = self._document(record, position)
        if not self._metadata or isinstance(document, BadRecord):
            return document
        beside = record.get("metadata")
        fields = {**(beside if isinstance(beside, Mapping) else {}), **record}
        chosen = {name: fields[name] for name in self._metadata if fields.get(name) not in _EMPTY}
        self._seen_metadata.update(chosen)
        try:
            return replace(document, metadata=metadata_of_fields(chosen))
        except ValueError as error:
            return BadRecord("metadata that filters cannot compare", str(error))

    def check(self) -> None:
        """Refuse, at the end, a source in which no mapping has the requested field.

        Raises:
            DataError: with the fields that there are.
        """
        if self._first_names and not self.layout:
            self.choose(self._first_names)
        if self._first_names and (missing := [it for it in self._metadata if it not in self._seen_metadata]):
            raise DataError(
                f"{self._name}: no record holds the metadata field {missing[0]!r}; the first has the fields "
                f"{listed_names(self._first_names)}",
                hint="name a field of the records with --metadata, or leave it out",
            )

    def _document(self, record: Mapping[str, Any], position: int) -> Document | BadRecord:
        if not self.layout:
            self._first_names = self._first_names or tuple(record)
            has_text = any(name in record for name in ("sentences", *self._texts))
            if has_text and all(name in record for name in self._required):
                self.choose(list(record))
        document_id = self._id(record, position)
        if isinstance(document_id, BadRecord):
            return document_id
        _, title = first_of(record, self._titles)
        if not isinstance(title, str | None):
            return BadRecord("title is not text", f"found {type(title).__name__}")
        title = title or ""
        if is_list(sentences := record.get("sentences")):
            return _from_sentences(document_id, title, sentences)
        value = next((record[name] for name in self._texts if record.get(name) is not None), None)
        if value is None:
            return _missing("text", self._texts, record)
        if isinstance(value, str):
            return _from_text(record, document_id, title, value)
        if is_list(value):
            if any(key in record for key in _SENTENCE_MARKERS):
                return _from_sentences(document_id, title, value)
            return _from_paragraphs(document_id, title, value, is_kilt="wikipedia_id" in record)
        return BadRecord("text is not text", f"found {type(value).__name__}")

    def _id(self, record: Mapping[str, Any], position: int) -> str | BadRecord:
        value = next((record[name] for name in self._ids if record.get(name) is not None), None)
        if self._ids_are_made is None:
            self._ids_are_made = value is None
        if self._ids_are_made:
            return f"{self._name}:{position}"
        if value is None:
            return _missing("id", self._ids, record)
        if isinstance(value, bool) or not isinstance(value, str | int):
            return BadRecord("id is not text or a whole number", f"found {type(value).__name__}")
        return str(value)


def _from_text(record: Mapping[str, Any], document_id: str, title: str, text: str) -> Document:
    if not title and "contents" in record and "\n" in text:
        # Pyserini and FlashRAG keep "title\ntext" in one field.
        head, _, rest = text.partition("\n")
        if rest.strip() and len(head) <= _MAX_TITLE_CHARS:
            title, text = head.strip().removeprefix('"').removesuffix('"'), rest
    elif title and "url" in record and text.startswith(f"{title}\n\n"):
        text = text[len(title) :].lstrip("\n")  # older WikiExtractor versions repeat the title above the text
    return Document(document_id, title, text)


METADATA_HINT = 'an example is {"year": 2020, "tags": ["guide", "linux"]}'


def metadata_of_fields(fields: Mapping[str, Any]) -> Metadata:
    """The metadata of a document; fields without a value are left out.

    Raises:
        ValueError: filters cannot compare a value, or give its field another meaning; the message names it.

    Example:
        >>> metadata_of_fields({"year": 2020, "tags": ["a", "b"], "by": ""})
        (('year', 2020), ('tags', ('a', 'b')))
    """
    metadata = []
    for name, value in fields.items():
        if not name or not is_unicode(name):
            raise ValueError(f"{name!r} is no name of a field, expected text in valid Unicode")
        if name in FILTER_FIELDS:
            raise ValueError(f"{name!r}: filters give this name a meaning of their own, choose another")
        try:
            metadata += [(name, plain_value(value))] if value not in _EMPTY else []
        except ValueError as error:
            raise ValueError(f"{name!r}: {error}") from None
    return tuple(metadata)


def plain_value(value: Any) -> Value | tuple[Value, ...]:
    """A value of a metadata field: text, number, truth value, or several of these; dates become text.

    Raises:
        ValueError: it is something else; the message says what.

    Example:
        >>> plain_value(["de", "fr"]), plain_value(datetime.date(2020, 5, 1))
        (('de', 'fr'), '2020-05-01')
    """
    if isinstance(value, list | tuple):
        several = tuple(map(plain_value, value))
        if any(isinstance(item, tuple) for item in several):
            raise ValueError("a list of lists")
        return cast("tuple[Value, ...]", several)
    if isinstance(value, datetime.date | datetime.time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, str) and not is_unicode(value):
        raise ValueError("half of a surrogate pair, expected valid Unicode")
    is_finite = not isinstance(value, float) or math.isfinite(value)
    if not isinstance(value, str | int | float) or not is_finite:
        found = type(value).__name__ if is_finite else value
        raise ValueError(f"found {found}, expected text, a number, true or false, or a list of these")
    return value


def first_of(record: Mapping[str, Any], names: Sequence[str]) -> tuple[str | None, Any]:
    """The first of these fields that is not empty, and its value; (None, None) if all are."""
    return next(((name, record[name]) for name in names if record.get(name) not in (None, "")), (None, None))


def passage_of(value: Any) -> Passage:
    """A passage beside a question (DPR's and FiD's `ctxs`, pyserini's `contexts`); id and text may be "".

    Pyserini keeps "title\\ntext" in one field, under a `docid`.

    Raises:
        ValueError: not an object, or its text or title is not text; states what was found.

    Example:
        >>> passage = passage_of({"docid": 7, "text": '"Danube"\\nA river.'})
        >>> passage.id, passage.title, passage.text
        ('7', 'Danube', 'A river.')
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"a passage is not an object ({value!r:.40})")
    text, title = value.get("text"), value.get("title")
    if not isinstance(text, str | None) or not isinstance(title, str | None):
        raise ValueError(f"title or text of a passage is not text ({title!r:.40}, {text!r:.40})")
    _, identifier = first_of(value, PASSAGE_ID_FIELDS)
    if title is None and "docid" in value and text and "\n" in text:
        title, _, text = text.partition("\n")
        title = title.strip('"')
    return Passage("" if identifier is None else str(identifier), title or "", text or "")


def join_sentences(sentences: Sequence[str]) -> str:
    """Join sentences, with a space where neither side has one.

    Example:
        >>> join_sentences(["One.", " Two.", "Three."])
        'One. Two. Three.'
    """
    pieces: list[str] = []
    for sentence in sentences:
        if pieces and sentence and not (pieces[-1][-1:].isspace() or sentence[0].isspace()):
            pieces.append(" ")
        if sentence:
            pieces.append(sentence)
    return "".join(pieces).strip()


def _from_sentences(document_id: str, title: str, value: Sequence[Any]) -> Document | BadRecord:
    """Sentences, or paragraphs of sentences."""
    paragraphs = [item for item in value if not isinstance(item, str)]
    if not paragraphs:
        return Document(document_id, title, join_sentences(value), tuple(value))
    if len(paragraphs) < len(value) or not all(_is_strings(paragraph) for paragraph in paragraphs):
        return BadRecord("text is not text", "expected a list of sentences or a list of such lists")
    flat = tuple(sentence for paragraph in paragraphs for sentence in paragraph)
    return Document(document_id, title, "\n".join(filter(None, map(join_sentences, paragraphs))), flat)


def _from_paragraphs(
    document_id: str, title: str, value: Sequence[Any], *, is_kilt: bool
) -> Document | BadRecord:
    if not _is_strings(value):
        return BadRecord("text is not text", "expected text or a list of paragraphs")
    paragraphs = [paragraph.strip() for paragraph in value]
    if is_kilt:
        if paragraphs and paragraphs[0] == title.strip():
            del paragraphs[0]
        paragraphs = [_KILT_PREFIX.sub("", paragraph) for paragraph in paragraphs]
    return Document(document_id, title, "\n".join(filter(None, paragraphs)))


def is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    """Whether a value is a sequence of several, not text."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_strings(value: Any) -> bool:
    return is_list(value) and all(isinstance(v, str) for v in value)


def _missing(what: str, names: Sequence[str], record: Mapping[str, Any]) -> BadRecord:
    if empty := [name for name in names if name in record]:
        return BadRecord("missing field", f"no {what}: {empty[0]} holds nothing")
    expected = f"expected {' or '.join(names)}; there are {listed_names(record)}"
    return BadRecord("missing field", f"no {what}: {expected}; name it with --{what}-field")


def listed_names(names: Iterable[str], most: int = 12) -> str:
    """Names for a message, which shows the first of them."""
    listed = [str(name)[:40] or "(no name)" for name in names]
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")
