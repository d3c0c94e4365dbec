"""What a recipe may do inside the training loop."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

__all__ = ["FitHooks"]


class FitHooks:
    """What a recipe may do inside the loop. Derive from it and replace what is needed.

    What saves (`extra_state`, `extra_tensors`, `on_checkpoint`, `asks_for_checkpoint`) is called in the main
    process only, everything else in every process.
    """

    def before_step(self, step: int) -> None:
        """Called before step `step` (from 0) asks for its batches: the place to exchange negatives."""

    def after_step(self, step: int) -> None:
        """Called when `step` steps were taken: the place to let a momentum encoder follow."""

    def log_fields(self, step: int) -> Mapping[str, Any]:
        """More entries for log lines and metrics records, such as an index's age; called after every step."""
        return {}

    def extra_state(self) -> Mapping[str, Any]:
        """What a checkpoint should hold beside weights and counters, as JSON values."""
        return {}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Called with what `extra_state` returned, when a run is resumed."""

    def extra_tensors(self) -> Mapping[str, torch.Tensor]:
        """What a checkpoint should hold beside weights and counters, as tensors."""
        return {}

    def load_extra_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Called with what `extra_tensors` returned, on the CPU, when a run is resumed."""

    def asks_for_checkpoint(self) -> bool:
        """Whether to save after this step, whatever the clock says."""
        return False

    def on_checkpoint(self, path: Path, step: int) -> None:
        """Called when the checkpoint of `step` is whole on disk in the folder `path`."""
