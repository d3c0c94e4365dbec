"""How a corpus is read and cut into passages; quick to import, so that a command's help can show it."""

from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator

CorpusFormat = Literal["jsonl", "json", "tsv", "csv", "parquet", "documents"]
CORPUS_FORMATS: tuple[CorpusFormat, ...] = get_args(CorpusFormat)

FILTER_FIELDS = ("path", "document")  # what filters name without metadata: a file's path, a document's id


class CorpusOptions(BaseModel):
    """How a corpus is read and cut into passages; stored in the manifest of its index.

    Attributes:
        id_field: field or column of the document id; by default one of the usual names.
        title_field: field or column of the title.
        text_field: field or column of the text.
        metadata: field that passages keep for filters; it may stand in an object `metadata`, as in BEIR. May
            be given several times.
        max_bad_share: highest tolerated share of bad records (not of files).
        document_timeout: most seconds for reading one file.
        split: how documents are cut. "sections" cuts files (PDF, HTML, Markdown, …) by headings, with the
            path to each as title; "words100" cuts into disjoint blocks of `words` words; "none" keeps each
            document as one passage; "auto" is "sections" for files, else "words100".
        words: words per passage, for --split words100.
        max_tokens: most tokens of title and text of a passage, for sections.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id_field: str | None = None
    title_field: str | None = None
    text_field: str | None = None
    metadata: list[str] = []
    max_bad_share: float = Field(default=0.01, ge=0, le=1)
    document_timeout: float = Field(default=60.0, ge=0.1)
    split: Literal["auto", "sections", "words100", "none"] = "auto"
    words: int = Field(default=100, ge=1)
    max_tokens: int = Field(default=256, ge=1)

    @field_validator("metadata", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        names = [value] if isinstance(value, str) else value or []
        if isinstance(names, list | tuple) and (taken := {*FILTER_FIELDS}.intersection(names)):
            raise ValueError(f"filters reserve the name {min(taken)!r}; rename the field in the corpus")
        return names
