"""`kill -9` at random moments of `rag index`, resume, and compare every byte with a run nobody disturbed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rag.bench.common import working_folder
from rag.bench.differences import byte_differences, finished_shards, lucene_folders
from rag.bench.report import Goal, Report, Table, format_seconds
from rag.core.errors import DataError, ResourceError
from rag.core.manifest import MANIFEST_NAME
from rag.core.progress import Progress

__all__ = ["Survival", "run_kill_benchmark"]

_POLL_S = 0.005


@dataclass(slots=True)
class Survival:
    """What became of one killed run.

    Attributes:
        moment_s: seconds after its start at which it was killed.
        finished: shards in the ledger at that moment.
        rewritten: finished shards that the resumed run wrote again.
        in_flight: 1 if a shard was being made, else 0.
        looked_complete: a manifest was there although the run had not ended.
        resume_s: seconds of the resumed run.
        differences: files that differ from the undisturbed run.
        bm25_differs: BM25 finds something else than in the undisturbed run.
    """

    moment_s: float
    finished: int = 0
    rewritten: int = 0
    in_flight: int = 0
    looked_complete: bool = False
    resume_s: float = 0.0
    differences: list[str] = field(default_factory=list)
    bm25_differs: bool = False

    @property
    def is_sound(self) -> bool:
        """Same bytes, same BM25 results, at most one shard redone."""
        return (
            not self.differences and not self.bm25_differs and not self.looked_complete and self.redone <= 1
        )

    @property
    def redone(self) -> int:
        """Shards that had to be made twice, the one in flight counted whole."""
        return self.rewritten + self.in_flight


class _Runs:
    """Starts `rag index` on one corpus into one directory after another."""

    def __init__(self, command: Sequence[str], arguments: Sequence[str], log: Path) -> None:
        self._command, self._arguments, self._log = list(command), list(arguments), log

    def start(self, out: Path) -> subprocess.Popen[bytes]:
        command = [*self._command, "--out", str(out), *self._arguments]
        with self._log.open("wb") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=log, env=dict(os.environ), start_new_session=True
            )

    def finish(self, process: subprocess.Popen[bytes]) -> None:
        if process.wait() != 0:
            tail = self._log.read_text(encoding="utf-8", errors="replace")[-1500:].strip()
            raise ResourceError(
                f"`rag index` ended with code {process.returncode}; the end of its log: {tail}"
            )

    def undisturbed(self, out: Path) -> tuple[float, float]:
        """Runs to the end; seconds until something was written, and until it ended."""
        started = time.monotonic()
        process = self.start(out)
        first = None
        while process.poll() is None:
            if first is None and out.exists():
                first = time.monotonic() - started
            time.sleep(_POLL_S)
        self.finish(process)
        ended = time.monotonic() - started
        return (first if first is not None else 0.0), ended

    def killed(self, out: Path, moment_s: float) -> bool:
        """Runs until `moment_s` and is killed; False if it had ended before."""
        started = time.monotonic()
        process = self.start(out)
        while process.poll() is None and time.monotonic() - started < moment_s:
            time.sleep(_POLL_S)
        if process.poll() is not None:
            self.finish(process)
            return False
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return True


def _survive(runs: _Runs, out: Path, reference: Path, moment_s: float) -> Survival | None:
    if not runs.killed(out, moment_s):
        return None
    result = Survival(moment_s)
    before = finished_shards(out) if out.exists() else {}
    all_shards = finished_shards(reference)
    is_encoding = any(out.rglob("embeddings.json")) if out.exists() else False
    result.finished = len(before)
    result.in_flight = int(is_encoding and len(before) < len(all_shards))
    result.looked_complete = (out / MANIFEST_NAME).exists() and bool(byte_differences(out, reference))
    started = time.monotonic()
    runs.finish(runs.start(out))
    result.resume_s = time.monotonic() - started
    after = finished_shards(out)
    result.rewritten = sum(after.get(name) != state for name, state in before.items())
    result.differences = byte_differences(out, reference)
    result.bm25_differs = _bm25_differs(out, reference)
    return result


def _bm25_differs(directory: Path, reference: Path) -> bool:
    """Whether BM25 search over both indexes gives other rows or scores, asked with beginnings of passages."""
    if not lucene_folders(reference):
        return False
    from indexers.index import Index

    with Index.open(directory) as found, Index.open(reference) as expected:
        step = max(1, len(expected.passages) // 50)
        queries = [expected.passages[row].text[:120] for row in range(0, len(expected.passages), step)]
        if found.lucene is None or expected.lucene is None:
            return True
        return found.lucene.search(queries, 20) != expected.lucene.search(queries, 20)


def run_kill_benchmark(
    corpus: Sequence[str | Path],
    *,
    arguments: Sequence[str] = (),
    times: int = 20,
    seed: int = 0,
    work_dir: str | Path | None = None,
    program: Sequence[str] = (sys.executable, "-m", "rag.cli.main", "index"),
) -> Report:
    """Kill `rag index` at random moments between its first and its last write, and let it finish.

    The moments are drawn one from each of `times` equal stretches of the undisturbed run's writing time.

    Args:
        corpus: inputs of `rag index`.
        arguments: its further arguments, for example `["--shard-rows", "64"]`.
        times: how many runs are killed.
        seed: of the moments.
        work_dir: where the indexes are built; the system's temporary folder by default. Removed afterwards.
        program: what is run with corpus, `--out` and arguments.

    Raises:
        DataError: the undisturbed run makes fewer than two embedding shards although it embeds passages.
        ResourceError: a run fails.
    """
    report = Report(
        "kill",
        {
            "corpus": " ".join(map(str, corpus)),
            "arguments": " ".join(arguments),
            "times": times,
            "seed": seed,
        },
    )
    generator = random.Random(seed)
    results: list[Survival] = []
    too_late = 0
    with (
        working_folder("kill", work_dir) as place,
        Progress(times, "kills", "kill") as progress,
    ):
        runs = _Runs([*program, *map(str, corpus)], arguments, place / "log.txt")
        reference = place / "undisturbed"
        first_s, end_s = runs.undisturbed(reference)
        shards = len(finished_shards(reference))
        if shards == 1:
            raise DataError(
                "the whole corpus is one embedding shard", hint="pass a smaller --shard-rows to `rag index`"
            )
        for number in range(times):
            survival = None
            while survival is None:
                moment_s = first_s + (end_s - first_s) * (number + generator.random()) / times
                out = place / f"killed-{number}"
                survival = _survive(runs, out, reference, moment_s)
                shutil.rmtree(out, ignore_errors=True)
                too_late += survival is None
                if too_late > times:
                    raise ResourceError(
                        f"{too_late} runs ended before they could be killed", hint="try a larger corpus"
                    )
            results.append(survival)
            progress.update()
    _fill(report, results, shards, first_s, end_s, too_late)
    return report


def _fill(
    report: Report, results: Sequence[Survival], shards: int, first_s: float, end_s: float, too_late: int
) -> None:
    rows = [
        (
            f"{number}",
            f"{r.moment_s:.2f}",
            f"{r.finished}/{shards}",
            str(r.redone),
            format_seconds(r.resume_s),
            ", ".join(r.differences[:3]) or "same",
            "sound" if r.is_sound else "BROKEN",
        )
        for number, r in enumerate(results, 1)
    ]
    columns = ("kill", "at s", "shards finished", "redone", "resumed in", "bytes", "")
    title = f"kill -9 between {first_s:.1f} s (first write) and {end_s:.1f} s (end of the undisturbed run)"
    report.tables.append(Table(title, columns, rows))
    sound = sum(result.is_sound for result in results)
    worst = max((result.redone for result in results), default=0)
    report.figures.update(
        kills=len(results),
        sound=sound,
        most_shards_redone=worst,
        shards=shards,
        undisturbed_s=end_s,
        ended_before_kill=too_late,
        runs=[{**asdict(result), "redone": result.redone} for result in results],
    )
    report.goals.append(
        Goal("share of killed runs that end with the same bytes", sound / len(results), "at least", 1.0)
    )
    report.goals.append(Goal("most shards redone in one run", float(worst), "at most", 1.0))
