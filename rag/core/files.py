"""Files that are complete or absent: atomic writes, checksums, one writer per directory."""

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rag.core.errors import (
    ArtifactError,
    ConfigError,
    DataError,
    DiskFullError,
    RagError,
    ResourceError,
)

TEMPORARY_MARK = ".partial-"
_LACKING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def fsync_path(path: Path) -> None:
    """Flush a file's content, or a directory's entries, so that a rename in it survives a power
    cut.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(path: Path) -> None:
    """Flush a file, or a directory with all that is in it."""
    for inner in path.rglob("*"):
        fsync_path(inner)
    fsync_path(path)


def check_target(path: str | Path, *, folder: bool = False, is_new: bool = False) -> None:
    """Refuse a place where no file, or no folder, can be written: before the work whose result goes
    there.

    Args:
        is_new: the folder must not exist, or be empty.

    Raises:
        ConfigError: a folder lies where a file is to be, a file where a folder is to be or above
            it, or a new folder holds something.
        ResourceError: there is no permission to write there.
    """
    target = Path(path)
    above = next(parent for parent in target.absolute().parents if parent.exists())
    fault = ""
    if target.is_file() and folder:
        fault = f"{target} is a file, expected a folder"
    elif target.is_dir() and not folder:
        fault = f"{target} is a folder, expected a file"
    elif not above.is_dir():
        fault = f"{above} is a file: nothing can lie in it"
    elif is_new and target.exists() and any(target.iterdir()):
        fault = f"{target} exists and is not empty"
    if fault:
        raise ConfigError(fault, hint="choose another {out}", arguments=["out"])
    if not os.access(target if target.exists() else above, os.W_OK):
        hint = "get write access to it, or choose another folder"
        raise ResourceError(f"no permission to write {target}", hint=hint)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn the errors of a full disk, as the system and libraries report them, into one that names
    the place.

    Raises:
        DiskFullError: ENOSPC, EDQUOT, EFBIG.
    """
    try:
        yield
    except Exception as error:
        # Safetensors gives the number in its text, FAISS and NumPy give none.
        reported = re.search(r"\(os error (\d+)\)", str(error))
        code = int(reported[1]) if reported else getattr(error, "errno", None)
        is_unnumbered = re.search("write error|requested and .+ written", str(error))
        if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or is_unnumbered:
            hint = "free some space and run the same command again; finished parts are kept"
            raise DiskFullError(f"the disk is full: could not write {path}", hint=hint) from error
        raise


def unreadable(path: Path, error: Exception) -> RagError:
    """The error for a file of an index that cannot be read: a ResourceError where files or memory
    are lacking, which may pass, else an ArtifactError.
    """
    is_lacking = isinstance(error, MemoryError) or getattr(error, "errno", None) in _LACKING
    # FAISS gives the reason in words alone; in brackets it may be that of an earlier error.
    if is_lacking or str(error).endswith(tuple(map(os.strerror, _LACKING))):
        hint = "allow more open files (`ulimit -n`), free memory, or try again later"
        return ResourceError(f"{path} cannot be opened now: {error}", hint=hint)
    problem = "is missing" if isinstance(error, FileNotFoundError) else f"is damaged: {error}"
    return ArtifactError(f"{path} {problem}", hint="restore it or rebuild the index")


@contextmanager
def atomic_path(path: str | Path, *, folder: bool = False) -> Iterator[Path]:
    """Yield a temporary place beside `path`; on success it is flushed and renamed over `path`.

    A link stays a link: what it points to is replaced. On any exception, Ctrl-C included, the
    temporary file or folder is removed and `path` is untouched. A `folder` is made, and replaces
    the whole of one at `path`.

    Example:
        >>> target = Path(tempfile.mkdtemp()) / "numbers.txt"
        >>> with atomic_path(target) as temporary:
        ...     _ = temporary.write_text("1 2 3")
        >>> target.read_text()
        '1 2 3'
    """
    target = Path(os.path.realpath(path)) if Path(path).is_symlink() else Path(path)
    check_target(target, folder=folder)
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}{TEMPORARY_MARK}", dir=target.parent))
        temporary = work / "new"
        try:
            if folder:
                temporary.mkdir()
            yield temporary
            fsync_tree(temporary)
            if folder and target.exists():
                # Never half removed at its place, whenever this is killed.
                os.replace(target, work / "old")
            os.replace(temporary, target)
            fsync_path(target.parent)
        finally:
            # Stopped between the two.
            if (work / "old").exists() and not target.exists():
                os.replace(work / "old", target)
            shutil.rmtree(work, ignore_errors=True)


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name (a hard link), or copy it where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def clean_directory(directory: Path) -> None:
    """Make `directory` if it is missing, and remove temporary files that killed writers left in
    it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for entry in directory.glob(f".*{TEMPORARY_MARK}*"):
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def atomic_write_text(path: str | Path, text: str, errors: str = "strict") -> None:
    """Write UTF-8 text to `path` so that readers see the old content or the new, never a part."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(text.encode("utf-8", errors))


def atomic_write_json(path: str | Path, value: object) -> None:
    """Write JSON atomically: indented, sorted keys, UTF-8, a newline at the end."""
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    # The name of a file that is not UTF-8 has surrogates, whose form with a backslash is also
    # JSON's.
    atomic_write_text(path, f"{text}\n", "backslashreplace")


def read_json(path: str | Path) -> Any:
    """Read one JSON file; a DataError names file and position where it is missing or not JSON."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file", hint="check the path") from error
    except ValueError as error:  # of JSON, or of UTF-8
        raise DataError(f"{path}: not valid JSON ({error})") from error


def records_of_journal(path: Path, key: str = "id") -> Iterator[dict[str, object]]:
    """Records, each with this key, of a JSONL file that grows by a line at a time.

    A torn last line, left by a killed run, is cut off once all records are read.

    Raises:
        DataError: another line is damaged.
    """
    if not path.is_file():
        return
    with open(path, "r+b") as file:
        whole = 0
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:  # of JSON, or of UTF-8
                break
            if not line.endswith(b"\n") or not isinstance(record, dict) or key not in record:
                break
            whole += len(line)
            yield record
        file.seek(whole)
        if len(file.readlines()) > 1:
            raise DataError(
                f"{path}: a line that is no record, after {whole} bytes, and others behind it",
                hint="restore the file, or delete that line",
            )
        file.truncate(whole)


def sha256_file(path: str | Path) -> str:
    """Hex sha256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(value: object) -> str:
    """Hex sha256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def hash64(data: bytes) -> int:
    """A 64-bit hash that is equal in every process, unlike Python's `hash`."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


@contextmanager
def directory_lock(directory: str | Path) -> Iterator[None]:
    """Lock `directory` for one writer (a `.lock` file in it, released by the system when the
    process ends).

    Raises:
        ConfigError: it is a file.
        ResourceError: another process holds it for more than two seconds.
    """
    check_target(directory, folder=True)
    Path(directory).mkdir(parents=True, exist_ok=True)
    try:
        # A server that removes an old version of its index holds the lock for less.
        lock = FileLock(Path(directory, ".lock")).acquire(timeout=2.0)
    except Timeout as error:
        raise ResourceError(
            f"{directory}: another process is writing here",
            hint="wait for it to finish, or choose another {out}",
            arguments=["out"],
        ) from error
    with lock:
        yield
