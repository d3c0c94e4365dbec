"""SQuAD's articles, for corpora and for question sets."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote


class SquadParagraph(NamedTuple):
    """A paragraph of an article.

    Attributes:
        id: in a corpus: the article's title and the 0-based number.
        title: as the file writes it; see `squad_title`.
        text: None if it has none.
        questions: its questions, as in the file.
    """

    id: str
    title: str
    text: str | None
    questions: list[Any]


def is_article(record: Any) -> bool:
    """Whether a record is an article, with the questions inside its paragraphs."""
    paragraphs = record.get("paragraphs") if isinstance(record, Mapping) else None
    return isinstance(paragraphs, list) and all(
        isinstance(item, Mapping) and ("qas" in item or "context" in item) for item in paragraphs
    )


def squad_paragraphs(article: Any) -> Iterator[SquadParagraph]:
    """The paragraphs of an article.

    Raises:
        ValueError: it is none.

    Example:
        >>> list(squad_paragraphs({"title": "Nikola_Tesla", "paragraphs": [{"context": "He", "qas": []}]}))
        [SquadParagraph(id='Nikola_Tesla-0', title='Nikola_Tesla', text='He', questions=[])]
    """
    if not (isinstance(article, Mapping) and isinstance(paragraphs := article.get("paragraphs"), list)):
        raise ValueError("expected {title, paragraphs}")
    title = str(article.get("title", ""))
    for number, paragraph in enumerate(paragraphs):
        text = paragraph.get("context") if isinstance(paragraph, Mapping) else None
        questions = paragraph.get("qas") if isinstance(paragraph, Mapping) else None
        yield SquadParagraph(
            f"{title}-{number}", title, text if isinstance(text, str) else None, list(questions or ())
        )


def squad_title(title: str) -> str:
    """The title of an article as text: without underscores and percent codes.

    Example:
        >>> squad_title("Beyonc%C3%A9_Knowles")
        'Beyoncé Knowles'
    """
    return unquote(title).replace("_", " ")
