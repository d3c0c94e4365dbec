"""A small corpus and a set of questions about it, shipped with the package.

The data serve the demo, the tests and a first try of the system. They are described in
``README.md`` next to this file. Both files are UTF-8 JSON lines, one object a line.
"""

from pathlib import Path

__all__ = ["corpus_path", "questions_path"]


def corpus_path() -> Path:
    """Return the path of ``corpus.jsonl``: one passage a line with ``id``, ``title`` and
    ``text``.
    """
    return Path(__file__).resolve().parent / "corpus.jsonl"


def questions_path() -> Path:
    """Return the path of ``questions.jsonl``: one question a line with its answers and gold
    passages.
    """
    return Path(__file__).resolve().parent / "questions.jsonl"
