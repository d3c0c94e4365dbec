"""Replies as they come: what a model thinks and the marks of passages are held back, and citations
are numbered in the order in which they appear.
"""

from __future__ import annotations

import re

from readers.llm.reply import CITATION, FENCE, THOUGHT
from readers.protocols import TextSink

# A thought, or a citation or the mark of a passage, which are no longer than this.
_UNFINISHED = re.compile(r"(?:<think>(?!.*</think>).*|[<\[][^>\]]{0,39})\Z", re.DOTALL)


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
        self._numbers = dict[int, int]()
        # The end of the reply, which may be an unfinished mark or thought.
        self._held = ""
        self._has_begun = False

    def feed(self, piece: str) -> None:
        """Take the next piece of the reply; what may be the beginning of a mark is held back."""
        self._held += piece
        if self._held.startswith("<think>") and "</think>" not in self._held:
            return
        finished = _UNFINISHED.sub("", self._held)
        self._held = self._held[len(finished) :]
        self._pass_on(finished)

    def end(self) -> None:
        """Pass on what was held back; a thought that never ended is no part of the reply."""
        self._pass_on(self._held)

    def _pass_on(self, text: str) -> None:
        """Pass on what follows of a reply, in which every mark and thought is whole."""
        visible = FENCE.sub("", THOUGHT.sub("", text))
        visible = re.sub(CITATION, self._numbered, visible)
        if not self._has_begun:
            visible = visible.lstrip()
        if visible:
            self._has_begun = True
            self._sink(visible)

    def _numbered(self, citation: re.Match[str]) -> str:
        numbers = []
        for number in map(int, re.findall(r"\d+", citation[1])):
            if 1 <= number <= self._n_shown:
                numbers.append(self._numbers.setdefault(number, len(self._numbers) + 1))
        return f"[{', '.join(map(str, numbers))}]" if numbers else ""
