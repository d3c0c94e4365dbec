"""Search in many languages: by words as Lucene finds them, and by the vectors of an encoder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from indexers.index import Index
from indexers.index_writer import Content, Encoder, write_index
from indexers.settings import BuildSettings
from rag.bench.report import Figure, Report
from rag.core.arrays import Float64
from rag.core.errors import DataError
from rag.core.types import Passage
from rag.data.languages import ANALYZERS, ENGLISH
from rag.data.questions import read_questions
from rag.metrics.significance import Interval, bootstrap, bootstrap_of, compare_paired
from retrievers.encoders.open import load_encoder
from retrievers.open import open_retriever

_DEPTH = 100


class _Asked(NamedTuple):
    """A question, the context that is searched for, and the name that translations share."""

    text: str
    context: str
    name: str


class _Contexts:
    """Passages, in an index for each language whose words are searched for.

    Args:
        stack: removes the indexes at its end.
        encoder: None: they are searched by their words alone.
    """

    def __init__(self, stack: ExitStack, contexts: Iterable[str], encoder: Encoder | None) -> None:
        self._stack = stack
        self._folder = Path(stack.enter_context(TemporaryDirectory(prefix="rag-languages-")))
        self._rows = {context: row for row, context in enumerate(sorted(set(contexts)))}
        self._encoder = encoder
        self._indexes: dict[str, Index] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def reciprocal_ranks(
        self, asked: Sequence[_Asked], language: str, kind: str = "bm25"
    ) -> Float64:
        """Those of the questions' contexts (n,), 0 beyond the depth."""
        retriever = open_retriever(self._index(language), kind)
        found = retriever.search([question.text for question in asked], _DEPTH)
        ranks = np.zeros(len(asked))
        for number, (question, hits) in enumerate(zip(asked, found, strict=True)):
            rows = [hit.row for hit in hits]
            row = self._rows[question.context]
            if row in rows:
                ranks[number] = 1 / (1 + rows.index(row))
        return ranks

    def _index(self, language: str) -> Index:
        if language not in self._indexes:
            # Vectors are those of the first language.
            first = next(iter(self._indexes.values()), None)
            passages = [Passage(str(row), "", context) for context, row in self._rows.items()]
            report = write_index(
                self._folder / language,
                Content(passages, language=language),
                settings=BuildSettings(retriever="hybrid" if self._encoder else "bm25", threads=1),
                encoder=self._encoder,
                start_from=first if self._encoder else None,
            )
            self._indexes[language] = self._stack.enter_context(Index.open(report.directory))
        return self._indexes[language]


def run_languages_benchmark(questions: Path, encoder: str | None = None) -> Report:
    """BM25 by Lucene's analysis of a question's language, and by its English one.

    The contexts of all questions, of all languages, are the passages of one index; a question is
    right where its own context comes first. With an encoder also dense and hybrid search.

    Args:
        questions: Questions with their contexts, as SQuAD's, whose ids begin with the language and a
            hyphen, as in XQuAD.
        encoder: Folder or hub name of a multilingual encoder.

    Raises:
        DataError: there is no question in a language that has an analyser.
    """
    # By language, and by the id that a question shares with its translations.
    asked: dict[str, dict[str, _Asked]] = defaultdict(dict)
    for question in read_questions(questions):
        language, _, name = question.id.partition("-")
        if language in ANALYZERS and question.gold:
            asked[language][name] = _Asked(question.text, question.gold[0].passage.text, name)
    if not asked:
        raise DataError(
            f"{questions}: no question in a known language",
            hint="ids begin with the language, as in de-56be4db0acb8001400a502ec",
        )
    everything = [question for translated in asked.values() for question in translated.values()]
    loaded = load_encoder(encoder) if encoder else None
    with ExitStack() as stack:
        contexts = _Contexts(stack, [question.context for question in everything], loaded)
        title = f"MRR in the first {_DEPTH} of {len(contexts)} passages, per cent"
        report = Report(title)
        pooled: dict[str, list[Float64]] = defaultdict(list)
        names = [name for _, translated in sorted(asked.items()) for name in translated]
        for language, translated in sorted(asked.items()):
            of_language = [*translated.values()]
            ranks = {
                "own words": contexts.reciprocal_ranks(of_language, language),
                "English words": contexts.reciprocal_ranks(of_language, ENGLISH),
            }
            for kind in ("dense", "hybrid") if encoder else ():
                ranks[kind] = contexts.reciprocal_ranks(of_language, language, kind)
            report.rows[language] = _row(ranks)
            for system, values in ranks.items():
                pooled[system].append(values)
        whole = {system: np.concatenate(ranks) for system, ranks in pooled.items()}
        report.rows["all"] = _row(whole, names)
    return report


def _row(ranks: Mapping[str, Float64], names: Sequence[str] = ()) -> dict[str, Figure]:
    """Each system's figure, and its difference from BM25 with the words of the language.

    Args:
        names: of the questions; translations share theirs, and are drawn together for an interval,
            since a question that is hard in one language is hard in the others. Default: all differ.
    """
    row: dict[str, Figure] = {}
    baseline = ranks.get("own words")
    for system, values in ranks.items():
        row["questions"] = str(len(values))
        row[system] = _interval(values, names) if names else bootstrap(values).times(100)
        if baseline is not None and baseline is not values:
            difference = compare_paired(values, baseline).difference.times(100)
            row[f"over {system}"] = _interval(baseline - values, names) if names else difference
    return row


def _interval(values: Float64, names: Sequence[str]) -> Interval:
    numbers = np.unique(names, return_inverse=True)[1]
    sums = np.bincount(numbers, values)
    counts = np.bincount(numbers)
    mean = bootstrap_of(lambda x, n, axis: x.sum(axis) / n.sum(axis), sums, counts)
    return mean.times(100)
