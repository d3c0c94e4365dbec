"""How an answer is presented: the one table for terminal, page, chat and tools."""

from dataclasses import dataclass

from rag.core.types import AnswerKind, Certainty


@dataclass(frozen=True, slots=True)
class Wording:
    """The words for answers of one kind and certainty.

    Attributes:
        heading: what stands before the first answer.
        guess: what the first answer is called where no answer was found.
        reason: why the first text is not an answer, as a sentence without its full stop; "" where
            it is one.
    """

    heading: str
    guess: str = ""
    reason: str = ""


WITHHELD = "No answer is sure enough for what is promised"
_NO_ANSWER = "No answer found"
_YES_OR_NO = "This asks for yes or no, which the reader cannot tell"
_BEARS = Wording("The passage that bears on it", reason=_YES_OR_NO)
_SHORT: dict[Certainty, Wording] = {
    "likely": Wording("Answer"),
    "perhaps": Wording("Perhaps"),
    "none": Wording(_NO_ANSWER, guess="Best guess"),
}
WORDINGS: dict[AnswerKind, dict[Certainty, Wording]] = {
    "answer": _SHORT,
    "list": _SHORT,
    "passage": {
        "likely": _BEARS,
        "perhaps": _BEARS,
        "none": Wording(_NO_ANSWER, guess="Nearest passage", reason=_YES_OR_NO),
    },
}
