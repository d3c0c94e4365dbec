"""Turn a mapping with the field's usual names into a document, or into a passage beside a
question.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, TypeGuard
from urllib.parse import unquote

from rag.core.errors import DataError
from rag.core.types import Passage
from rag.data.metadata import has_value, is_groups, is_list, metadata_of_fields
from rag.data.records import BadRecord, CorpusOptions, Document

# Of psgs_w100 and Wikipedia extracts, of BEIR, of pyserini and Tevatron, of KILT.
_USUAL_FIELDS = {
    "id": ("id", "_id", "docid", "wikipedia_id"),
    "title": ("title", "wikipedia_title"),
    "text": ("sentences", "text", "contents", "context"),
}
_PASSAGE_ID_FIELDS = ("passage_id", "psg_id", "id", "docid")
# Records with one of these have lists of sentences: HotpotQA's abstracts.
_SENTENCE_MARKERS = ("sentences", "charoffset", "text_with_links")
_KILT_PREFIX = re.compile(r"^(?:Section::::|BULLET::::)")
# Of Pyserini's and FlashRAG's Wikipedia: the title is the first line, in quotes.
_QUOTED_TITLE = re.compile(r'"(.+)"\n(?=\S)')
_MAX_SHOWN_NAMES = 12


class NoTextError(DataError):
    """The records of a source have no field that is known to hold their text: it is no corpus."""


class DocumentFields:
    """Turns mappings of one source into documents.

    If the first mapping has no id field, the source is taken to have none, and every document gets
    the id `{name}:{position}`, so that a bad record never changes the id of another. If the first
    mapping has one, a later mapping without it is a bad record.

    Args:
        numbers_rows: every mapping without an id gets its position as its id instead.

    Attributes:
        layout: a description of the fields' roles; "" until the first mapping.
    """

    def __init__(self, options: CorpusOptions, name: str, *, numbers_rows: bool = False) -> None:
        named = {"id": options.id_field, "title": options.title_field, "text": options.text_field}
        self._named = {role: (field,) for role, field in named.items() if field}
        self._fields_of = {**_USUAL_FIELDS, **self._named}
        self._metadata = options.metadata
        self._absent_metadata = set(options.metadata)
        self._name = name
        self._numbers_rows = numbers_rows
        self._has_ids = True
        self._first_names = ""
        self.layout = ""

    def columns(self, row: list[str]) -> list[str] | None:
        """The names of a table's columns by its first row; None if that row names them.

        Tables without names are MS MARCO's and ColBERT's collections of id, text and perhaps title;
        their ids have digits.
        """
        has_digit = any(character.isdigit() for character in row[0])
        if self._named or not has_digit or len(row) not in (2, 3):
            return None
        if len(row[1]) < len("".join(row[2:])):
            return None
        columns = ["id", "text", "title"][: len(row)]
        self.layout = f"no header: the columns are {', '.join(columns)}"
        return columns

    def documents(self, record: object, position: int) -> list[Document | BadRecord]:
        """The documents of a record: a single document, or the paragraphs of an article of SQuAD.

        Raises:
            NoTextError: as `document`; or the first record is no object.
        """
        if position == 1 and not isinstance(record, Mapping | BadRecord):
            kind = type(record).__name__
            raise NoTextError(f"{self._name}: the first record is no object, found {kind}")
        paragraphs = squad_paragraphs(record)
        rows = [record] if paragraphs is None else paragraphs
        return [self.document(row, position) for row in rows]

    def document(self, record: object, position: int) -> Document | BadRecord:
        """Make one document; `position` is its line or record number. A bad record stays a bad
        record.

        Raises:
            NoTextError: the first mapping has no text, or not the requested fields.
        """
        if isinstance(record, BadRecord):
            return record
        if not isinstance(record, Mapping):
            return BadRecord("not an object", f"found {type(record).__name__}")
        if not self.layout:
            self._choose_fields(list(record))
        identifier: object = f"{self._name}:{position}"
        if self._has_ids or self._numbers_rows:
            identifier = first_of(record, self._fields_of["id"])[1]
        if identifier is None and self._numbers_rows:
            identifier = str(position)
        if identifier is None:
            return self._missing("id", record)
        if isinstance(identifier, bool) or not isinstance(identifier, str | int):
            found = f"found {type(identifier).__name__}"
            return BadRecord("id is not text or a whole number", found)
        title = first_of(record, self._fields_of["title"])[1] or ""
        if not isinstance(title, str):
            return BadRecord("title is not text", f"found {type(title).__name__}")
        texts = [record[name] for name in self._fields_of["text"] if record.get(name) is not None]
        if not texts:
            return self._missing("text", record)
        text = _joined(texts[0], title, record)
        if text is None:
            return BadRecord(
                "text is not text", "expected text, or a list of paragraphs or of sentences"
            )
        if not title and "contents" in record:
            quoted = _QUOTED_TITLE.match(text)
            if quoted:
                title = quoted[1]
                text = text[quoted.end() :]
        try:
            metadata = metadata_of_fields(self._metadata_fields(record))
        except ValueError as error:
            return BadRecord("metadata that filters cannot compare", str(error))
        return Document(str(identifier), title, text, metadata=metadata)

    def check(self) -> None:
        """Refuse, at the end, a source in which no mapping has a requested field of metadata."""
        if self._first_names and self._absent_metadata:
            raise DataError(
                f"{self._name}: no record holds the metadata field {min(self._absent_metadata)!r}; "
                f"the first has the fields {self._first_names}",
                hint="name a field of the records as {metadata}, or leave it out",
                arguments=["metadata"],
            )

    def _choose_fields(self, names: Sequence[str]) -> None:
        """Decide which fields become id, title and text, and say so in `layout`."""
        self._first_names = listed_names(names)
        for [name] in self._named.values():
            if name not in names:
                raise NoTextError(
                    f"{self._name}: there is no field {name!r}; the fields are {self._first_names}"
                )
        rights = list(filter(is_groups, names))
        used = {*self._metadata, *rights}
        if not rights or not used.issubset(names):
            # The record whose fields these are.
            used.add("metadata")
        roles = []
        for role, candidates in self._fields_of.items():
            present = [name for name in candidates if name in names]
            if present:
                used.add(present[0])
                roles.append(f"{role} from {', '.join(present)}")
            elif role == "id":
                self._has_ids = False
            elif role == "title" and "contents" in names:
                roles.append("title from a first line in quotes")
            elif role == "text":
                raise NoTextError(
                    f"{self._name}: no field is known to hold the text; the fields are "
                    f"{self._first_names}",
                    hint="give its name as {text_field}; a table without a header has the columns id, "
                    "text and perhaps title; {format} documents reads tables row by row",
                    arguments=("text_field", "format"),
                )
        if self._metadata:
            roles.append(f"metadata from {', '.join(self._metadata)}")
        if rights:
            roles.append(f"rights from {', '.join(rights)}")
        ignored = [name for name in names if name not in used]
        self.layout = ", ".join(roles)
        if ignored:
            self.layout += f"; ignored: {listed_names(ignored)}"

    def _missing(self, role: str, record: Mapping[str, Any]) -> BadRecord:
        expected = " or ".join(self._fields_of[role])
        detail = f"no {role}: expected {expected}; there are {listed_names(record)}"
        return BadRecord("missing field", f"{detail}; give its name as {role}_field")

    def _metadata_fields(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """The requested fields of a record, or of an object `metadata` in it."""
        within = record.get("metadata")
        filled = {name: value for name, value in record.items() if has_value(value)}
        fields = {**within, **filled} if isinstance(within, Mapping) else record
        names = dict.fromkeys([*self._metadata, *filter(is_groups, fields)])
        metadata = {name: fields[name] for name in names if has_value(fields.get(name))}
        self._absent_metadata.difference_update(metadata)
        return metadata


def _joined(value: object, title: str, record: Mapping[str, Any]) -> str | None:
    """The text of a field: text, or a list of paragraphs, of sentences, or of lists of these."""
    if isinstance(value, str):
        return value
    if any(name in record for name in _SENTENCE_MARKERS):
        if is_strings(value):
            return join_sentences(value)
        if is_list(value):
            joined = [join_sentences(sentences) for sentences in value if is_strings(sentences)]
            value = joined if len(joined) == len(value) else None
    if not is_strings(value):
        return None
    paragraphs = [paragraph.strip() for paragraph in value]
    if "wikipedia_id" in record:
        paragraphs = [_KILT_PREFIX.sub("", paragraph) for paragraph in paragraphs]
        # KILT's first paragraph is the title.
        if paragraphs[:1] == [title.strip()]:
            del paragraphs[0]
    return "\n".join(filter(None, paragraphs))


def first_of(record: Mapping[str, object], names: Sequence[str]) -> tuple[str | None, object]:
    """The first of these fields that is not empty, and its value; (None, None) if all are."""
    for name in names:
        if record.get(name) not in (None, ""):
            return name, record[name]
    return None, None


def passage_of(value: object) -> Passage:
    """A passage beside a question, as in DPR's and FiD's `ctxs`; id and text may be "".

    Raises:
        ValueError: not an object, or its text or title is not text.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"a passage is not an object ({value!r:.40})")
    _, text = first_of(value, ("text", "contents"))
    title = value.get("title")
    if not isinstance(text, str | None) or not isinstance(title, str | None):
        raise ValueError(f"title or text of a passage is not text ({title!r:.40}, {text!r:.40})")
    _, identifier = first_of(value, _PASSAGE_ID_FIELDS)
    return Passage("" if identifier is None else str(identifier), title or "", text or "")


