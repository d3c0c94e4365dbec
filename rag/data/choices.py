"""Choices of settings for reading, splitting and converting; light, so that help texts can show them."""

from typing import Literal, get_args

CorpusFormat = Literal["jsonl", "json", "tsv", "csv", "parquet", "beir", "documents"]
CORPUS_FORMATS: tuple[CorpusFormat, ...] = get_args(CorpusFormat)

QuestionFormat = Literal["jsonl", "json", "csv", "tsv", "parquet", "text"]
QUESTION_FORMATS: tuple[QuestionFormat, ...] = get_args(QuestionFormat)

SplitMode = Literal["auto", "sections", "words100", "none"]
SPLIT_MODES: tuple[SplitMode, ...] = get_args(SplitMode)

FILTER_FIELDS = ("path", "document")  # what filters name without metadata: a file's path, a document's id
