"""`kill -9` at random moments of `rag index`, resume, and compare every byte with a run nobody disturbed.

python tests/recovery/index_killer.py CORPUS --times 20 -- --shard-rows 64
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rag.core.errors import DataError, ResourceError
from rag.core.files import sha256_file
from rag.core.manifest import MANIFEST_NAME

_POLL_S = 0.005
_LEDGER = "ledger.jsonl"
_NOT_COMPARED = (".lock",)


def lucene_folders(directory: Path) -> list[Path]:
    """Folders below `directory` that hold a Lucene index; their bytes differ from run to run."""
    return sorted({path.parent for path in directory.rglob("segments_*")})


def _digests(directory: Path) -> dict[str, str]:
    """sha256 of every file by relative path; Lucene's files, and what manifests say of them, are left out."""
    folders = lucene_folders(directory)
    digests = {}
    for path in sorted(directory.rglob("*")):
        if (
            not path.is_file()
            or path.name in _NOT_COMPARED
            or any(folder in path.parents for folder in folders)
        ):
            continue
        relative = path.relative_to(directory).as_posix()
        if folders and path.name == MANIFEST_NAME:
            prefixes = ("checksum", *(f"{folder.relative_to(directory).as_posix()}/" for folder in folders))
            digests[relative] = json.dumps(
                _without(json.loads(path.read_text("utf-8")), prefixes), sort_keys=True
            )
        else:
            digests[relative] = sha256_file(path)
    return digests


def _without(value: Any, prefixes: tuple[str, ...]) -> Any:
    """`value` without the entries whose key begins with one of `prefixes`."""
    if isinstance(value, dict):
        return {key: _without(item, prefixes) for key, item in value.items() if not key.startswith(prefixes)}
    return value


def byte_differences(directory: Path, reference: Path) -> list[str]:
    """Relative paths of files that differ, are missing or are too many; Lucene's own files are left out."""
    found, expected = _digests(directory), _digests(reference)
    return sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))


def finished_shards(directory: Path) -> dict[str, tuple[int, int]]:
    """Embedding shards the ledger calls finished: file name → (inode, mtime in ns)."""
    shards = {}
    for ledger in directory.rglob(_LEDGER):
        for line in ledger.read_bytes().split(b"\n")[:-1]:
            path = ledger.parent / f"shard-{int(json.loads(line)['shard']):05d}.npy"
            if path.exists():
                state = path.stat()
                shards[path.name] = (state.st_ino, state.st_mtime_ns)
    return shards


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


def kill_and_resume(
    corpus: Sequence[str | Path],
    place: Path,
    *,
    arguments: Sequence[str] = (),
    times: int = 20,
    seed: int = 0,
    program: Sequence[str] = (sys.executable, "-m", "rag.cli.main", "index"),
) -> Iterator[Survival]:
    """Kill `rag index` at random moments between its first and its last write, and let it finish.

    The moments are drawn one from each of `times` equal stretches of the undisturbed run's writing time.

    Args:
        corpus: inputs of `rag index`.
        place: an empty folder for the indexes.
        arguments: its further arguments, for example `["--shard-rows", "64"]`.
        times: how many runs are killed.
        seed: of the moments.
        program: what is run with corpus, `--out` and arguments.

    Raises:
        DataError: the undisturbed run makes one embedding shard only.
        ResourceError: a run fails.
    """
    generator = random.Random(seed)
    too_late = 0
    runs = _Runs([*program, *map(str, corpus)], arguments, place / "log.txt")
    reference = place / "undisturbed"
    first_s, end_s = runs.undisturbed(reference)
    if len(finished_shards(reference)) == 1:
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
            if survival is None:  # the undisturbed run was slower than this one
                too_late, end_s = too_late + 1, first_s + 0.9 * (end_s - first_s)
            if too_late > 4 * times:
                raise ResourceError(
                    f"{too_late} runs ended before they could be killed", hint="try a larger corpus"
                )
        yield survival


def main() -> None:
    """Print one line a kill; the exit status is 1 if a run did not survive."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", nargs="+")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    place = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given, rest = sys.argv[1:place], sys.argv[place + 1 :]
    options = parser.parse_args(given)
    sound = 0
    with tempfile.TemporaryDirectory(prefix="rag-kill-") as folder:
        kills = kill_and_resume(
            options.corpus, Path(folder), arguments=rest, times=options.times, seed=options.seed
        )
        for number, one in enumerate(kills, 1):
            sound += one.is_sound
            print(
                f"{number:3} killed at {one.moment_s:6.2f} s  shards finished {one.finished},",
                f"redone {one.redone}, resumed in {one.resume_s:.2f} s ",
                ", ".join(one.differences[:3]) or "same bytes",
                " sound" if one.is_sound else " BROKEN",
                flush=True,
            )
    print(f"{sound} of {options.times} killed runs ended with the same bytes and at most one shard redone")
    raise SystemExit(sound < options.times)


if __name__ == "__main__":
    main()