def join_sentences(sentences: Iterable[str]) -> str:
    """Join sentences, with a space where neither side has one."""
    text = ""
    for sentence in filter(None, sentences):
        has_space = not text or text[-1].isspace() or sentence[0].isspace()
        text += sentence if has_space else f" {sentence}"
    return text.strip()


def listed_names(names: Iterable[str]) -> str:
    """Names for a message, which shows the first of them."""
    shortened = [str(name)[:40] or "(no name)" for name in names]
    text = ", ".join(shortened[:_MAX_SHOWN_NAMES])
    n_more = len(shortened) - _MAX_SHOWN_NAMES
    return f"{text} and {n_more} more" if n_more > 0 else text


def is_strings(value: object) -> TypeGuard[Sequence[str]]:
    """Whether a value is a sequence of texts."""
    return is_list(value) and all(isinstance(item, str) for item in value)


def title_of_address(title: str) -> str:
    """The title of a Wikipedia article by the last part of its address."""
    return unquote(title).replace("_", " ")


class SquadParagraph(TypedDict):
    """A paragraph of an article of SQuAD.

    Attributes:
        id: as in a corpus: the article's title and a number.
        context: None if it has none.
    """

    id: str
    title: str
    context: object
    qas: Iterable[object]


def squad_paragraphs(record: object) -> list[SquadParagraph] | None:
    """The paragraphs of an article of SQuAD; None if the record is none."""
    if not isinstance(record, Mapping) or not isinstance(record.get("paragraphs"), list):
        return None
    title = str(record.get("title", ""))
    rows: list[SquadParagraph] = []
    for number, item in enumerate(record["paragraphs"]):
        if not isinstance(item, Mapping) or not ("qas" in item or "context" in item):
            return None
        rows.append(
            {
                "id": f"{title}-{number}",
                "title": title_of_address(title),
                "context": item.get("context"),
                "qas": item.get("qas") or (),
            }
        )
    return rows
