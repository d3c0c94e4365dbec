"""Rounds of relevance-guided supervision: answers say which passages of the own ranking are right.

A round's folder holds `guided.json`, examples with positives and negatives of what was found.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal

from pydantic import model_validator

from indexers.presets import IndexType
from rag.config import load_config
from rag.core.errors import ConfigError, DataError
from rag.data.examples import read_examples, write_examples
from rag.rounds.config import RoundsConfig
from rag.rounds.rounds import Round, RoundMethod, run_rounds, table
from retrievers.negatives.guided import GuidanceSettings, guided_examples, parse_rules
from retrievers.training.colbert import ColbertTrainConfig, train_colbert
from retrievers.training.config import SEARCHED


class GuidedRoundsConfig(RoundsConfig):
    """The same where answers judge.

    Attributes:
        restart: as published, every round's retriever starts from the same encoder.
        guidance: what becomes of a ranking.
    """

    restart: bool = True
    index_type: Literal[IndexType, "plaid"] = "plaid"
    guidance: GuidanceSettings = GuidanceSettings()

    @model_validator(mode="after")
    def _cross_check_guidance(self) -> GuidedRoundsConfig:
        first = min(first for _, first in parse_rules(self.guidance.positives))
        if self.top_k < first:
            raise ValueError(f"top_k ({self.top_k}) ends before the rule of positives: raise it to {first}")
        return self


class GuidedRounds(RoundMethod):
    """Label by answers, train late interaction.

    Source:
        Khattab, Potts and Zaharia 2021, "Relevance-guided Supervision for OpenQA with ColBERT", section 3.
    """

    def __init__(self, config: GuidedRoundsConfig) -> None:
        self.config = config

    def examples(self, current: Round, found: Path) -> tuple[Path, dict[str, Any]]:
        """What was found, labelled."""
        guided = current.folder / "guided.json"

        def label() -> dict[str, Any]:
            counts: Counter[str] = Counter()
            ranked = read_examples(found, needs="questions")
            if not write_examples(guided, guided_examples(ranked, self.config.guidance, counts)):
                raise DataError(
                    f"no passage that was found holds an answer to any of {counts['questions']} questions "
                    f"({counts['without answers']} have no answers)",
                    hint="raise top_k and the rules of positives, or give the corpus that answers them",
                )
            return dict(sorted(counts.items()))

        return guided, current.stage("label", label)

    def train(self, config: ColbertTrainConfig) -> str:
        """`rag train colbert`."""
        return str(train_colbert(config))


def guided_rounds(training: ColbertTrainConfig, *, questions: str | None, **settings: Any) -> list[str]:
    """Run rounds from questions and answers, or go on where `training.out` was left; the table of rounds.

    Args:
        training: of every round's retriever; its index is what the first round searches.
        questions: with answers.
        settings: of `GuidedRoundsConfig`.

    Raises:
        ConfigError: there are no questions, no index, or examples as well; a setting cannot be.
        DataError: no question can be learnt from.
        MismatchedArtifactError: the folder holds rounds of other settings.
    """
    if questions is None or training.index is None or training.train_files:
        raise ConfigError(
            "rounds make their own examples from questions with answers and an index",
            hint="give --questions and --index, and no --train",
        )
    if training.run.select_by in SEARCHED or training.data.validation_passages:
        raise ConfigError(
            "a round trains without searching, so that there is no figure of retrieval to select by",
            hint="set select_by=nll or last, and validation_passages=0; rounds are compared by searching",
        )
    given = {"out": training.out, "index": training.index, "questions": questions, **settings}
    config = load_config(GuidedRoundsConfig, overrides=given)
    return table(run_rounds(config, training.replaced(index=None), GuidedRounds(config)), config.figure)
