"""Print, and format answers for a terminal."""

import os
import re
import sys
from typing import Any

from rag.core.types import Location, Promise
from rag.core.wording import WITHHELD, WORDINGS

# A control character, shown as it is, could move the cursor, hide text or write a command for the
# terminal.
_CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n\r"}
_CONTROLS[ord("\r")] = " "  # of Windows' line ends
_CONTEXT = 160  # characters before and after a span
_BOLD, _DIM, _MARK, _END = "\x1b[1m", "\x1b[2m", "\x1b[1;30;43m", "\x1b[0m"


def say(text: object, *, err: bool = False) -> None:
    """Print at once, also where the output is a pipe or a file."""
    print(text, file=sys.stderr if err else sys.stdout, flush=True)


def shows_colours() -> bool:
    """Whether the output is a terminal with colours that its user wants (https://no-color.org)."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not is_plain


def highlight(text: str, start: int | None, end: int | None, *, colour: bool) -> str:
    """The span `text[start:end]` with some text around it, marked by colour or by `[[…]]`.

    Without a span, return the beginning of the text.

    Example:
        >>> highlight("The Danube rises in Germany.", 20, 27, colour=False)
        'The Danube rises in [[Germany]].'
    """
    if start is None or end is None:  # nothing there says it literally
        return (
            text if len(text) <= 2 * _CONTEXT else re.sub(r" [^ ]*\Z", " …", text[: 2 * _CONTEXT])
        )
    before, after = text[:start], text[end:]
    if start > _CONTEXT:
        before = "… " + re.sub(r"\A[^ ]* ", "", before[-_CONTEXT:])
    if len(after) > _CONTEXT:
        after = re.sub(r" [^ ]*\Z", "", after[:_CONTEXT]) + " …"
    opening, closing = (_MARK, _END) if colour else ("[[", "]]")
    return before + opening + text[start:end] + closing + after


def format_answer_set(result: dict[str, Any], *, colour: bool) -> str:
    """Several lines for one question, from its public JSON shape."""
    result = _without_controls(result)
    bold, dim, end = (_BOLD, _DIM, _END) if colour else ("", "", "")
    lines = [f"{bold}{result['question']}{end}"]
    answers, none = result["answers"], result["no_answer_confidence"]
    kind = result.get("kind", "answer")
    wording = WORDINGS[kind][result["certainty"]]
    heading = wording.heading.lower()
    promise = Promise(**result["promise"]) if "promise" in result else None
    if result.get("failure"):
        lines.append(f"  not read: {result['failure']}")
    elif result["certainty"] == "none":
        reason = f"{heading} (confidence that there is none: {none:.0%})"
        if promise is not None and answers:
            reason = WITHHELD.lower()
        lines.append(f"  {reason}")
        if answers:
            lines.append(f"  {dim}{wording.guess.lower()}:{end}")
    elif wording.reason:
        lines.append(f"  {wording.reason.lower()}; {heading}:")
    elif result["certainty"] == "perhaps":
        lines.append(f"  {heading} (confidence that there is no answer: {none:.0%})")
    if result.get("notice"):
        lines.append(f"  beware: {result['notice']}")
    if promise is not None:
        lines.append(f"  {dim}promised: {promise.in_words('answers')}{end}")
    for number, answer in enumerate(answers, 1):
        evidence = answer["evidence"]
        text = " ".join(answer["text"].split())
        named = "" if kind == "passage" else f"{bold}{text}{end}  "
        lines.append(f"  {number}. {named}(confidence {answer['confidence']:.0%})")
        quoted = highlight(evidence["text"], evidence["start"], evidence["end"], colour=colour)
        title = f"{evidence['title']} · " if evidence["title"] else ""
        lines.append(f"     {dim}{title}{_place(evidence)}{end}")
        lines.append("     " + re.sub(r"\s*\n\s*", "\n     ", quoted))
        # The winner of a comparison is named as in the question.
        if evidence["start"] is None and not evidence.get("supporting"):
            lines.append(f"     {dim}answer worded by the model{end}")
        citations = answer.get("citations", ())
        others = [step for step in citations if step["passage_id"] != evidence["passage_id"]]
        if others:
            names = ", ".join(cited["title"] or _place(cited) for cited in others)
            lines.append(f"     {dim}also cited: {names}{end}")
        if answer.get("note"):
            lines.append(f"     {dim}beware: {answer['note']}{end}")
        for hop, step in enumerate(answer.get("path", ()), 1):
            supporting = " … ".join(
                step["text"][at:stop] for at, stop in step.get("supporting", ())
            )
            name = step["title"] or step["passage_id"]
            label = step.get("question") or f"hop {hop}:"
            lines.append(f"     {dim}{label}{end} {bold}{name}{end}  {supporting}")
    reading = result.get("reading", {})
    read = f" · {reading['passages']} passages read" if reading.get("passages") else ""
    total_ms = result["timings_ms"].get("total", 0)
    lines.append(f"  {dim}{total_ms:.0f} ms{read} · index {result['index_version']}{end}")
    return "\n".join(lines)


_LABELS = {
    "supported": "supported",
    "refuted": "refuted",
    "not_enough": "not enough to tell",
    "not_judged": "not judged",
}


def format_verdict(result: dict[str, Any], *, colour: bool) -> str:
    """Several lines for one claim, from its public JSON shape."""
    result = _without_controls(result)
    bold, dim, end = (_BOLD, _DIM, _END) if colour else ("", "", "")
    shares = [
        f"{_LABELS[label]} {share:.0%}" for label, share in result.get("probabilities", {}).items()
    ]
    in_brackets = f"  ({', '.join(shares)})" if shares else ""
    lines = [
        f"{bold}{result['claim']}{end}",
        f"  {bold}{_LABELS[result['label']]}{end}{in_brackets}",
    ]
    if result.get("notice"):
        lines.append(f"  {result['notice']}")
    if "promise" in result:
        lines.append(f"  {dim}promised: {Promise(**result['promise']).in_words('verdicts')}{end}")
    evidence = result.get("evidence")
    if evidence:
        start, stop = evidence["supporting"][0]
        quoted = highlight(evidence["text"], start, stop, colour=colour)
        title = f"{evidence['title']} · " if evidence["title"] else ""
        lines.append(f"     {dim}{title}{_place(evidence)}{end}")
        lines.append("     " + re.sub(r"\s*\n\s*", "\n     ", quoted))
        others = [step for step in result["path"] if step["passage_id"] != evidence["passage_id"]]
        if others:
            names = ", ".join(step["title"] or _place(step) for step in others)
            lines.append(f"     {dim}also judged by: {names}{end}")
    total_ms = result["timings_ms"].get("total", 0)
    lines.append(f"  {dim}{total_ms:.0f} ms · index {result['index_version']}{end}")
    return "\n".join(lines)


def _place(evidence: dict[str, Any]) -> str:
    """File and page, else the passage's id."""
    location = evidence.get("location")
    return str(
        Location(location["path"], location.get("page", "")) if location else evidence["passage_id"]
    )


def _without_controls(value: Any) -> Any:
    """A JSON value with every control character replaced by one sign, so that offsets stay
    valid.
    """
    if isinstance(value, str):
        return value.translate(_CONTROLS)
    if isinstance(value, dict):
        return {name: _without_controls(inner) for name, inner in value.items()}
    return (
        [_without_controls(inner) for inner in value] if isinstance(value, list | tuple) else value
    )
