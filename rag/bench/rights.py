"""What rights cost: searches and answers for people who may read a part of an index."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from rag.bench.common import check_counts, percentile_ms, ratio, time_interleaved
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
    asked = [question.text for question in islice(read_questions(questions), limit)]
    with tempfile.TemporaryDirectory(prefix="rag-rights-", dir=index.parent) as holder:
        copy = Path(holder) / "index"
        shutil.copytree(index, copy, copy_function=_linked)
        _draw_rights(copy)
        with Pipeline.open(copy, retriever=retriever, precision=precision) as pipeline:
            return _compare(pipeline, asked)


def _linked(source: str, target: str) -> None:
    link_or_copy(Path(source), Path(target))


def _draw_rights(index: Path) -> None:
    """Give each share of the documents its own group."""
    from indexers.index import Index
    from indexers.rights import Rights, change_rights

    draw = np.random.default_rng(0)
    groups_of = {}
    with Index.open(index) as opened:
        for document in opened.documents:
            position = draw.random()
            groups = [f"{share:.0%}" for share in _SHARES if position < share]
            # In no group a document would be everybody's.
            groups_of[document.id] = [*groups, "nobody"]
    change_rights(index, lambda _: Rights().stating(groups_of))


def _compare(pipeline: Pipeline, asked: Sequence[str]) -> Report:
    people = {"everything": pipeline}
    for share in _SHARES:
        name = f"{share:.0%}"
        people[name] = pipeline.for_groups(frozenset({name}))
    report = Report(f"top {_TOP_K}, medians over questions that all are asked in turn")
    report.rows = {name: {"passages": float(person.n_passages)} for name, person in people.items()}
    for stage, method in (("retrieve", Pipeline.retrieve), ("ask", Pipeline.ask)):
        contestants: dict[str, Callable[[], object]] = {}
        for name, person in people.items():
            # Each call asks the next question.
            answers = map(partial(method, person, top_k=_TOP_K), cycle(asked))
            contestants[name] = partial(next, answers)
        timings = time_interleaved(contestants, rounds=len(asked), warm_up=len(_SHARES))
        for name, times in timings.items():
            row = report.rows[name]
            row[f"{stage} ms"] = percentile_ms(times.elapsed_s)
            everything = timings["everything"]
            row[f"{stage} / everything"] = ratio(times.elapsed_s, everything.elapsed_s)
            row[f"{stage}, processor"] = ratio(times.processor_s, everything.processor_s)
    return report
