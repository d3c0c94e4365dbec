"""Subtitles in SRT and WebVTT."""

import re
from html import unescape

from rag.data.documents.blocks import Piece

_CUE = re.compile(r"(?:(\d+):)?(\d\d?):(\d\d?)(?:[.,]\d{1,3})?[ \t]*-->.*")
_SPEAKER = re.compile(r"<v(?:\.[\w.]+)? ([^<>]+)>")
_TAG = re.compile(r"<[^<>]*>|\{\\[^{}]*\}")
_SECTION_S = 120


def subtitles(source: str) -> tuple[str, list[Piece]]:
    """Sections of two minutes, each under the time of its first words."""
    pieces: list[Piece] = []
    words: list[str] = []
    begins = -_SECTION_S
    for block in re.split(r"\n\s*\n", source.replace("\r\n", "\n").strip()):
        cue = next((match for line in block.split("\n") if (match := _CUE.fullmatch(line.strip()))), None)
        if cue is None:
            continue  # a header, a note, a style
        hours, minutes, seconds = (int(part or 0) for part in cue.groups())
        at = 3600 * hours + 60 * minutes + seconds
        if at >= begins + _SECTION_S:
            pieces.append(Piece("paragraph", " ".join(words)))
            pieces.append(Piece("heading", f"{hours}:{minutes:02}:{seconds:02}", 1))
            words, begins = [], at
        for line in block[block.index(cue[0]) + len(cue[0]) :].split("\n"):
            text = unescape(_TAG.sub("", _SPEAKER.sub(r"\1: ", line))).strip()
            if text and text not in words[-2:]:  # rolling captions repeat what stands above
                words.append(text)
    return "", [*pieces, Piece("paragraph", " ".join(words))]
