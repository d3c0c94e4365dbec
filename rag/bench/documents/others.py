"""Another converter, run by a Python that has it: `PYTHON others.py NAME ROUNDS < list of files`.

Prints a JSON line a file: its text or the error, and the processor seconds of each round. Imports nothing of
this package.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable


def _markitdown() -> Callable[[str], str]:
    from markitdown import MarkItDown  # type: ignore[import-not-found]

    converter = MarkItDown()
    return lambda path: str(converter.convert(path).text_content)


def _kreuzberg() -> Callable[[str], str]:
    from kreuzberg import ExtractionConfig, extract_file_sync  # type: ignore[import-not-found]

    config = ExtractionConfig(output_format="markdown", use_cache=False)
    return lambda path: str(extract_file_sync(path, config=config).content)


CONVERTERS = {"markitdown": _markitdown, "kreuzberg": _kreuzberg}


def timed(convert: Callable[[str], str], path: str, rounds: int) -> tuple[str, str, list[float]]:
    """Text of a file, the error if it cannot be read, and the seconds of each round."""
    seconds, text, error = list[float](), "", ""
    for _ in range(rounds):
        started = time.process_time()
        try:
            text = convert(path)
        except Exception as raised:  # whatever a converter raises: it has not read the file
            error = f"{type(raised).__name__}: {str(raised)[:200]}"
        seconds.append(time.process_time() - started)
    return text, error, seconds


def main() -> None:
    """Convert the files named on standard input, each once more than is timed, to load what is needed."""
    convert, rounds = CONVERTERS[sys.argv[1]](), int(sys.argv[2])
    for path in sys.stdin.read().split("\n"):
        timed(convert, path, 1)
        print(json.dumps([path, *timed(convert, path, rounds)]), flush=True)


if __name__ == "__main__":
    main()
