"""Words that are read right on 20 scanned pages, which are drawn from the text of the sample.

`python -m rag.bench.scans` prints the share of words and the time per page at two resolutions. Each
page is turned by up to half a degree and has noise on it.
"""

import io
import json
import textwrap
import time
from difflib import SequenceMatcher
from statistics import median

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from rag.core.optional import require
from rag.data.documents.convert import convert
from rag.metrics.significance import bootstrap
from rag.sample import corpus_path

_N_PAGES = 20
_WORDS_OF_PAGE = 300
_PAGE_INCHES = (8.27, 11.69)
_FONT_INCHES = 0.15
_CHARS_OF_LINE = 84


def scanned_page(text: str, dpi: int, seed: int) -> bytes:
    """A PDF of one page, which is a picture of the text."""
    draw = np.random.default_rng(seed)
    width, height = (round(inches * dpi) for inches in _PAGE_INCHES)
    picture = Image.new("L", (width, height), 255)
    font = ImageFont.load_default(_FONT_INCHES * dpi)
    lines = textwrap.fill(text, _CHARS_OF_LINE)
    ImageDraw.Draw(picture).multiline_text((0.7 * dpi, 0.8 * dpi), lines, 40, font)
    picture = picture.rotate(draw.uniform(-0.5, 0.5), Image.Resampling.BICUBIC, fillcolor=255)
    noise = draw.normal(0, 12, (height, width))
    pixels = np.clip(np.asarray(picture) + noise, 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PDF", resolution=dpi)
    return file.getvalue()


def share_of_words(expected: str, found: str) -> float:
    """The share of the words of a text that another text has in the same order."""
    words = expected.split()
    matcher = SequenceMatcher(None, words, found.split(), autojunk=False)
    return sum(block.size for block in matcher.get_matching_blocks()) / len(words)


def main() -> None:
    """Print both figures for each resolution."""
    require("rapidocr", "ocr")
    words: list[str] = []
    for line in corpus_path().read_text().splitlines():
        words += json.loads(line)["text"].split()
    for dpi in (150, 300):
        shares: list[float] = []
        times_s: list[float] = []
        for number in range(_N_PAGES):
            begin = number * _WORDS_OF_PAGE
            text = " ".join(words[begin : begin + _WORDS_OF_PAGE])
            data = scanned_page(text, dpi, number)
            started = time.perf_counter()
            document = convert(data, "scan.pdf")
            times_s.append(time.perf_counter() - started)
            shares.append(share_of_words(text, document.text))
        right = bootstrap(shares)
        print(f"{dpi} dpi: words right {right.times(100):.1f} %, {median(times_s):.1f} s a page")


if __name__ == "__main__":
    main()
