"""Replies as they come: what a model thinks and the marks of passages are held back, and citations
are numbered in the order in which they appear.
"""

from __future__ import annotations

import re

from readers.protocols import TextSink

_LONGEST_MARK = 40
_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)
_FENCE = re.compile(r"</?passage \w* ?\d*>")
_CITATION = re.compile(r"\[(\d{1,4}(?:\s*[,;]\s*\d{1,4})*)\]")


class ReplyStream:
    """Passes on a reply that comes in pieces.

    Args:
        sink: gets the text, piece by piece.
        n_shown: how many passages the model was shown; citations of others are left out.

    Example:
        >>> pieces = []
        >>> stream = ReplyStream(pieces.append, n_shown=4)
        >>> for piece in ["<thi", "nk>Hm.</think>It ri", "ses [", "3] here [9][1, 3]."]:
        ...     stream.feed(piece)
        >>> stream.end()
        >>> "".join(pieces)
        'It rises [1] here [2, 1].'
    """

    def __init__(self, sink: TextSink, n_shown: int) -> None:
        self._sink = sink
        self._n_shown = n_shown
        self._numbers = dict[str, int]()
        self._held = ""
        self._has_begun = False

    def feed(self, piece: str) -> None:
        """Take the next piece of the reply."""
        self._held += piece
        before = ""
        while self._held != before:
            before = self._held
            ready, self._held = self._split(before)
            self._emit(ready)

    def end(self) -> None:
        """Pass on what was held back; a thought that never ended is no part of the reply."""
        if not self._held.startswith("<think>"):
            self._emit(self._held)
        self._held = ""

    def _split(self, text: str) -> tuple[str, str]:
        """What can be passed on, and what may be the beginning of a mark."""
        begin = re.search(r"[<\[]", text)
        if begin is None:
            return text, ""
        if begin.start() > 0:
            return text[: begin.start()], text[begin.start() :]
        if text.startswith("<think>"):
            thought = _THOUGHT.match(text)
            return ("", text) if thought is None else ("", text[thought.end() :])
        end = re.search(r"[>\]]", text)
        if end is not None:
            return text[: end.end()], text[end.end() :]
        return (text[0], text[1:]) if len(text) > _LONGEST_MARK else ("", text)

    def _emit(self, text: str) -> None:
        text = _CITATION.sub(self._numbered, _FENCE.sub("", text))
        if not self._has_begun:
            text = text.lstrip()
        if text:
            self._has_begun = True
            self._sink(text)

    def _numbered(self, citation: re.Match[str]) -> str:
        numbers = []
        for digits in re.findall(r"\d+", citation[1]):
            number = str(int(digits))
            if 1 <= int(number) <= self._n_shown:
                numbers.append(self._numbers.setdefault(number, len(self._numbers) + 1))
        return f"[{', '.join(map(str, numbers))}]" if numbers else ""
