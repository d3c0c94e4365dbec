"""Many small indexes in one server: memory, open files and latency beside one large index."""

import os
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from http.client import HTTPConnection
from itertools import chain
from pathlib import Path

from rag.bench.common import percentile_ms, ratio, time_interleaved
from rag.bench.report import Figure, Report
from rag.bench.server_process import ServerProcess, post_json
from rag.core.log import Progress
from rag.core.types import Passage

_VOCABULARY = 20_000
_WORDS = 100  # of a passage
_QUESTION_WORDS = 6


def run_shelves_benchmark(
    shelves: int = 200,
    passages: int = 1000,
    requests: int = 600,
    folder: Path | None = None,
) -> Report:
    """Serve many shelves, one index of all their passages, and one shelf alone.

    The passages are made of random words, searched by BM25. Each of the first two servers gets a
    question for every shelf twice before its memory is read, and then five questions to all of its
    passages; the other latencies are those of one shelf.

    Args:
        shelves: Number of shelves.
        passages: Passages of each.
        requests: Questions to one shelf of many and to the same index alone, in turn.
        folder: Where the indexes are built, and found again; a temporary folder by default.
    """
    report = Report("a server after questions to all of it")
    with ExitStack() as opened:
        if folder is None:
            folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="rag-shelves-")))
        _build(folder, shelves, passages)
        names = sorted(path.name for path in (folder / "shelves").iterdir())
        arguments = ["--retriever", "bm25", "--shelves", str(folder / "shelves")]
        for title, server in (
            (f"{shelves} shelves", ServerProcess(None, arguments=arguments)),
            ("one index", ServerProcess(folder / "whole", arguments=arguments[:2])),
        ):
            with server:
                asked = names if title != "one index" else [""] * shelves
                _ask(server, [*asked, *asked], seed=1)
                report.rows[title] = _sizes(server.process.pid)
                together_s = _ask(server, [""] * 5, seed=3)
                report.rows[title]["all at once, ms"] = percentile_ms(together_s)
        alone = folder / "shelves" / names[0]
        of_shelves = opened.enter_context(ServerProcess(None, arguments=arguments))
        of_one = opened.enter_context(ServerProcess(alone, arguments=arguments[:2]))
        # Java grows fast with use: both get as many questions before.
        _ask(of_shelves, names, seed=2)
        _ask(of_one, [""] * len(names), seed=2)
        contestants: dict[str, Callable[[], list[float]]] = {}
        for title, server, name in (("of many", of_shelves, names[0]), ("alone", of_one, "")):
            # Each call asks the next question.
            answers = map(partial(_ask, server, [name]), range(requests))
            contestants[title] = partial(next, answers)
        timings = time_interleaved(contestants, rounds=requests, warm_up=0)
    seconds = {title: [*chain.from_iterable(of.results)] for title, of in timings.items()}
    for title, values in seconds.items():
        report.rows[f"one shelf, {title}"] = {"p50 ms": percentile_ms(values)}
    of_both = ratio(seconds["of many"], seconds["alone"])
    report.rows["one shelf, of many"]["p50 / alone"] = of_both
    return report


def _build(folder: Path, shelves: int, passages: int) -> None:
    """Build the indexes that are not there yet."""
    from indexers.index_writer import write_index
    from indexers.settings import BuildSettings

    settings = BuildSettings(retriever="bm25", threads=1)
    everything = list[Passage]()
    with Progress(shelves, "shelves", "build") as progress:
        for number in range(shelves):
            made = list(_passages(number, passages))
            everything += made
            place = folder / "shelves" / f"shelf-{number:04d}"
            if not place.exists():
                write_index(place, made, settings=settings)
            progress.update(1)
    if not (folder / "whole").exists():
        write_index(folder / "whole", everything, settings=settings)


def _passages(shelf: int, count: int) -> Iterator[Passage]:
    words = random.Random(shelf)
    for number in range(count):
        text = " ".join(_words(words, _WORDS))
        yield Passage(f"{shelf}-{number}", f"Shelf {shelf}", text)


def _words(words: random.Random, count: int) -> list[str]:
    """Random words, of which the first in the vocabulary are the most frequent."""
    return [f"word{int(_VOCABULARY ** words.random())}" for _ in range(count)]


def _ask(server: ServerProcess, names: Sequence[str], seed: int) -> list[float]:
    """The seconds of a question to each of these shelves, one after the other."""
    words = random.Random(f"questions {seed}")
    seconds = []
    with closing(HTTPConnection(server.host, server.port, timeout=300)) as connection:
        for name in names:
            body: dict[str, object] = {"question": " ".join(_words(words, _QUESTION_WORDS))}
            if name:
                body["shelf"] = name
            began = time.perf_counter()
            post_json(connection, "/v1/retrieve", body)
            seconds.append(time.perf_counter() - began)
    return seconds


def _sizes(pid: int) -> dict[str, Figure]:
    """Memory and open files of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    sizes: dict[str, Figure] = {}
    for column, name in (("resident MiB", "VmRSS"), ("of it anonymous", "RssAnon")):
        found = re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)
        assert found is not None
        sizes[column] = int(found[1]) / 1024
    sizes["open files"] = float(len(os.listdir(f"/proc/{pid}/fd")))
    return sizes
