"""AsciiDoc and Org, by way of Markdown, and subtitles."""

import re
from collections.abc import Callable, Iterator, Sequence
from html import unescape
from itertools import takewhile

from rag.data.documents.blocks import Piece
from rag.data.documents.markdown import markdown

_Rules = Sequence[tuple[str, str | Callable[[re.Match[str]], str]]]

_FENCE = "```"
_FENCED = re.compile(r"(^```$.*?^```$)", re.MULTILINE | re.DOTALL)
_LITERAL = re.compile(r"(`[^`]+`)|(<)")  # "<" begins no markup here

_ADOC_TITLE = re.compile(r"^= +(\S.*)$", re.MULTILINE)
_ADOC_CODE = re.compile(r"(-{4,}|\.{4,}|`{3,})\w*")
_UNDERLINES = "=-~^+"  # of headings, from the title of the document on
_ADOC_DROPPED = re.compile(r"(/{4,}|\+{4,})")
_ADOC_LINES = (
    (r"(?::[\w!-]+:|//|include::|image::|toc::|ifn?def::|ifeval::|endif::).*|\[[^\]]*\]", ""),
    (r"={4,}|\*{4,}|_{4,}|--|\+|'''|<<<", ""),
    (r"(={1,6}) +(.*?)(?: +=+)?", lambda match: f"{'#' * len(match[1])} {match[2]}"),
    (r"\.(?=[^\s.])(.*)", r"\1\n"),  # the title of a block
    (r"\s*(\*{1,5}|-) +(.*)", lambda match: f"{'  ' * (len(match[1]) - 1)}- {match[2]}"),
    (r"\s*(\.{1,5}) +(.*)", lambda match: f"{'   ' * (len(match[1]) - 1)}1. {match[2]}"),
    (r"\s*(\S.*?):{2,4}(?: +(.*))?", lambda match: f"- {match[1]}: {match[2] or ''}"),
)
# A cell, with its format ("2+|", "a|").
_CELL_BEGINS = re.compile(r"(?:(?<=\s)|^)(?:[\d.]+[+*])?[<^>.]*[a-z]?\||(?<!\\)\|")
_ADOC_INLINE = (
    (r"image:[^\s\[\]]+\[([^\]]*)\]|\[\[[^\]]*\]\]", r"\1"),
    (r"(?:link:|xref:|mailto:|\b(?=https?:))[^\s\[\]]+\[([^\]]+?)(?:\^?(?:, *\w+=[^\]]*)?)?\]", r"\1"),
    (r"(?:link:|mailto:)?([^\s\[\]]+)\[\]", r"\1"),
    (r"<<(?:[^,<>]+,\s*)?([^<>]+)>>", r"\1"),
    (r"footnote:\w*\[([^\]]*)\]", r" (\1)"),
    (r"\+{2,3}(.+?)\+{2,3}", r"\1"),
    (r"(?m) \+$|\{(?:empty|zwsp)\}", ""),  # a break of the line, …
    (r"\{plus\}", "+"),
)
_ORG_TITLE = re.compile(r"^#\+title:[ \t]*(.*)$", re.MULTILINE | re.IGNORECASE)
_ORG_CODE = re.compile(r"\s*#\+begin_(src|example|verse)\b.*", re.IGNORECASE)
_ORG_DROPPED = re.compile(r"\s*#\+begin_(comment|export)\b.*", re.IGNORECASE)
_ORG_LINES = (
    (r"\s*#\+.*|\s*#( .*)?|\s*:[\w-]+:( .*)?", ""),
    (r"(\*{1,6})\** +(?:(?:TODO|DONE|NEXT|WAITING|\[#\w\]) +)*(.*?)(?: +:[\w@:]+:)?",
     lambda match: f"{'#' * len(match[1])} {match[2]}"),
    (r"(\s*[-+]) +(.*?) :: *(.*)", r"\1 \2: \3"),
    (r"(\s*)(?:([-+])|(\d+)[.)]) +(?:\[[ X-]\] +)?(.*)",
     lambda match: f"{match[1]}{match[2] or match[3] + '.'} {match[4]}"),
    (r"\s*\|([-+]+)\|?", lambda match: f"|{match[1].replace('+', '|')}|"),
    (r"\s+([^\s\d+-].*)", r"\1"),
)  # fmt: skip
_ORG_INLINE = (
    (r"\[\[[^\]]*\]\[([^\]]*)\]\]", r"\1"),
    (r"\[\[([^\]]*)\]\]", r"\1"),
    (r"(?<![\w=~])[=~](\S(?:[^=~]*\S)?)[=~](?![\w=~])", r"`\1`"),
    (r"(?m)\\\\$| \[@\d+\]", ""),  # a break of the line, the number of an entry
    (r"(?<![\w/:.])/([^\s/](?:[^/]*[^\s/])?)/(?![\w/])", r"\1"),
)
_CUE = re.compile(r"(?:(\d+):)?(\d\d?):(\d\d?)(?:[.,]\d{1,3})?[ \t]*-->.*")
_SPEAKER = re.compile(r"<v(?:\.[\w.]+)? ([^<>]+)>")
_TAG = re.compile(r"<[^<>]*>|\{\\[^{}]*\}")
_SECTION_S = 120


