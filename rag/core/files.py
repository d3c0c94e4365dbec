"""Files that are complete or absent: atomic writes, checksums, one writer per directory."""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rag.core.errors import ArtifactError, ConfigError, DataError, ResourceError

TEMPORARY_MARK = ".partial-"


def fsync_path(path: Path) -> None:
    """Flush a file's content, or a directory's entries, so that a rename in it survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(path: Path) -> None:
    """Flush a file, or a directory with all that is in it."""
    for inner in path.rglob("*") if path.is_dir() else ():
        fsync_path(inner)
    fsync_path(path)


def check_target(path: str | Path, *, folder: bool = False, is_new: bool = False) -> None:
    """Refuse a place where no file, or no folder, can be written: before the work whose result goes there.

    Args:
        is_new: the folder must not exist, or be empty.

    Raises:
        ConfigError: a folder lies where a file is to be, a file where a folder is to be, a file above it, it
            is a link to nothing, or a new folder holds something.
        ResourceError: there is no permission to write there.
    """
    target = Path(path)
    expected, other = ("folder", "file") if folder else ("file", "folder")
    above = next(place for place in target.absolute().parents if place.exists())
    problem = ""
    if target.is_symlink() and not target.exists():
        problem = f"{target} is a link to {os.readlink(target)}, which does not exist"
    elif target.exists() and target.is_dir() != folder:
        problem = f"{target} is a {other}, expected a {expected}"
    elif not above.is_dir():
        problem = f"{above} is a file: nothing can lie in it"
    elif is_new and target.exists() and any(target.iterdir()):
        problem = f"{target} exists and is not empty"
    if problem:
        raise ConfigError(problem, hint="choose another --out")
    if not os.access(target if target.exists() else above, os.W_OK):
        raise _no_permission(target)


def _no_permission(path: Path) -> ResourceError:
    return ResourceError(f"no permission to write {path}", hint="choose another --out")


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn errors of the disk at this place into errors that name it; others pass through.

    Raises:
        ResourceError: ENOSPC, EDQUOT, EFBIG, EACCES, EPERM, EROFS: the disk is full, or not to be written to.
        ConfigError: EISDIR, ENOTDIR, EEXIST: see `check_target`.
    """
    try:
        yield
    except Exception as error:
        reported = re.search(r"\(os error (\d+)\)", str(error))  # the form in which safetensors reports it
        code = error.errno if isinstance(error, OSError) else int(reported[1]) if reported else None
        unnumbered = re.search("write error|requested and .+ written", str(error))  # of FAISS and NumPy
        if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or unnumbered:
            hint = "free some space and run the same command again; finished parts are kept"
            raise ResourceError(f"the disk is full: could not write {path}", hint=hint) from error
        named, here = Path(str(getattr(error, "filename", None) or path)).absolute(), path.absolute()
        if named.is_relative_to(here.parent) or here.is_relative_to(named):  # and not about another file
            if code in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise _no_permission(path) from error
            if code in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST):
                check_target(path, folder=code != errno.EISDIR)
        raise


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary sibling of `path`; on success it is flushed and renamed over `path`.

    A link stays a link: what it points to is replaced. On any exception, Ctrl-C included, the temporary file
    or directory is removed and `path` is untouched.

    Example:
        >>> target = Path(tempfile.mkdtemp()) / "numbers.txt"
        >>> with atomic_path(target) as temporary:
        ...     _ = temporary.write_text("1 2 3")
        >>> target.read_text()
        '1 2 3'
    """
    target = Path(path)
    if target.is_symlink():
        check_target(target, folder=target.is_dir())
        target = target.resolve()
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mktemp(prefix=f".{target.name}{TEMPORARY_MARK}", dir=target.parent))
        try:
            yield temporary
            fsync_tree(temporary)
            os.replace(temporary, target)
            fsync_path(target.parent)
        finally:
            _remove(temporary)


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder beside `folder`, which replaces it and its content when it is complete."""
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        yield temporary
        if folder.exists():
            shutil.rmtree(folder.resolve())


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name (a hard link), or copy it where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def clean_directory(directory: Path) -> None:
    """Make `directory` if it is missing, and remove temporary files that killed writers left in it."""
    with disk_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        for entry in directory.glob(f".*{TEMPORARY_MARK}*"):
            _remove(entry)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def atomic_write_text(path: str | Path, text: str, errors: str = "strict") -> None:
    """Write UTF-8 text to `path` so that readers see the old content or the new, never a part."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(text.encode("utf-8", errors))


def atomic_write_json(path: str | Path, value: Any) -> None:
    """Write JSON atomically: indented, sorted keys, UTF-8, a newline at the end."""
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    # The name of a file that is not UTF-8 has surrogates, whose form with a backslash is also JSON's.
    atomic_write_text(path, f"{text}\n", "backslashreplace")


def read_json(path: str | Path) -> Any:
    """Read one JSON file.

    Raises:
        DataError: if the file is missing or is not JSON; the message names file and position.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file", hint="check the path") from error
    except ValueError as error:  # of JSON, or of UTF-8
        raise DataError(f"{path}: not valid JSON ({error})") from error


def sha256_file(path: str | Path) -> str:
    """Hex sha256 of a file."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise ArtifactError(f"{path}: no such file", hint="check the path") from error


def fingerprint(value: Any) -> str:
    """Hex sha256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def hash64(data: bytes) -> int:
    """A 64-bit hash that is equal in every process, unlike Python's `hash`."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


@contextmanager
def directory_lock(directory: str | Path) -> Iterator[None]:
    """Lock `directory` for one writer (a `.lock` file in it, released by the system when the process ends).

    Raises:
        ConfigError: it is a file.
        ResourceError: another process holds it.
    """
    place = Path(directory)
    check_target(place, folder=True)
    with disk_errors(place):
        place.mkdir(parents=True, exist_ok=True)
        lock = FileLock(place / ".lock")
        try:
            lock.acquire(blocking=False)
        except Timeout as error:
            hint = "wait for it to finish, or choose another --out"
            raise ResourceError(f"{place}: another process is writing here", hint=hint) from error
    try:
        yield
    finally:
        lock.release()


def hold_folder(folder: Path, owner: object) -> Callable[[], object]:
    """Keep other processes from removing a folder until the result is called, or `owner` is collected.

    Raises:
        ArtifactError: there is no such folder.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise ArtifactError(f"{folder} is missing", hint="restore it or rebuild the index") from error
    with suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return weakref.finalize(owner, os.close, descriptor)


def is_in_use(folder: Path) -> bool:
    """Whether this process or another holds a folder, see `hold_folder`."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
