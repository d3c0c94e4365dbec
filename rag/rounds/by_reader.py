"""Rounds of distillation: a reader says how good each retrieved passage is, the retriever learns it.

A round's folder holds `reader/`, where one is trained, and `scored.json`, the passages with its signal.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rag.rounds.config import DistillationRoundsConfig
from rag.rounds.rounds import Round, RoundMethod
from rag.rounds.scoring import score_examples
from rag.rounds.signals import Judge, check_signal, judge_kind
from retrievers.training.distill import DistillTrainConfig, train_distill

MakeReader = Callable[[Path, Path], Path]
"""The round's examples (DPR's results with their passages) and a folder → the finished reader."""


class DistillationRounds(RoundMethod):
    """Score, train towards the scores.

    Args:
        config: of the rounds.
        make_reader: trains a reader anew in every round, as published; None takes `config.reader`.

    Raises:
        ArtifactError: there is no such reader.
        ConfigError: it cannot give the signal.

    Source:
        Izacard and Grave 2021, "Distilling Knowledge from Reader to Retriever for Question Answering",
        section 3.3.
    """

    def __init__(self, config: DistillationRoundsConfig, make_reader: MakeReader | None = None) -> None:
        if make_reader is None:
            name = config.reader or "the shipped reader"
            check_signal(judge_kind(config.reader), config.signal, name)
        self.config, self._make_reader = config, make_reader

    def claims(self) -> dict[str, Any]:
        """Whether readers are trained."""
        return {"trained_reader": self._make_reader is not None}

    def examples(self, current: Round, found: Path) -> tuple[Path, dict[str, Any]]:
        """What was found, with targets."""
        scored, make = current.folder / "scored.json", self._make_reader
        reader = self.config.reader
        if make is not None:
            reader = current.stage("read", lambda: str(make(found, current.folder / "reader")))

        def score() -> dict[str, Any]:
            judge = Judge.open(reader, self.config.signal)
            counts = score_examples(found, scored, judge).counts
            judge.close()
            return {
                "questions": counts["questions"], "without the answer": counts["no passage holds an answer"],
                "constant": counts["constant"],
            }  # fmt: skip

        return scored, current.stage("score", score)

    def train(self, config: DistillTrainConfig) -> str:
        """`rag train distill`."""
        return str(train_distill(config))
