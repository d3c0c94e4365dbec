"""Pages of a PDF that are pictures of text: their lines, by a recogniser of characters."""

import signal
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from operator import attrgetter
from statistics import median
from typing import Any, NamedTuple

from rag.core.optional import installed_version, require
from rag.data.documents.pdf_page import Line

# The recogniser makes larger pictures smaller.
_MAX_PIXELS = 2000
# What a page adds to the time that the conversion of its document may take.
_PAGE_TIME_S = 60.0
# Font sizes: lines of prose in columns are longer, those of a table or a form shorter.
_MIN_PROSE_WIDTH = 10.0
# Of a line's height: boxes of lines that follow each other may overlap.
_OVERLAP = 0.25


class _Box(NamedTuple):
    """A recognised line, with its places in points from the page's left upper corner."""

    text: str
    left: float
    top: float
    right: float
    bottom: float


def recognised_lines(page: Any, number: int) -> list[Line]:
    """The lines of a page that is a picture, in the order of reading.

    They have no words, and so no tables. There are none without a picture, or where the package of
    the recogniser is not installed.
    """
    library = require("pypdfium2", "docs").raw
    pictures = page.get_objects(filter=[library.FPDF_PAGEOBJ_IMAGE])
    if installed_version("rapidocr") is None or next(pictures, None) is None:
        return []
    time_left_s, _ = signal.getitimer(signal.ITIMER_REAL)
    if time_left_s:
        signal.setitimer(signal.ITIMER_REAL, time_left_s + _PAGE_TIME_S)
    width, height = page.get_size()
    scale = _MAX_PIXELS / max(width, height)
    found = _recogniser()(page.render(scale=scale).to_numpy())
    if found.boxes is None:
        return []
    boxes: list[_Box] = []
    for corners, text in zip(found.boxes / scale, found.txts, strict=True):
        boxes.append(_Box(text, *corners.min(axis=0), *corners.max(axis=0)))
    size = median(box.bottom - box.top for box in boxes)
    lines: list[Line] = []
    for box in _in_order(boxes, size):
        # Headings are as much larger as their boxes are higher.
        relative_size = round((box.bottom - box.top) / size * 2) / 2
        corner = float(box.left), float(height - box.bottom)
        lines.append(Line(box.text, number, *corner, size * relative_size, False, False, height))
    return lines


@cache
def _recogniser() -> Any:
    # Documents are converted in a process for each core.
    parameters = {
        "Global.log_level": "error",
        # It turns some lines upside down that are not.
        "Global.use_cls": False,
        "EngineConfig.onnxruntime.intra_op_num_threads": 1,
    }
    return require("rapidocr", "ocr").RapidOCR(params=parameters)


def _in_order(boxes: Sequence[_Box], size: float) -> list[_Box]:
    """Cut a page at its widest gaps: between columns of prose where there are some, else between
    lines.
    """
    by_left = sorted(boxes, key=attrgetter("left"))
    if len(by_left) == 1:
        return by_left
    gap, n_left = _widest_gap([(box.left, box.right) for box in by_left])
    columns = by_left[:n_left], by_left[n_left:]
    widths = (median(box.right - box.left for box in column) for column in columns)
    if gap > size and min(widths) > _MIN_PROSE_WIDTH * size:
        return _in_order(columns[0], size) + _in_order(columns[1], size)
    by_top = sorted(boxes, key=attrgetter("top"))
    inset = _OVERLAP * size
    gap, n_above = _widest_gap([(box.top + inset, box.bottom - inset) for box in by_top])
    if gap <= 0:
        # One line in several boxes.
        return by_left
    return _in_order(by_top[:n_above], size) + _in_order(by_top[n_above:], size)


def _widest_gap(spans: Sequence[tuple[float, float]]) -> tuple[float, int]:
    """The widest gap between spans that are sorted by their beginnings, and how many are before
    it.
    """
    ends = accumulate((end for _, end in spans), max)
    gaps = [begin - end for (begin, _), end in zip(spans[1:], ends, strict=False)]
    widest = max(gaps)
    return widest, gaps.index(widest) + 1
