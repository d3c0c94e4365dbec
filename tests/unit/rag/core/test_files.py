"""Atomic writes, checksums, locks."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rag.core.errors import ConfigError, DataError, ResourceError
from rag.core.files import (
    atomic_path,
    atomic_write_json,
    atomic_write_text,
    check_target,
    clean_directory,
    directory_lock,
    disk_errors,
    read_json,
    records_of_journal,
)
from tests.support.messages import refusal


def _process(code: str, place: Path) -> "subprocess.Popen[str]":
    """A process that runs the body of a `with` block, and says that it is there."""
    code = f"import sys, time; from rag.core.files import *\nwith {code} as held:\n"
    code += "    getattr(held, 'write_text', len)('half')\n    print('there', flush=True); time.sleep(60)"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(place)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline().strip() == "there"
    return process


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
def test_failed_write_leaves_the_old_content_and_no_litter(
    tmp_path: Path, error: BaseException
) -> None:
    target = tmp_path / "file.txt"
    atomic_write_text(target, "old")
    with pytest.raises(type(error)), atomic_path(target) as temporary:
        temporary.write_text("half of the new")
        raise error
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_killed_writer_leaves_only_a_temporary_that_can_be_removed(tmp_path: Path) -> None:
    with _process("atomic_path(sys.argv[1])", tmp_path / "file.txt") as writer:
        os.kill(writer.pid, signal.SIGKILL)
    assert [path.name == "file.txt" for path in tmp_path.iterdir()] == [False]
    clean_directory(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_has_one_writer_whose_lock_dies_with_it(tmp_path: Path) -> None:
    with _process("directory_lock(sys.argv[1])", tmp_path) as owner:
        with refusal(ResourceError), directory_lock(tmp_path):
            pass
        owner.kill()
    with directory_lock(tmp_path):
        pass


def test_json_is_sorted_and_refuses_nan_and_damage(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    with refusal(DataError):
        read_json(path)
    atomic_write_json(path, {"b": 1, "a": "é"})
    assert path.read_text(encoding="utf-8") == '{\n  "a": "é",\n  "b": 1\n}\n'
    with pytest.raises(ValueError, match="Out of range"):
        atomic_write_json(path, {"a": float("nan")})
    assert read_json(path) == {"a": "é", "b": 1}
    path.write_text('{"a": ')
    with refusal(DataError):
        read_json(path)


def test_a_full_disk_is_a_resource_error(tmp_path: Path) -> None:
    reported = RuntimeError(
        f"Error while serializing: I/O error: from the system (os error {errno.ENOSPC})"
    )
    for error in (OSError(errno.ENOSPC, "from the system"), reported):
        with refusal(ResourceError), disk_errors(tmp_path / "x"):
            raise error


TAKEN = {
    "folder in place of a file": ("folder", False),
    "file in place of a folder": ("file", True),
    "folder below a file": ("file/x/y", True),
}


@pytest.mark.parametrize(("name", "folder"), TAKEN.values(), ids=TAKEN)
def test_a_place_where_nothing_can_be_written_is_refused(
    tmp_path: Path, name: str, folder: bool
) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder").mkdir()
    with refusal(ConfigError):
        check_target(tmp_path / name, folder=folder)
    if folder:
        with refusal(ConfigError), directory_lock(tmp_path / name):
            pass
    for place, is_folder in (("file", False), ("folder", True), ("new/deep/x", True)):
        check_target(tmp_path / place, folder=is_folder)
    with refusal(ConfigError):
        atomic_write_text(tmp_path / "file" / "x", "new")
    assert (tmp_path / "file").read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_links_stay_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "old").touch()
    (tmp_path / "folder").symlink_to("real")
    (tmp_path / "name").symlink_to("real/old")
    atomic_write_text(tmp_path / "name", "new")
    assert (tmp_path / "name").is_symlink()
    assert (tmp_path / "real" / "old").read_text() == "new"
    (tmp_path / "gone").symlink_to("real/new")
    atomic_write_text(tmp_path / "gone", "written where the link points")
    assert (tmp_path / "gone").is_symlink()
    assert (tmp_path / "real" / "new").read_text() == "written where the link points"
    (tmp_path / "loop").symlink_to("loop")  # which points nowhere
    atomic_write_text(tmp_path / "loop", "in its place")
    assert (tmp_path / "loop").read_text() == "in its place"
    with atomic_path(tmp_path / "folder", folder=True) as temporary:
        (temporary / "x").touch()
    assert (tmp_path / "folder").is_symlink()
    assert [path.name for path in (tmp_path / "real").iterdir()] == ["x"]


def test_a_folder_to_write_is_new_or_empty_or_replaced_when_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    for _ in ("missing", "empty"):
        check_target(out, folder=True, is_new=True)
        out.mkdir(exist_ok=True)
    (out / "old").write_text("old")
    with refusal(ConfigError):
        check_target(out, folder=True, is_new=True)
    with pytest.raises(ValueError, match="broken"), atomic_path(out, folder=True) as temporary:
        raise ValueError("broken")
    stops = iter((False, True, False))
    replace = os.replace

    def stopped(*places: Path) -> None:
        """Stops with the old folder aside, and the new one not in its place."""
        if next(stops):
            raise SystemExit
        replace(*places)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", stopped)
        with pytest.raises(SystemExit), atomic_path(out, folder=True):
            pass
    assert [path.name for path in out.iterdir()] == ["old"]
    with atomic_path(out, folder=True) as temporary:
        (temporary / "new").write_text("new")
    assert [path.name for path in out.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [out]


def test_a_journal_loses_its_torn_end_alone(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    assert list(records_of_journal(journal)) == []
    lines = ['{"id": 1}\n', '{"id": 2}\n', '{"id": 3']
    journal.write_text("".join(lines))
    assert [record["id"] for record in records_of_journal(journal)] == [1, 2]
    assert journal.read_text() == "".join(lines[:2])
    damaged = lines[0].replace("{", "") + lines[1] * 2
    journal.write_text(damaged)
    with refusal(DataError):
        list(records_of_journal(journal))
    assert journal.read_text() == damaged
