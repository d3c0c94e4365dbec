"""Answers to "how do I …" and "what happens if …": the whole sentence or list entry that the best span is in.

A reader trained on short answers marks a few words of what has to be done. Who asks how wants the sentence.
"""

from collections.abc import Sequence
from dataclasses import replace

import regex

from rag.core.types import Passage
from rag.data.sentences import sentence_spans
from readers.answer_forms import LIST_MARKER, is_identifier
from readers.protocols import ReadAnswer, ReadResult

_MOST = 600  # characters of a sentence; longer ones are tables or code
_WHOLE = 12  # words; so long a span is shown without the rest of its sentence
_MARKER = regex.compile(LIST_MARKER)
_GOES_ON = regex.compile(r"[^\s.!?:;|]\s*\n[ \t]*(?=\p{Ll})")  # a line end inside a sentence


def step_around(text: str, start: int, end: int) -> tuple[int, int]:
    """The sentences, or the entry of a list, that `text[start:end]` stands in.

    An option, a path or another identifier stays alone: it is a whole answer. So do twelve words or more, and
    a span whose sentences have more than 600 characters, which are no sentences but a table or code.

    Example:
        >>> text = "It is a server. To stop it, press q twice. Then wait."
        >>> text[slice(*step_around(text, 28, 35))]
        'To stop it, press q twice.'
    """
    if is_identifier(text[start:end]) or len(text[start:end].split()) >= _WHOLE:
        return start, end
    joined = _GOES_ON.sub(lambda found: found[0].replace("\n", " "), text)  # of equal length: offsets stay
    spans = sentence_spans(joined)
    first = next((s for s in reversed(spans) if s[0] <= start), spans[0])
    last = next((s for s in spans if s[1] >= end), spans[-1])
    begin, stop = first[0], max(last[1], end)
    marker = _MARKER.match(text, begin, start)
    begin = marker.end() if marker else min(begin, start)
    return (begin, stop) if stop - begin <= _MOST else (start, end)


def with_steps(result: ReadResult, passages: Sequence[Passage], n_best: int) -> ReadResult:
    """At most `n_best` answers, each extended by `step_around`; confidences of spans in one unit add up."""
    kept: dict[tuple[int, int | None, str], ReadAnswer] = {}
    for answer in result.answers:
        if answer.start is not None and answer.end is not None:
            text = passages[answer.passage_index].text
            start, end = step_around(text, answer.start, answer.end)
            answer = replace(answer, text=text[start:end], start=start, end=end)
        key = answer.passage_index, answer.start, answer.text
        better = kept.get(key)
        confidence = answer.confidence if better is None else better.confidence + answer.confidence
        kept[key] = replace(better or answer, confidence=confidence)
    ranked = sorted(kept.values(), key=lambda answer: -answer.confidence)
    return replace(result, answers=tuple(ranked[:n_best]))
