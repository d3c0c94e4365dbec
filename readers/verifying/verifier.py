"""Judges claims with a cross-encoder over claim and evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rag.core.arrays import Float32
from rag.runtime.fast.fast_bert import FastBert
from rag.runtime.hardware import core_pool, resolve_device, resolve_precision
from readers.protocols import Verifier
from readers.verifying.files import load_verifier_parts
from readers.verifying.model import VerdictModel


class CrossVerifier(Verifier):
    """A verifier of `rag train verifier`. Made by `load`.

    Args:
        temperature: logits are divided by it, so that probabilities are calibrated.
        map_batches: see `VerdictModel.logits`.
    """

    def __init__(
        self,
        model: VerdictModel,
        temperature: float,
        name: str,
        version: str = "",
        map_batches: Callable[..., Iterable[Tensor]] = map,
    ) -> None:
        self.name = name
        self.version = version
        self._model = model.requires_grad_(False)
        self._temperature = temperature
        self._map_batches = map_batches

    @classmethod
    def load(cls, folder: str | Path | None, *, precision: str) -> CrossVerifier:
        """Load a folder of `rag train verifier`, or the verifier that ships (None).

        Args:
            precision: "auto", "fp32" or "bf16".

        Raises:
            IncompleteArtifactError: there is no verifier.
            MismatchedArtifactError: its files are other ones.
            ConfigError: the hardware cannot compute in this precision.
        """
        parts = load_verifier_parts(folder)
        device = resolve_device("auto")
        dtype = resolve_precision(precision, device)
        map_batches: Callable[..., Iterable[Tensor]] = map
        if device == "cpu" and FastBert.supports(parts.config):
            map_batches = core_pool().map
            fast = "bf16" if dtype == torch.bfloat16 else "fp32"
            model = parts.model(FastBert(parts.encoder, parts.config, precision=fast))
        else:
            model = parts.model().to(device).to_compute(dtype)
        temperature = parts.manifest.calibration.temperature
        return cls(
            model, temperature, str(folder or "shipped"), parts.manifest.version, map_batches
        )

    def probabilities(self, claims: Sequence[str], texts: Sequence[str]) -> Float32:
        """See `Verifier.probabilities`."""
        with torch.inference_mode():
            logits, _ = self._model.logits(claims, texts, self._map_batches)
        return np.asarray(torch.softmax(logits.float() / self._temperature, -1).cpu().numpy())
