"""Judges claims with a cross-encoder over claim and evidence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from rag.core.arrays import Float32
from rag.core.types import VERDICT_LABELS
from rag.runtime.fast.fast_bert import FastBert
from rag.runtime.hardware import resolve_device, resolve_precision
from readers.protocols import Verifier
from readers.verifying.files import load_verifier_parts
from readers.verifying.model import FastVerdictModel, VerdictModel


class CrossVerifier(Verifier):
    """A verifier of `rag train verifier`. Made by `load`.

    Args:
        temperature: logits are divided by it, so that probabilities are calibrated.
    """

    def __init__(
        self, model: VerdictModel, temperature: float, name: str, version: str = ""
    ) -> None:
        self.name = name
        self.version = version
        self._model = model
        self._temperature = temperature

    @classmethod
    def load(
        cls, folder: str | Path | None = None, *, precision: str = "auto", device: str = "auto"
    ) -> CrossVerifier:
        """Load a folder of `rag train verifier`, or the verifier that ships (None).

        Args:
            precision: "auto", "fp32" or "bf16".
            device: "auto", "cpu" or "cuda".

        Raises:
            IncompleteArtifactError: there is no verifier.
            MismatchedArtifactError: its files are other ones.
            ConfigError: the hardware cannot compute in this precision.
        """
        parts = load_verifier_parts(folder)
        device = resolve_device(device)
        dtype = resolve_precision(precision, device)
        if device == "cpu" and FastBert.supports(parts.config):
            model: VerdictModel = FastVerdictModel(
                parts.encoder,
                parts.config,
                parts.head,
                parts.tokenizer,
                parts.manifest.max_tokens,
                precision="bf16" if dtype == torch.bfloat16 else "fp32",
            )
        else:
            model = parts.model().to(device).to_compute(dtype)
        temperature = parts.manifest.calibration.temperature
        return cls(model, temperature, str(folder or "shipped"), parts.manifest.version)

    def probabilities(self, claims: Sequence[str], evidence: Sequence[Sequence[str]]) -> Float32:
        """See `Verifier.probabilities`. Each text is judged alone, see `over_texts`."""
        if not claims:
            return np.zeros((0, len(VERDICT_LABELS)), np.float32)
        counts = [len(texts) for texts in evidence]
        repeated = np.repeat(np.array(claims, dtype=object), counts).tolist()
        with torch.inference_mode():
            logits, _ = self._model.logits(repeated, list(chain.from_iterable(evidence)))
            alone = torch.softmax(logits.float() / self._temperature, -1).cpu().numpy()
        return np.stack([over_texts(rows) for rows in np.split(alone, np.cumsum(counts)[:-1])])


def over_texts(alone: Float32) -> Float32:
    """The probabilities (3,) of a claim from those by each of its texts alone, (N, 3).

    One text that supports or refutes is enough: both are maxima over the texts, together at most 1,
    and "not enough" is what they leave.

    Example:
        >>> over_texts(np.array([[0.75, 0.0, 0.25], [0.25, 0.125, 0.625]], np.float32)).tolist()
        [0.75, 0.125, 0.125]
    """
    if len(alone) == 1:
        return alone[0]
    decided = alone[:, :2].max(0)
    decided = decided / max(1.0, float(decided.sum()))
    return np.append(decided, 1.0 - decided.sum()).astype(np.float32)
