"""Made questions are kept where the search brings their passage and the reader gives their answer."""

from collections import Counter
from collections.abc import Sequence

from rag.adaptation.agreement import agreeing
from rag.adaptation.questions import MadeQuestion
from rag.core.types import Hit, Passage
from readers.protocols import ReadAnswer, ReadResult

PASSAGES = [Passage(str(n), "", f"Row {n} has {n}{n} and {(n + 1) % 4}{(n + 1) % 4}.") for n in range(4)]


class Search:
    """Finds the passage whose number the question ends with and its neighbours, but never passage 3."""

    def __call__(self, questions: Sequence[str], top_k: int) -> list[list[tuple[Hit, Passage]]]:
        found = []
        for question in questions:
            rows = [(int(question[-1]) + step) % 4 for step in (0, 3, 1)]
            kept = [row for row in rows if row != 3][:top_k]
            found.append([(Hit(row, str(row), 3.0 - at), PASSAGES[row]) for at, row in enumerate(kept)])
        return found


class Reader:
    """Reads the third word of the first passage; of passage 1 the last, which is wrong."""

    def read(
        self,
        questions: Sequence[str],
        passages: Sequence[Sequence[Passage]],
        scores: Sequence[Sequence[float]],
        n_best: int = 5,
    ) -> list[ReadResult]:
        assert all(list(one) == sorted(one, reverse=True) for one in scores)
        texts = [found[0].text.rstrip(".").split()[-1 if found[0].id == "1" else 3] for found in passages]
        return [ReadResult((ReadAnswer(text, 1.0, 0.9, 0),), 0.1, {}) for text in texts]


def test_search_and_reader_must_agree() -> None:
    made = [(PASSAGES[n], MadeQuestion("table", f"What has row {n}", f"{n}{n}", 10)) for n in range(4)]
    counts: Counter[str] = Counter()
    kept = list(agreeing(made, Search(), Reader(), top_k=3, least_f1=0.6, counts=counts))
    assert [(one.question, one.answers) for one in kept] == [
        ("What has row 0", ("00",)), ("What has row 2", ("22",)),
    ]  # fmt: skip
    assert counts == {"made": 4, "retrieved": 3, "kept": 2, "kept table": 2}
    assert [one.positives[0].id for one in kept] == ["0", "2"]
    assert [[c.passage.id for c in one.negatives] for one in kept] == [["1"], []]  # passage 1 holds 22 too


def test_nothing_is_read_where_nothing_was_retrieved() -> None:
    made = [(PASSAGES[3], MadeQuestion("list", "What has row 3", "33", 10))]
    counts: Counter[str] = Counter()
    assert list(agreeing(made, Search(), Reader(), top_k=3, least_f1=0.6, counts=counts)) == []
    assert counts == {"made": 1, "retrieved": 0}
