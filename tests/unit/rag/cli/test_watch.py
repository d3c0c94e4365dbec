"""`rag index FOLDER --update INDEX --watch`: an index follows its folder until Ctrl-C."""

import signal
import subprocess
import sys
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

import pytest

from indexers.index import Index
from rag.core.errors import RagError
from tests.support.files import index_files
from tests.support.processes import wait_until, with_packages


@pytest.fixture
def corpus(tmp_path: Path) -> tuple[Path, Path]:
    """A folder of three files, and its index."""
    rivers = ("danube", "rhine", "elbe")
    files = {f"{river}.md": f"# Rivers\n\nThe {river} flows.\n" for river in rivers}
    return index_files(tmp_path, files)


def found(place: Path, question: str) -> list[str]:
    """What the index as it is on disk now finds for a word."""
    with Index.open(place, verify="none") as index:
        (hits,) = index.lucene.search([question], 5)
        return [index.passages[row].text for row, _ in hits]


def is_found(
    place: Path, question: str, expected: list[str], process: subprocess.Popen[str]
) -> bool:
    assert process.poll() is None, process.communicate()
    with suppress(RagError):  # opened while the update replaced it
        return found(place, question) == expected
    return False


def test_files_that_appear_change_and_go_are_followed_until_ctrl_c(
    corpus: tuple[Path, Path],
) -> None:
    folder, place = corpus
    (folder / "bad.pdf").write_bytes(b"%PDF-junk")
    command = [sys.executable, "-m", "rag.cli.main", "index", folder, "--update", place, "--watch"]
    process = subprocess.Popen(
        command,
        env=with_packages(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # runs in the background ignore it
    )
    try:
        warnings = "".join(takewhile(lambda line: "watching" not in line, process.stderr))
        assert "bad.pdf: broken file" in warnings
        (folder / "zoo.md").write_text("# Zoo\n\nThe giraffe eats.\n")
        wait_until(lambda: is_found(place, "giraffe", ["The giraffe eats."], process))
        (folder / "zoo.md").write_text("# Zoo\n\nThe giraffe sleeps.\n")
        wait_until(lambda: is_found(place, "giraffe", ["The giraffe sleeps."], process))
        (folder / "zoo.md").unlink()
        wait_until(lambda: is_found(place, "giraffe", [], process))
        assert found(place, "danube") == ["The danube flows."]
        (folder / "elbe.md").chmod(0o600)  # a file that could not be read is tried again
        lines = [
            process.stdout.readline() for _ in range(5)
        ]  # the update at the start changes nothing
        process.send_signal(signal.SIGINT)
        printed, complaints = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, complaints
    assert "Traceback" not in complaints
    assert "bad.pdf" not in complaints  # it is named once, not at every round
    assert [line.partition("version ")[2].partition(", ")[2].strip() for line in lines] == [
        "3 documents, none changed",
        "documents: 1 added, 0 replaced, 0 deleted, 3 kept; passages written: 1",
        "documents: 0 added, 1 replaced, 0 deleted, 3 kept; passages written: 1",
        "documents: 0 added, 0 replaced, 1 deleted, 3 kept; passages written: 0",
        "3 documents, none changed",
    ]
    assert printed == ""
    with Index.open(place, verify="deep") as index:
        assert index.version in lines[-1]
