"""Another converter, run by a Python that has it: `PYTHON others.py NAME ROUNDS < list of files`.

Prints one JSON line per file: its text or the error, and the processor seconds of each round. Imports nothing
from this package.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator


def _markitdown() -> Callable[[str], str]:
    from markitdown import MarkItDown  # type: ignore[import-not-found]

    converter = MarkItDown()
    return lambda path: str(converter.convert(path).text_content)


def _kreuzberg() -> Callable[[str], str]:
    from kreuzberg import ExtractionConfig, extract_file_sync  # type: ignore[import-not-found]

    config = ExtractionConfig(output_format="markdown", use_cache=False)
    return lambda path: str(extract_file_sync(path, config=config).content)


CONVERTERS = {"markitdown": _markitdown, "kreuzberg": _kreuzberg}


def timed(
    convert: Callable[[str], str], paths: Iterable[str], rounds: int
) -> Iterator[tuple[str, str, str, list[float]]]:
    """Each path with its text, the error if it cannot be read, and the seconds of each round.

    The first file of each extension is converted once before the clock runs, so that loading is not timed.
    """
    loaded = set()
    for path in paths:
        ending = path.rpartition(".")[2]
        if ending not in loaded:
            loaded.add(ending)
            _timed_once(convert, path)
        found = [_timed_once(convert, path) for _ in range(rounds)]
        text, error, _ = found[0]
        yield path, text, error, [seconds for _, _, seconds in found]


def _timed_once(convert: Callable[[str], str], path: str) -> tuple[str, str, float]:
    started, text, error = time.process_time(), "", ""
    try:
        text = convert(path)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as raised:  # whatever a converter raises, panics of other languages too
        error = f"{type(raised).__name__}: {str(raised)[:200]}"
    return text, error, time.process_time() - started


def main() -> None:
    """Convert the files named on standard input."""
    convert, rounds = CONVERTERS[sys.argv[1]](), int(sys.argv[2])
    for row in timed(convert, sys.stdin.read().splitlines(), rounds):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
