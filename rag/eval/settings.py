"""Settings of an evaluation; quick to import, so that a command's help can show them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field

from rag.config import DEFAULT_SEED, Config
from rag.core.types import MAX_TOP_K
from rag.data.text import Profile
from rag.eval.figures import find_figure
from rag.metrics import DEFAULT_MEASURES

Drawn = TypeVar("Drawn")


def _distinct(ks: Sequence[int]) -> tuple[int, ...]:
    cut_offs = tuple(sorted(set(ks)))
    if not cut_offs or cut_offs[0] < 1 or cut_offs[-1] > MAX_TOP_K:
        raise ValueError(
            f"ks are {list(cut_offs)}, expected at least one, each from 1 to {MAX_TOP_K} passages"
        )
    return cut_offs


class EvaluationSettings(Config):
    """How questions are asked and scored.

    Attributes:
        profile: answer normalisation and matching rules for EM and F1.
        ks: cut-offs k of top-k accuracy and the other retrieval figures.
        read: number of passages per question that the reader reads.
        batch_size: questions per batch, after which results are saved; 1 measures the latency of
            questions. A language model at an address has no batches: each answer is saved when it
            comes.
        limit: evaluate only the first questions, at most this number.
        sample: evaluate a random sample of this number of questions, drawn with `seed`, in the
            set's order.
        gold: read the gold passages instead of searching.
        by: fields of the questions ("kind", "format", …) by whose values the figures are also
            grouped.
        seed: seed for the sample and the bootstrap.
    """

    profile: Profile = "squad"
    ks: Annotated[tuple[int, ...], AfterValidator(_distinct)] = (1, 5, 20, 100)
    read: int = Field(default=20, ge=1, le=MAX_TOP_K)
    batch_size: int = Field(default=16, ge=1)
    limit: int | None = Field(default=None, ge=1)
    sample: int | None = Field(default=None, ge=1)
    gold: bool = False
    by: tuple[str, ...] = ()
    seed: int = Field(default=DEFAULT_SEED, ge=0)

    def draw(self, questions: Iterable[Drawn]) -> Iterable[Drawn]:
        """The first questions, or claims, of which `sample` draws some."""
        from rag.data.questions import draw_sample

        first = islice(questions, self.limit)
        return first if self.sample is None else draw_sample(first, self.sample, self.seed)

    @property
    def retrieve_top_k(self) -> int:
        """Number of passages to retrieve: enough for `ks` and for the reader."""
        return max(*self.ks, self.read)

    @property
    def measures(self) -> tuple[str, ...]:
        """trec_eval's measures for which enough passages are retrieved: recall at 100 needs a
        hundred.
        """
        depths = {name: find_figure(name).depth or 0 for name in DEFAULT_MEASURES}
        return tuple(name for name, depth in depths.items() if depth <= self.retrieve_top_k)
