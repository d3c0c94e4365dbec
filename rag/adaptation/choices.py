"""The kinds of questions that are made from passages."""

from typing import Literal, get_args

Kind = Literal["table", "sentence", "definition", "list", "heading"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SOURCES: dict[Kind, str] = {
    "table": "tables",
    "sentence": "English sentences with a number, a date or a name",
    "definition": "definitions",
    "list": "lists of options or settings",
    "heading": "headings",
}
"""What each kind is made from."""
