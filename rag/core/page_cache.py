"""The system's cache of file pages: what every request reads is brought there before the first one."""

import os
from collections.abc import Iterable
from pathlib import Path

_MEMORY, _GROUPS = Path("/proc/meminfo"), Path("/proc/self/cgroup")
_LIMITS = {"": ("", "memory.max"), "memory": ("memory", "memory.limit_in_bytes")}  # by cgroup version
_MOUNT = Path("/sys/fs/cgroup")


def free_memory() -> int | None:
    """Bytes that this process can use, cached pages included: what the system has available, or the limit of
    the process's control group if that is less; None where the system does not state it.
    """
    try:
        lines = _MEMORY.read_text().splitlines()
        groups = _GROUPS.read_text().splitlines()
    except OSError:
        return None
    available = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")), None)
    if available is None:
        return None
    limits = [available]
    for group in groups:
        _, controllers, path = group.split(":", 2)
        for controller in controllers.split(","):
            folder, name = _LIMITS.get(controller, ("", ""))
            if name:
                places = (_MOUNT / folder / path.lstrip("/") / name, _MOUNT / folder / name)
                limits += _first_limit(places)
    return min(limits)


def _first_limit(places: Iterable[Path]) -> list[int]:
    for place in places:
        try:
            text = place.read_text().strip()
        except OSError:
            continue
        return [int(text)] if text.isdigit() else []
    return []


def read_ahead(paths: Iterable[Path]) -> int:
    """Let the system read whole files into its cache, if they fit into half of `free_memory`.

    Returns:
        Bytes of the files; 0 if they do not fit, or where the system takes no such advice.
    """
    files, free = [path for path in paths if path.is_file()], free_memory()
    size = sum(path.stat().st_size for path in files)
    if free is None or size > free // 2 or not hasattr(os, "posix_fadvise"):
        return 0
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
    return size
