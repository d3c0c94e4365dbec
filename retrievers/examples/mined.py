"""What an inferencer publishes: negatives of every question, figures, and probes that tell how stale it gets.

A generation's folder holds

    negatives.values.npy, negatives.bounds.npy   passage rows, hardest first, a list a question
    probe_vectors.npy       (m, D) vectors of the probe passages
    probe_rows.npy          (n, K) best rows of the probe questions, -1 where nothing was found
    figures.json            held-out retrieval, staleness, counts
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from indexers.npy import load_npy, save_npy
from indexers.protocols import FloatArray, IntArray
from rag.core.errors import MismatchedArtifactError
from rag.core.files import atomic_write_json, read_json
from rag.training.generations import Generation
from retrievers.examples.tokens import TokenTable

__all__ = ["MinedNegatives", "Probes"]

_NAME = "negatives"


@dataclass(frozen=True, slots=True)
class Probes:
    """What one version of the model makes of fixed questions and passages.

    Attributes:
        vectors: (m, D) float32, of passages.
        rows: (n, K) int64, best passages of questions, -1 where nothing was found.
    """

    vectors: FloatArray
    rows: IntArray


@dataclass(frozen=True, slots=True)
class MinedNegatives:
    """Negatives of one version of the model.

    Attributes:
        table: a list of passage rows for every example, maybe empty.
        probes: of the version that mined them.
        figures: what was measured.
    """

    table: TokenTable
    probes: Probes
    figures: Mapping[str, Any]

    def write(self, folder: Path) -> None:
        """Put the files into `folder`."""
        shape = self.table.write(folder, _NAME)
        save_npy(folder / "probe_vectors.npy", self.probes.vectors)
        save_npy(folder / "probe_rows.npy", self.probes.rows)
        sizes = {"vectors": list(self.probes.vectors.shape), "rows": list(self.probes.rows.shape)}
        atomic_write_json(folder / "figures.json", {"table": shape, "probes": sizes, "figures": self.figures})

    @classmethod
    def read(cls, generation: Generation, *, examples: int, key: str) -> MinedNegatives:
        """Map a published generation into memory.

        Args:
            generation: as published by an inferencer.
            examples: how many there are.
            key: fingerprint of the examples and the corpus that the rows speak of.

        Raises:
            MismatchedArtifactError: it was mined for other examples or another corpus.
            ArtifactError: a file is missing or damaged.
        """
        described = read_json(generation.path / "figures.json")
        if generation.meta.get("key") != key or described["table"]["rows"] != examples:
            raise MismatchedArtifactError(
                f"{generation.path} holds negatives for {described['table']['rows']} other questions, or of "
                f"another corpus; expected {examples} (key {key}, found {generation.meta.get('key')})",
                hint="start trainer and inferencer with the same configuration, or choose another --out",
            )
        sizes = described["probes"]
        probes = Probes(
            load_npy(generation.path / "probe_vectors.npy", dtype=np.float32, shape=tuple(sizes["vectors"])),
            load_npy(generation.path / "probe_rows.npy", dtype=np.int64, shape=tuple(sizes["rows"])),
        )
        table = TokenTable.read(generation.path, _NAME, described["table"])
        return cls(table, probes, described["figures"])
