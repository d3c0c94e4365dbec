"""Settings of an evaluation; light, so that a command's help can show them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from rag.config import DEFAULT_SEED, Config
from rag.core.types import MAX_TOP_K
from rag.data.text import REGEX_PROFILES, MatchMode, Profile
from rag.metrics.cutoffs import DEFAULT_MEASURES, check_ks


class EvaluationSettings(Config):
    """How questions are asked and scored.

    Attributes:
        profile: rules of EM and F1.
        ks: cut-offs of the retrieval figures.
        measures: measures in ir_measures' syntax, for questions whose gold passages are known.
        read: passages the reader sees.
        n_best: answers per question.
        batch_size: questions per batch; 1 for the time of one question at a time.
        shard_size: questions between two writes; a killed run loses at most these.
        pages: KILT's page of a passage: its document (ids PAGE-n), the passage (its id) or the title.
        match: rule by which a passage holds an answer; None for the profile's rule.
        limit: use only the first so many questions.
        sample: use only so many of them, drawn at random with `seed`, in the order of the set.
        gold: read the gold passages instead of searching.
        oracle: also read the gold passages, where known, to separate errors of retrieval and of reading.
        likelihood: also measure −log p of the first accepted answer by a generative reader, in nats.
        resamples: number of bootstrap resamples.
        level: coverage of the intervals.
        seed: seed of the sample and of the bootstrap.
    """

    profile: Profile = "squad"
    ks: Annotated[tuple[int, ...], AfterValidator(check_ks)] = (1, 5, 20, 100)
    measures: tuple[str, ...] = DEFAULT_MEASURES
    read: int = Field(default=20, ge=1, le=MAX_TOP_K)
    n_best: int = Field(default=5, ge=1)
    batch_size: int = Field(default=16, ge=1)
    shard_size: int = Field(default=64, ge=1)
    pages: Literal["document", "passage", "title"] = "document"
    match: MatchMode | None = None
    limit: int | None = Field(default=None, ge=1)
    sample: int | None = Field(default=None, ge=1)
    gold: bool = False
    oracle: bool = False
    likelihood: bool = False
    resamples: int = 2000
    level: float = 0.95
    seed: int = Field(default=DEFAULT_SEED, ge=0)

    @model_validator(mode="after")
    def _no_measures_of_gold(self) -> EvaluationSettings:
        if self.gold and self.oracle:
            raise ValueError(
                "gold reads the gold passages alone, oracle reads them too: leave one of them out"
            )
        if max(self.ks) > MAX_TOP_K:
            raise ValueError(
                f"the largest of ks is {max(self.ks)}, expected at most {MAX_TOP_K} passages per question"
            )
        return self

    def to_json(self) -> dict[str, Any]:
        """For `metrics.json`; newer fields only if they differ from the default, so that older results still
        match.
        """
        usual = {"gold": False, "likelihood": False}
        found = self.model_dump(mode="json")
        return {name: value for name, value in found.items() if name not in usual or value != usual[name]}

    @property
    def is_regex(self) -> bool:
        """Whether accepted answers are patterns."""
        return self.profile in REGEX_PROFILES

    @property
    def match_mode(self) -> MatchMode:
        """The rule by which a passage holds an answer."""
        if self.match is not None:
            return self.match
        return "regex" if self.is_regex else "kilt" if self.profile == "kilt" else "tokens"

    @property
    def retrieve_top_k(self) -> int:
        """Passages to retrieve: enough for every figure and for the reader."""
        return max(*self.ks, self.read)