def asciidoc(source: str) -> tuple[str, list[Piece]]:
    """Title and pieces; files that it includes are not read."""
    lines = map(str.rstrip, source.splitlines())
    made: list[str] = []
    for line in lines:
        if _is_underline(line, made):
            made[-1] = f"{'#' * (_UNDERLINES.index(line[0]) + 1)} {made[-1]}"
        elif match := _ADOC_CODE.fullmatch(line) or _ADOC_DROPPED.fullmatch(line):
            inside = takewhile(match[1].__ne__, lines)
            code = [_FENCE, *inside, _FENCE]
            made += code if match.re is _ADOC_CODE else []
        elif re.fullmatch(r"\|={3,}", line):
            made += _table(list(takewhile(line.__ne__, lines)))
        else:
            made.append(_line(line, _ADOC_LINES))
    return _read(source, made, _ADOC_TITLE, _ADOC_INLINE)


def _is_underline(line: str, above: Sequence[str]) -> bool:
    """Whether a line makes the one above it a heading, as in "NAME" over "----"."""
    if not above or len(set(line)) != 1 or line[0] not in _UNDERLINES or len(line) < 2:
        return False
    stands_alone = len(above) == 1 or not above[-2].strip()
    return stands_alone and above[-1][:1].isalnum() and abs(len(above[-1]) - len(line)) <= 1


def org(source: str) -> tuple[str, list[Piece]]:
    """Title and pieces, without drawers and comments."""
    lines = map(str.rstrip, source.splitlines())
    made: list[str] = []
    for line in lines:
        if match := _ORG_CODE.fullmatch(line) or _ORG_DROPPED.fullmatch(line):
            inside = _until(f"#+end_{match[1]}".lower(), lines)
            made += [_FENCE, *inside, _FENCE] if match.re is _ORG_CODE else []
        elif line.strip().lower() == ":properties:":
            _until(":end:", lines)
        else:
            made.append(_line(line, _ORG_LINES))
    return _read(source, made, _ORG_TITLE, _ORG_INLINE)


def _until(end: str, lines: Iterator[str]) -> list[str]:
    return list(takewhile(lambda line: line.strip().lower() != end, lines))


def _line(line: str, forms: _Rules) -> str:
    """A line in Markdown, by the first form that fits the whole of it."""
    for pattern, made in forms:
        if match := re.fullmatch(pattern, line):
            return made(match) if callable(made) else match.expand(made)
    return line


def _table(lines: Sequence[str]) -> list[str]:
    """A table in Markdown. Its first line has all columns; other rows may have a line for each cell, and a
    cell may go on in further lines.
    """
    cells: list[str] = []
    width = 0
    for line in filter(str.strip, lines):
        goes_on, *begun = _CELL_BEGINS.split(line)
        if cells:
            cells[-1] += f" {goes_on}"
        cells += begun
        width = width or len(begun)
    cells = [" ".join(cell.split()) for cell in cells]
    rows = [cells[at : at + width] for at in range(0, len(cells), width or 1)]
    made = [f"| {' | '.join(row)} |" for row in rows]
    return [*made[:1], "|---" * width + "|", *made[1:]] if made else []


def _read(
    source: str, lines: Sequence[str], title: re.Pattern[str], inline: _Rules
) -> tuple[str, list[Piece]]:
    parts = _FENCED.split("\n".join(lines))
    for at in range(0, len(parts), 2):  # between code
        for pattern, kept in inline:
            parts[at] = re.sub(pattern, kept, parts[at])
        parts[at] = _LITERAL.sub(lambda match: match[1] or r"\<", parts[at])
    heading, pieces = markdown("".join(parts))
    found = title.search(source)
    return found[1].strip() if found else heading, pieces


def subtitles(source: str) -> tuple[str, list[Piece]]:
    """What SRT and WebVTT files say: sections of two minutes, each under the time of its first words."""
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
