"""The report of a benchmark: hardware and versions, tables, figures as JSON."""

import math
import os
import platform
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rag.core.files import atomic_write_json
from rag.core.log import text_table
from rag.core.optional import installed_version
from rag.metrics.significance import Interval

_PACKAGES = ("openqa-rag", "torch", "transformers", "faiss-cpu", "numpy", "pyserini")


def environment() -> dict[str, Any]:
    """The machine and the versions a figure belongs to.

    `fast_numbers` are those of `rag doctor`; `load_1m` is other work on the machine: timings need
    it small.
    """
    import torch

    from rag.runtime.hardware import available_cores, precisions

    facts = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.+)$", facts.read_text(), re.M) if facts.is_file() else []
    device = "cuda" if torch.cuda.is_available() else "cpu"
    fast = [name for name, is_fast in precisions(device).items() if is_fast]
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": available_cores(),
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "fast_numbers": " ".join(fast) or "none",
        "torch_threads": torch.get_num_threads(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_1m": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: installed_version(name) or "not installed" for name in _PACKAGES},
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


@dataclass(slots=True)
class Report:
    """The results of one benchmark.

    Attributes:
        name: the benchmark's command.
        settings: arguments that decide the figures (paths, sizes, seeds).
        figures: numbers for the JSON file.
        environment: the machine, recorded when the report is created.
    """

    name: str
    settings: Mapping[str, Any]
    figures: dict[str, Any] = field(default_factory=dict)
    tables: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=environment)

    def add_table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Show rows of text under a title."""
        self.tables.append("\n  ".join([title, *text_table(columns, rows)]))

    def to_text(self) -> str:
        """Header with hardware and settings, tables, notes."""
        machine = self.environment
        versions = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
        lines = [
            f"rag bench {self.name}",
            f"  {machine['cpu']}, {machine['cores']} cores, fast numbers: {machine['fast_numbers']}, "
            f"{machine['torch_threads']} torch threads, {machine['memory_gib']} GiB, "
            f"load {machine['load_1m']} at the start",
            f"  {versions}, Python {machine['python']}",
            "  " + ", ".join(f"{key}={value}" for key, value in self.settings.items()),
        ]
        for table in self.tables:
            lines += ["", table]
        lines += ["", *(f"note  {note}" for note in self.notes)] if self.notes else []
        return "\n".join(lines)

    def write(self, path: str | Path) -> None:
        """Write the figures as JSON, atomically."""
        figures = {
            "benchmark": self.name,
            "environment": self.environment,
            "settings": self.settings,
            "figures": self.figures,
            "notes": self.notes,
        }
        atomic_write_json(path, _plain(figures))


def _plain(value: Any) -> Any:
    """Numbers, strings, lists and dicts only; undefined numbers become None."""
    if isinstance(value, Interval):
        return value.to_json()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
