"""What is seen of another process from outside: the end of its log, and its memory as Linux counts it."""

from pathlib import Path
from typing import IO

from rag.core.errors import ResourceError


def end_of_log(log: IO[str]) -> str:
    """The last 1,500 characters that were written to an open log."""
    log.seek(0)
    return log.read()[-1500:].strip()


def sizes_of(pid: int | str, file: str) -> dict[str, int]:
    """The bytes by name that the system states in a file of `/proc/PID`, such as `status`.

    Raises:
        OSError: there is no such process or file.
    """
    lines = Path(f"/proc/{pid}/{file}").read_text(encoding="utf-8").splitlines()
    return {
        line.split()[0].rstrip(":"): 1024 * int(line.split()[1]) for line in lines if line.endswith(" kB")
    }


def memory_of(pid: int | str = "self") -> dict[str, int]:
    """Resident memory of a process in bytes, from `/proc/PID/smaps_rollup`.

    Returns:
        rss (all resident pages), anonymous (its own data), file_backed (mapped files and libraries,
        shared with the page cache), private (pages no other process has), pss.

    Raises:
        ResourceError: the system does not tell (only Linux does).
    """
    try:
        sizes = sizes_of(pid, "smaps_rollup")
    except OSError as error:
        raise ResourceError(
            f"/proc/{pid}/smaps_rollup cannot be read ({error})", hint="memory is measured on Linux only"
        ) from error
    return {
        "rss": sizes["Rss"],
        "anonymous": sizes["Anonymous"],
        "file_backed": sizes["Rss"] - sizes["Anonymous"],
        "private": sizes["Private_Clean"] + sizes["Private_Dirty"],
        "pss": sizes["Pss"],
    }
