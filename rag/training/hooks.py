"""Hooks of the fit loop that are put together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rag.training.fit import FitHooks


class SeveralHooks(FitHooks):
    """What each of several hooks does, in their order; no two give one name to what they save or log."""

    def __init__(self, *parts: FitHooks) -> None:
        self._parts = parts

    def before_step(self, step: int) -> None:
        """See `FitHooks`, here and below."""
        for part in self._parts:
            part.before_step(step)

    def after_step(self, step: int) -> None:
        """Of all."""
        for part in self._parts:
            part.after_step(step)

    def log_fields(self, step: int) -> Mapping[str, Any]:
        """Of all."""
        return {k: value for part in self._parts for k, value in part.log_fields(step).items()}

    def extra_state(self) -> Mapping[str, Any]:
        """Of all."""
        return {k: value for part in self._parts for k, value in part.extra_state().items()}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Each looks for its own."""
        for part in self._parts:
            part.load_extra_state(state)

    def extra_tensors(self) -> Mapping[str, torch.Tensor]:
        """Of all."""
        return {k: value for part in self._parts for k, value in part.extra_tensors().items()}

    def load_extra_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Each looks for its own."""
        for part in self._parts:
            part.load_extra_tensors(tensors)

    def asks_for_checkpoint(self) -> bool:
        """Whether any does."""
        return any(part.asks_for_checkpoint() for part in self._parts)

    def on_checkpoint(self, path: Path, step: int) -> None:
        """To all."""
        for part in self._parts:
            part.on_checkpoint(path, step)
