"""Which weights of a run are kept: those with the best held-out score, and when to stop looking."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from rag.core.errors import ConfigError, IncompleteArtifactError
from rag.core.files import atomic_path, link_or_copy

__all__ = ["Selection"]


class Selection:
    """Keeps the best weights of a run in a file, and stops a run that no longer improves.

    Args:
        path: safetensors file for the best weights; its metadata say the step and the score.
        name: score to select by; "" keeps nothing: the last weights count.
        patience: validations in a row without a better score after which the run ends; 0 never ends it.

    Attributes:
        step: of the best weights, None before the first validation.
    """

    def __init__(self, path: Path, name: str, *, lowest: bool, patience: int) -> None:
        self.path, self.name = path, name
        self._sign = -1.0 if lowest else 1.0
        self._patience = patience
        self._waited = 0
        self.step: int | None = None
        self.score = math.nan

    @property
    def stopped(self) -> bool:
        """Whether the run should end."""
        return bool(self._patience) and self._waited >= self._patience

    def update(
        self, step: int, scores: Mapping[str, float], weights: Mapping[str, torch.Tensor], *, write: bool
    ) -> bool:
        """Look at a validation's scores.

        Returns:
            Whether they are the best so far. A score that is not a number never is.

        Raises:
            ConfigError: there is no score of that name.
        """
        if not self.name:
            return False
        if self.name not in scores:
            raise ConfigError(
                f"weights are selected by {self.name!r}, but a validation measures {', '.join(scores)}",
                hint="set select_by to one of these",
            )
        score = float(scores[self.name])
        if not (self.step is None or self._sign * score > self._sign * self.score) or math.isnan(score):
            self._waited += 1
            return False
        self.step, self.score, self._waited = step, score, 0
        if write:
            with atomic_path(self.path) as temporary:
                kept = {name: tensor.contiguous() for name, tensor in weights.items()}
                save_file(kept, temporary, metadata={"step": str(step), "score": json.dumps(score)})
        return True

    def best(self, last: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The best weights, or `last` where nothing was selected.

        Raises:
            IncompleteArtifactError: the file is missing, or holds the weights of another step.
        """
        if self.step is None:
            return dict(last)
        with self._open() as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def keep(self, folder: Path) -> None:
        """Put the best weights into a checkpoint's folder: those of later steps will replace `path`."""
        if self.step is not None:
            link_or_copy(self.path, folder / self.path.name)

    def restore(self, folder: Path) -> None:
        """Take the best weights back that `keep` put into a checkpoint's folder.

        Raises:
            IncompleteArtifactError: they are not there, and `path` holds none or those of another step.
        """
        kept = folder / self.path.name
        if self.step is None:
            return
        if kept.exists():
            with atomic_path(self.path) as temporary:
                link_or_copy(kept, temporary)
        with self._open():
            pass

    @contextmanager
    def _open(self) -> Iterator[Any]:
        try:
            with safe_open(self.path, framework="pt") as file:
                found = (file.metadata() or {}).get("step")
                if found != str(self.step):
                    raise IncompleteArtifactError(
                        f"{self.path} holds the weights of step {found}, expected those of step {self.step}",
                        hint="train again in another folder",
                    )
                yield file
        except (OSError, SafetensorError) as error:
            raise IncompleteArtifactError(
                f"{self.path}, the best weights (of step {self.step}), cannot be read ({error})",
                hint="train again in another folder, or without select_by",
            ) from error

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"step": self.step, "score": None if self.step is None else self.score, "waited": self._waited}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.step, self._waited = state["step"], state["waited"]
        self.score = math.nan if state["score"] is None else state["score"]
