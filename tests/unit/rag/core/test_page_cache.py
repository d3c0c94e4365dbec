"""What is read ahead depends on the memory that the process may use."""

from pathlib import Path

import pytest

from rag.core import page_cache
from rag.core.page_cache import free_memory, read_ahead


def machine(place: Path, monkeypatch: pytest.MonkeyPatch, groups: str, limits: dict[str, str]) -> None:
    (place / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable:    100 kB\n")
    (place / "cgroup").write_text(groups)
    for name, value in limits.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(value)
    monkeypatch.setattr(page_cache, "_MEMORY", place / "meminfo")
    monkeypatch.setattr(page_cache, "_GROUPS", place / "cgroup")
    monkeypatch.setattr(page_cache, "_MOUNT", place / "fs")


@pytest.mark.parametrize(
    ("groups", "limits", "free"),
    [
        ("0::/a/b\n", {"fs/a/b/memory.max": "5000\n"}, 5000),
        ("0::/a\n", {"fs/a/memory.max": "max\n"}, 100 << 10),
        ("7:cpu,memory:/a\n1:pids:/a\n", {"fs/memory/a/memory.limit_in_bytes": "6000"}, 6000),
        # inside a container the group's own path is not there
        ("7:memory:/docker/x\n", {"fs/memory/memory.limit_in_bytes": "7000"}, 7000),
        ("7:memory:/a\n", {"fs/memory/a/memory.limit_in_bytes": str(1 << 62)}, 100 << 10),
    ],
)
def test_the_limit_of_the_control_group_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, limits: dict[str, str], free: int
) -> None:
    machine(tmp_path, monkeypatch, groups, limits)
    assert free_memory() == free


def test_files_are_read_only_where_they_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.write_bytes(bytes(1000))
    machine(tmp_path, monkeypatch, "0::/\n", {"fs/memory.max": "4000"})
    assert read_ahead([*files, tmp_path / "missing"]) == 2000
    machine(tmp_path, monkeypatch, "0::/\n", {"fs/memory.max": "3000"})
    assert read_ahead(files) == 0
    monkeypatch.setattr(page_cache, "_MEMORY", tmp_path / "other system")
    assert free_memory() is None
    assert read_ahead(files) == 0
