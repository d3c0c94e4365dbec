"""Atomic writes, checksums, locks."""

import errno
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rag.core.errors import ConfigError, DataError, ResourceError
from rag.core.files import (
    atomic_path,
    atomic_write_json,
    atomic_write_text,
    check_target,
    directory_lock,
    disk_errors,
    read_json,
    remove_temporaries,
    replaced_folder,
)


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
def test_failed_write_leaves_the_old_content_and_no_litter(tmp_path: Path, error: BaseException) -> None:
    target = tmp_path / "file.txt"
    atomic_write_text(target, "old")
    with pytest.raises(type(error)), atomic_path(target) as temporary:
        temporary.write_text("half of the new")
        raise error
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_killed_writer_leaves_only_a_temporary_that_can_be_removed(tmp_path: Path) -> None:
    code = textwrap.dedent(
        """
        import os, signal, sys
        from rag.core.files import atomic_path
        with atomic_path(sys.argv[1]) as temporary:
            temporary.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    target = tmp_path / "file.txt"
    done = subprocess.run([sys.executable, "-c", code, str(target)])
    assert done.returncode == -9
    assert not target.exists()
    remove_temporaries(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_json_is_sorted_and_refuses_nan(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    atomic_write_json(path, {"b": 1, "a": "é"})
    assert path.read_text(encoding="utf-8") == '{\n  "a": "é",\n  "b": 1\n}\n'
    assert read_json(path) == {"a": "é", "b": 1}
    with pytest.raises(ValueError, match="Out of range"):
        atomic_write_json(path, {"a": float("nan")})
    assert read_json(path) == {"a": "é", "b": 1}


def test_read_json_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    with pytest.raises(DataError, match="no such file"):
        read_json(path)
    path.write_text('{"a": ')
    with pytest.raises(DataError, match=r"broken\.json: not valid JSON"):
        read_json(path)


def test_one_writer_a_directory_and_the_lock_dies_with_its_owner(tmp_path: Path) -> None:
    code = textwrap.dedent(
        """
        import sys, time
        from rag.core.files import directory_lock
        with directory_lock(sys.argv[1]):
            print("held", flush=True)
            time.sleep(60)
        """
    )
    owner = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline().strip() == "held"
    with pytest.raises(ResourceError, match="another process is writing here"), directory_lock(tmp_path):
        pass
    owner.kill()
    owner.wait()
    owner.stdout.close()
    with directory_lock(tmp_path):
        pass


@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.ENOSPC, "disk is full"), (errno.EACCES, "no permission"), (errno.EROFS, "no permission")],
)
def test_disk_trouble_is_a_resource_error(tmp_path: Path, code: int, words: str) -> None:
    with pytest.raises(ResourceError, match=words), disk_errors(tmp_path / "x"):
        raise OSError(code, "from the system")
    with pytest.raises(ResourceError, match=words), disk_errors(tmp_path / "x"):
        raise RuntimeError(f"Error while serializing: I/O error: from the system (os error {code})")


def test_a_place_where_nothing_can_be_written_is_refused_before_and_at_writing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder").mkdir()
    cases = [
        ("folder", False, "folder is a folder, expected a file"),
        ("file", True, "file is a file, expected a folder"),
        ("file/x/y", True, "file is a file: nothing can lie in it"),
    ]
    for name, folder, message in cases:
        with pytest.raises(ConfigError, match=message):
            check_target(tmp_path / name, folder=folder)
        with pytest.raises(ConfigError, match=message), atomic_path(tmp_path / name) as temporary:
            temporary.mkdir() if folder else temporary.write_text("x")
    with pytest.raises(ConfigError, match="file is a file: nothing"), directory_lock(tmp_path / "file/x"):
        pass
    check_target(tmp_path / "file")
    check_target(tmp_path / "folder", folder=True)
    check_target(tmp_path / "new/deep/x", folder=True)
    assert (tmp_path / "file").read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_links_stay_links_and_one_to_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "old").touch()
    (tmp_path / "folder").symlink_to("real")
    (tmp_path / "name").symlink_to("real/old")
    atomic_write_text(tmp_path / "name", "new")
    assert (tmp_path / "name").is_symlink()
    assert (tmp_path / "real" / "old").read_text() == "new"
    with atomic_path(tmp_path / "folder") as temporary:
        temporary.mkdir()
        (temporary / "x").touch()
        shutil.rmtree(tmp_path / "real")
    assert (tmp_path / "folder").is_symlink()
    assert [path.name for path in (tmp_path / "real").iterdir()] == ["x"]
    for name, target in (("gone", "nowhere"), ("loop", "loop")):
        (tmp_path / name).symlink_to(target)
        with pytest.raises(ConfigError, match=f"{name} is a link to {target}, which does not exist"):
            atomic_write_text(tmp_path / name, "x")
        with pytest.raises(ConfigError, match="is a link to"), directory_lock(tmp_path / name):
            pass


def test_a_folder_to_write_is_new_or_empty_or_replaced_when_complete(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for _ in ("missing", "empty"):
        check_target(out, folder=True, is_new=True)
        out.mkdir(exist_ok=True)
    (out / "old").write_text("old")
    with pytest.raises(ConfigError, match="exists and is not empty"):
        check_target(out, folder=True, is_new=True)
    with pytest.raises(ConfigError, match="is a file, expected a folder"):
        check_target(out / "old", folder=True, is_new=True)
    with pytest.raises(ValueError, match="broken"), replaced_folder(out) as temporary:
        (temporary / "new").write_text("half")
        raise ValueError("broken")
    assert [path.name for path in out.iterdir()] == ["old"]
    with replaced_folder(out) as temporary:
        (temporary / "new").write_text("new")
    assert [path.name for path in out.iterdir()] == ["new"]
