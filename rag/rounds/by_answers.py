"""Rounds of relevance-guided supervision: answers tell which retrieved passages are right.

A round's folder holds `guided.json`, examples with positives and negatives of what was retrieved.

Source:
    Khattab, Potts and Zaharia 2021, "Relevance-guided Supervision for OpenQA with ColBERT", section 3.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag.core.errors import DataError
from rag.data.examples import read_examples, write_examples
from rag.rounds.config import ColbertRoundsConfig
from retrievers.negatives.guided import guided_examples

if TYPE_CHECKING:
    from rag.rounds.rounds import Round


def labelled_examples(
    config: ColbertRoundsConfig, current: Round, found: Path
) -> tuple[Path, dict[str, Any]]:
    """The retrieved passages as positives and negatives, and counts of them."""
    guided = current.folder / "guided.json"

    def label() -> dict[str, Any]:
        counts: Counter[str] = Counter()
        ranked = read_examples(found, needs="questions")
        if not write_examples(guided, guided_examples(ranked, config.guidance, counts)):
            raise DataError(
                f"no retrieved passage holds an answer to any of {counts['questions']} questions "
                f"({counts['without answers']} have no answers)",
                hint="raise top_k and the rules of positives, or give the corpus that answers them",
            )
        return dict(sorted(counts.items()))

    return guided, current.stage("label", label)
