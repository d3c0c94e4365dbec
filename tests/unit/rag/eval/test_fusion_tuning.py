"""Fusion settings side by side: the list that is right gets the weight."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexers.passage_writer import PassageStoreWriter
from indexers.passages import PassageStore
from rag.core.errors import DataError
from rag.core.types import Hit, Passage, Question
from rag.eval.fusion_tuning import MATCHED, fusion_candidates, tune_fusion
from retrievers.fusion import Fusion
from retrievers.hybrid import HybridRetriever
from retrievers.rerank import RerankingRetriever

N = 40


class _Member:
    """Finds the passage of a question's number at a given rank, behind others."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def search(
        self, questions: Sequence[str], top_k: int, *, timer: Any = None, selected: Any = None
    ) -> list[list[Hit]]:
        found = []
        for question in questions:
            right = int(question.split()[-1])
            rows = list(range(right + 1, right + 10))
            rows.insert(self.rank - 1, right)
            found.append([Hit(row % N, f"p{row % N}", 1.0 - place / 10) for place, row in enumerate(rows)])
        return found


@pytest.fixture
def passages(tmp_path: Path) -> PassageStore:
    with PassageStoreWriter(tmp_path / "passages") as writer:
        writer.add_many([Passage(f"p{n}", "", f"number {n} says w{n}") for n in range(N)])
    return PassageStore.open(tmp_path / "passages")


@pytest.mark.parametrize("by_gold", [True, False])
def test_the_better_list_wins(passages: PassageStore, tmp_path: Path, by_gold: bool) -> None:
    questions = [
        Question(f"q{n}", f"which {n}", (f"w{n}",), gold_passage_ids=(f"p{n}",) if by_gold else ())
        for n in range(30)
    ]
    retriever = HybridRetriever([_Member(1), _Member(9)])  # type: ignore[list-item]
    tuning = tune_fusion(retriever, passages, [*questions, Question("odd", "which 1")], ks=(1, 5))
    assert (tuning.n, tuning.left_out, tuning.right) == (30, 1, "gold" if by_gold else "answer")
    assert tuning.decided_by == "top5"
    by_name = {row.name: row for row in tuning.rows}
    assert set(by_name) == {"dense alone", "bm25 alone", *map(str, fusion_candidates())}
    assert by_name["dense alone"].figures["top1"].value == 1.0
    assert by_name["bm25 alone"].figures["mrr"].value == pytest.approx(1 / 9)
    best = Fusion.parse(next(row.name for row in tuning.rows if ":" in row.name))
    assert best.weights[0] > best.weights[1]
    assert by_name["bm25 alone"].p_value < 0.001
    assert tuning.default == str(retriever.fusion)
    equal = HybridRetriever([_Member(1), _Member(1)])  # type: ignore[list-item]
    assert tune_fusion(equal, passages, questions, ks=(1, 5)).rows[0].name == str(equal.fusion)
    tuning.write(tmp_path / "fusion.json")
    assert json.loads((tmp_path / "fusion.json").read_text())["settings"][0]["fusion"] == tuning.rows[0].name


def test_a_hybrid_that_matches_words_is_judged_as_it_is_used(passages: PassageStore) -> None:
    class Scorer:
        name = "words"

        def score(self, questions: Sequence[str], texts: Sequence[Passage]) -> Any:
            return np.array([
                100.0 * (question.split()[-1] == text.id[1:])
                for question, text in zip(questions, texts, strict=True)
            ])  # fmt: skip

    members: Any = [_Member(4), _Member(9)]
    retriever = HybridRetriever(members, passages=passages, matching=Scorer())
    tuning = tune_fusion(
        retriever, passages, [Question(f"q{n}", f"which {n}", (f"w{n}",)) for n in range(20)]
    )
    best = tuning.rows[0]
    assert best.name == f"{retriever.fusion}{MATCHED}"
    assert (best.figures["top1"].value, best.p_value) == (1.0, 1.0)
    assert next(row for row in tuning.rows if row.name == str(retriever.fusion)).figures["top1"].value < 1


def test_a_judge_and_what_it_re_ranks_are_weighed_too(passages: PassageStore) -> None:
    class Scorer:
        name = "scorer"

        def score(self, questions: Sequence[str], texts: Sequence[Passage]) -> Any:
            own = [
                question.split()[-1] == text.id[1:] for question, text in zip(questions, texts, strict=True)
            ]
            return np.array(own, np.float32)

    retriever = RerankingRetriever(_Member(4), passages, Scorer())
    questions = [Question(f"q{n}", f"which {n}", (f"w{n}",)) for n in range(5)]
    rows = {row.name: row.figures["top1"].value for row in tune_fusion(retriever, passages, questions).rows}
    assert (rows["re-ranker alone"], rows["first stage alone"]) == (1.0, 0.0)
    assert rows[str(retriever.fusion)] == 1.0
    assert rows["minmax:0.2,0.8"] == 0.0


def test_questions_without_anything_to_judge_by(passages: PassageStore) -> None:
    with pytest.raises(DataError, match="no question"):
        tune_fusion(HybridRetriever([_Member(1), _Member(2)]), passages, [Question("a", "which 1")])  # type: ignore[list-item]
