"""A refresh whose result is a line of text, made in this process or in one beside it."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rag.training.config import RefreshedConfig
from rag.training.distributed import World
from rag.training.refresh import Refresh


class ToyConfig(RefreshedConfig):
    """`fails`: exit code with which the refresher ends at once; `sleeps`: whether it never ends."""

    recipe = "toy"
    name: str = "toy"
    refresh_every_steps: int = 2
    fails: int = 0
    sleeps: bool = False


def copy_number(config: ToyConfig, device: str, snapshot: Path, folder: Path) -> None:
    """Copies the snapshot's number."""
    if config.fails:
        os._exit(config.fails)
    (folder / "text").write_text((snapshot / "number").read_text())
    if config.sleeps:
        time.sleep(600)


class ToyRun:
    """A trainer whose model is the number of its step."""

    def __init__(self, config: ToyConfig, **options: Any) -> None:
        self.texts: list[str] = []
        self._step = 0
        self.hooks = Refresh(
            config, copy_number, self._write, self._take_up, world=World(), **options
        )

    def steps(self, first: int, stop: int) -> list[str]:
        """The text in use at each step."""
        used = []
        for self._step in range(first, stop):
            self.hooks.before_step(self._step)
            used.append(self.texts[-1] if self.texts else "")
        return used

    def _write(self, folder: Path) -> None:
        (folder / "number").write_text(str(self._step))

    def _take_up(self, result: Path) -> Mapping[str, float]:
        self.texts.append((result / "text").read_text())
        return {"length": float(len(self.texts[-1]))}
