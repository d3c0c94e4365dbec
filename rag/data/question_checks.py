"""Check questions from Python code and commands before a model is loaded."""

import math
from collections.abc import Iterable
from numbers import Integral

from rag.core.errors import ConfigError, DataError
from rag.core.types import MAX_TOP_K
from rag.core.unicode import is_unicode
from rag.data.records import rows_of


def check_questions(questions: Iterable[str], top_k: int, n_best: int = 1) -> list[str]:
    """The questions as a list; refuses those that are empty or not valid text.

    Raises:
        ConfigError: `top_k` or `n_best` is out of range or no whole number.
        DataError: the questions are not a list of strings, one is empty, or is no valid Unicode.
    """
    checked = rows_of(questions, "questions")
    for name, number, most in (("n_best", n_best, math.inf), ("top_k", top_k, MAX_TOP_K)):
        if not isinstance(number, Integral) or isinstance(number, bool) or not 1 <= number <= most:
            bounds = "at least 1" if most == math.inf else f"1 to {most}"
            raise ConfigError(f"{name} is {number!r}, expected a whole number, {bounds}")
    for number, question in enumerate(checked):
        which = f"question {number}" if len(checked) > 1 else "the question"
        if not isinstance(question, str):
            raise DataError(f"{which} is not text, found {type(question).__name__} {question!r:.40}")
        if not question.strip():
            raise DataError(f"{which} is empty", hint="ask something")
        if not is_unicode(question):  # what Python makes of a byte that is not UTF-8
            raise DataError(f"{which} is not valid Unicode: {question!r:.60}", hint="give it in UTF-8")
    return checked
