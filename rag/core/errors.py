"""The error tree. Every error a user can meet derives from `RagError`."""

import difflib
import re
from collections.abc import Callable, Iterable, Sequence

# A model's folder in the cache of the Hugging Face hub.
_SNAPSHOT = re.compile(r"[^\s'\"(]*/models--([^/\s]+?)--([^/\s]+)/snapshots/[0-9a-f]+")


def with_hub_names(text: str) -> str:
    """The text with the names of hub models in place of their folders in the hub's cache.

    Example:
        >>> with_hub_names("/c/models--intfloat--e5-base/snapshots/5b5b/1_Pooling is missing")
        'intfloat/e5-base/1_Pooling is missing'
    """
    return _SNAPSHOT.sub(r"\1/\2", text)


def did_you_mean(name: object, names: Iterable[str], otherwise: str) -> str:
    """A hint for a name that does not exist: the nearest one that does, or else `otherwise`."""
    near = difflib.get_close_matches(str(name), list(names), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise


class RagError(Exception):
    """Base of all errors that are meant to be read by a user.

    Message and hint name arguments in braces ("choose another {out}"), which each front end spells
    as its users write them: `out=` in Python, `--out` on the command line, `"out"` over HTTP.

    Args:
        message: what was found and what was expected.
        hint: what to do about it; printed on a line of its own.
        arguments: the arguments that message and hint name.

    Example:
        >>> error = RagError("x/ is no index", hint="choose another {out}", arguments=["out"])
        >>> print(error)
        x/ is no index
          → choose another out=
        >>> error.spelled("--{}".format)
        ('x/ is no index', 'choose another --out')
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", arguments: Sequence[str] = ()) -> None:
        self._template = (with_hub_names(message), hint)
        self.arguments = tuple(arguments)
        self.message, self.hint = self.spelled("{}=".format)
        super().__init__(self.message)

    def __str__(self) -> str:
        return with_hint(self.message, self.hint)

    def spelled(self, spell: Callable[[str], str]) -> tuple[str, str]:
        """Message and hint for a front end that spells an argument's name so."""
        message, hint = self._template
        for name in self.arguments:
            message = message.replace(f"{{{name}}}", spell(name))
            hint = hint.replace(f"{{{name}}}", spell(name))
        return message, hint


def with_hint(message: str, hint: str) -> str:
    """The text of an error: its message, and its hint on a line of its own."""
    return f"{message}\n  → {hint}" if hint else message


class ConfigError(RagError):
    """A flag, setting or configuration file is wrong."""

    exit_code = 2


class DataError(RagError):
    """An input file or record is wrong."""

    exit_code = 3


class QuestionError(DataError):
    """A question, or another field of a request, is wrong: the mistake of whoever asks."""


class ArtifactError(RagError):
    """A file or directory of this system is damaged, missing or of another kind."""

    exit_code = 4


class IncompleteArtifactError(ArtifactError):
    """An artefact was never finished: its manifest is missing."""


class MismatchedArtifactError(ArtifactError):
    """An artefact does not match what it is used with (another encoder, another format version)."""


class MissingDependencyError(RagError):
    """An optional package is needed and not installed."""

    exit_code = 5


class ResourceError(RagError):
    """Disk space, memory, a port or a lock is not available."""

    exit_code = 6


class DiskFullError(ResourceError):
    """There is no space for a file that was to be written."""


class RetrievalError(RagError):
    """A search could not be answered."""

    exit_code = 7


class ReaderError(RetrievalError):
    """The retrieved passages could not be read: the model behind the reader gave no usable
    reply.
    """


class EndpointError(ReaderError):
    """The server of a language model cannot be used at all: the next question would fail, too."""
