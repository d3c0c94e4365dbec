"""The kinds of questions that are made from passages."""

from typing import Literal, get_args

Kind = Literal["table", "sentence", "definition", "list", "heading"]
KINDS: tuple[Kind, ...] = get_args(Kind)
