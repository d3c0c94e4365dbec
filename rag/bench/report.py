"""The report of a benchmark: hardware and versions, a table of figures, the same as JSON."""

import math
import os
import platform
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rag.core.files import atomic_write_json
from rag.core.log import text_table
from rag.core.optional import installed_version
from rag.metrics.significance import Interval

_PACKAGES = ("openqa-rag", "torch", "transformers", "faiss-cpu", "numpy", "pyserini")

Figure = Interval | float | str | None


def environment() -> dict[str, object]:
    """The machine and the versions a figure belongs to.

    `fast_numbers` are those of `rag doctor`; `load_1m` is other work on the machine: timings need
    it small.
    """
    import torch

    from rag.runtime.hardware import available_cores, precisions

    facts = Path("/proc/cpuinfo")
    name = re.search(r"^model name\s*: (.+)$", facts.read_text(), re.M) if facts.exists() else None
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    fast = [number for number, is_fast in precisions("cuda" if gpu else "cpu").items() if is_fast]
    return {
        "cpu": name[1] if name else platform.processor() or platform.machine(),
        "cores": available_cores(),
        "gpu": gpu,
        "fast_numbers": " ".join(fast) or "none",
        "torch_threads": torch.get_num_threads(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_1m": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: installed_version(name) or "not installed" for name in _PACKAGES},
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


@dataclass(slots=True)
class Report:
    """The results of one benchmark.

    Attributes:
        title: what the table shows.
        rows: contestant → column → figure; a contestant may lack columns.
        environment: the machine, recorded when the report is created.
    """

    title: str
    rows: dict[str, dict[str, Figure]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    environment: dict[str, object] = field(default_factory=environment)

    def to_text(self, command: str, settings: Mapping[str, object]) -> str:
        """Machine and settings of the command, the table, notes; intervals are of 95 %, by
        bootstrap.
        """
        columns = list(dict.fromkeys(column for row in self.rows.values() for column in row))
        cells = []
        for contestant, row in self.rows.items():
            cells.append([contestant, *(_cell(row.get(column)) for column in columns)])
        lines = [f"rag bench {command}"]
        for facts in (self.environment, settings):
            lines.append("  " + ", ".join(f"{name}={value}" for name, value in facts.items()))
        lines += ["", self.title, *text_table(["", *columns], cells)]
        lines += [f"note  {note}" for note in self.notes]
        return "\n".join(lines)

    def write(self, path: Path, command: str, settings: Mapping[str, object]) -> None:
        """Write the report as JSON, atomically; figures that are no numbers become None."""
        figures = {}
        for contestant, row in self.rows.items():
            figures[contestant] = {column: _plain(figure) for column, figure in row.items()}
        report = {
            "benchmark": command,
            "environment": self.environment,
            "settings": {name: str(value) for name, value in settings.items()},
            "title": self.title,
            "figures": figures,
            "notes": self.notes,
        }
        atomic_write_json(path, report)


def _cell(figure: Figure) -> str:
    """A figure with three digits or more.

    Example:
        >>> _cell(0.98765), _cell(12345.678), _cell(None)
        ('0.988', '12,345.7', '–')
    """
    if figure is None or isinstance(figure, str):
        return figure or "–"
    value = figure.value if isinstance(figure, Interval) else figure
    return format(figure, ",.3f" if abs(value) < 10 else ",.1f")


def _plain(figure: Figure) -> object:
    if isinstance(figure, Interval):
        return figure.to_json()
    if isinstance(figure, float) and not math.isfinite(figure):
        return None
    return figure
