"""What rights cost: searches and answers for people who may read a part of an index."""

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np

from rag.bench.common import check_counts, percentile, ratio, time_interleaved
from rag.bench.report import Report
from rag.core.files import link_or_copy
from rag.data.questions import read_questions
from rag.opening import Precision
from rag.pipeline import Pipeline

_SHARES = (0.01, 0.5, 0.99)
_TOP_K = 20


def run_rights_benchmark(
    index: Path,
    questions: str,
    retriever: str = "auto",
    precision: Precision = "auto",
    limit: int = 200,
) -> Report:
    """People who may read 1, 50 and 99 % of the documents beside one who may read everything.

    Every question is searched for and answered for each of them in turn. The documents that each
    may read are drawn at random, which is harder than whole folders. The index stays as it is: a
    copy gets the rights.

    Args:
        index: Directory of an index.
        questions: File of questions.
        retriever: How to search.
        precision: Number format of the models.
        limit: Questions to ask, from the beginning of the file.
    """
    check_counts([limit])
    asked = [question.text for _, question in zip(range(limit), read_questions(questions))]
    with tempfile.TemporaryDirectory(prefix="rag-rights-", dir=index.parent) as holder:
        copy = Path(holder) / "index"
        shutil.copytree(index, copy, copy_function=_linked)
        _draw_rights(copy)
        with Pipeline.open(copy, retriever=retriever, precision=precision) as pipeline:
            return _compare(pipeline, asked, {"index": index, "questions": questions})


def _linked(source: str, target: str) -> None:
    link_or_copy(Path(source), Path(target))


def _draw_rights(index: Path) -> None:
    """Give each share of the documents its own group."""
    from indexers.index import Index
    from indexers.rights import Rights, change_rights

    draw = np.random.default_rng(0)
    stated = {}
    with Index.open(index) as opened:
        for document in opened.documents:
            place = draw.random()
            groups = [f"{share:.0%}" for share in _SHARES if place < share]
            # In no group a document would be everybody's.
            stated[document.id] = [*groups, "nobody"]
    change_rights(index, lambda _: Rights().stating(stated))


def _compare(pipeline: Pipeline, asked: Sequence[str], settings: Mapping[str, object]) -> Report:
    people = {"everything": pipeline}
    for share in _SHARES:
        name = f"{share:.0%}"
        people[name] = pipeline.for_groups(frozenset({name}))
    title = f"top {_TOP_K}, medians over questions that all are asked in turn"
    report = Report("rights", {**settings, "passages": pipeline.n_passages}, title)
    report.rows = {name: {"passages": float(person.n_passages)} for name, person in people.items()}
    for stage in ("retrieve", "ask"):
        contestants = {name: _asking(person, stage, asked) for name, person in people.items()}
        seconds = time_interleaved(contestants, rounds=len(asked), warm_up=len(_SHARES))
        for name, times in seconds.items():
            row = report.rows[name]
            row[f"{stage} ms"] = percentile(times, 50).times(1000)
            row[f"{stage} / everything"] = ratio(times, seconds["everything"])
    return report


def _asking(person: Pipeline, stage: str, asked: Sequence[str]) -> Callable[[], object]:
    """A function that asks the next question."""
    following = cycle(asked)
    if stage == "ask":
        return lambda: person.ask(next(following), top_k=_TOP_K)
    return lambda: person.retrieve(next(following), _TOP_K)
