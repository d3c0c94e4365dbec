"""Builds that are killed, interrupted or run out of disk never look complete, and end in equal
bytes.
"""

import errno
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from indexers.index import Index
from indexers.index_writer import write_index
from indexers.settings import BuildSettings
from rag.core import arrays
from rag.core.arrays import Float32
from rag.core.errors import IncompleteArtifactError, ResourceError
from rag.core.types import Passage
from tests.support.hashing import HashEncoder, content
from tests.support.messages import refusal
from tests.support.processes import with_packages

SHARD_ROWS = 50
PASSAGES = 700
SETTINGS = BuildSettings(index_type="ivf", shard_rows=SHARD_ROWS, probes=16, threads=1)


class TracedEncoder(HashEncoder):
    """Leaves a line for every shard it encodes."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def encode_passages(self, titles: Sequence[str], texts: Sequence[str]) -> Float32:
        if len(texts) == SHARD_ROWS:
            with open(self.trace, "a") as file:
                file.write(f"{texts[0]}\n")
        return super().encode_passages(titles, texts)


def corpus() -> Iterator[Passage]:
    for number in range(PASSAGES):
        yield Passage(f"p{number}", f"title {number % 9}", f"text of passage {number}")


def start(place: Path, trace: Path) -> subprocess.Popen[bytes]:
    """Build in a process of its own, with pauses so that a kill can fall anywhere."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_index_kill import TracedEncoder, SETTINGS, write_index, corpus
print("ready", flush=True)
write_index({str(place)!r}, corpus(), encoder=TracedEncoder(Path({str(trace)!r})), settings=SETTINGS)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**with_packages(), "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout.readline() == b"ready\n"
    return process


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], float]:
    place = tmp_path_factory.mktemp("undisturbed")
    process = start(place / "i", place / "trace")
    started = time.monotonic()
    assert process.wait(timeout=120) == 0
    return content(place / "i"), time.monotonic() - started


@pytest.mark.parametrize("attempt", range(5))
def test_kill_anywhere_then_rerun_gives_the_same_bytes(
    tmp_path: Path, undisturbed: tuple[dict[str, str], float], attempt: int
) -> None:
    expected, duration_s = undisturbed
    place = tmp_path / "i"
    trace = tmp_path / "trace"
    process = start(place, trace)
    time.sleep(random.Random(attempt).uniform(0.0, duration_s))
    process.kill()
    process.wait(timeout=60)
    if not (place / "manifest.json").exists():
        # What is missing depends on the moment.
        with pytest.raises(IncompleteArtifactError):
            Index.open(place)
    write_index(place, corpus(), encoder=TracedEncoder(trace), settings=SETTINGS)
    assert content(place) == expected
    encoded = trace.read_text().splitlines()
    assert len(set(encoded)) == PASSAGES // SHARD_ROWS
    assert len(encoded) - len(set(encoded)) <= 1
    with Index.open(place, verify="deep") as index:
        assert len(index.passages) == PASSAGES


@pytest.mark.parametrize("full_at", [1, 4, 9])
def test_a_full_disk_is_said_and_leaves_nothing_that_looks_complete(
    tmp_path: Path,
    undisturbed: tuple[dict[str, str], float],
    monkeypatch: pytest.MonkeyPatch,
    full_at: int,
) -> None:
    writes = 0
    original = arrays.atomic_path

    @contextmanager
    def full(path: Path) -> Iterator[Path]:
        nonlocal writes
        writes += 1
        with original(path) as temporary:
            if writes == full_at:
                temporary.write_bytes(b"half")
                raise OSError(errno.ENOSPC, "No space left on device")
            yield temporary

    monkeypatch.setattr(arrays, "atomic_path", full)
    encoder = TracedEncoder(tmp_path / "trace")
    with refusal(ResourceError):
        write_index(tmp_path / "i", corpus(), encoder=encoder, settings=SETTINGS)
    assert not list((tmp_path / "i").rglob("*.partial-*"))
    with refusal(IncompleteArtifactError):
        Index.open(tmp_path / "i")
    write_index(tmp_path / "i", corpus(), encoder=encoder, settings=SETTINGS)
    assert content(tmp_path / "i") == undisturbed[0]
