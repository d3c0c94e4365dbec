"""BM25 in the language of the questions, beside BM25 with English words, over passages of many
languages.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rag.bench.report import Report
from rag.core.arrays import Float64
from rag.core.errors import DataError
from rag.core.types import Passage
from rag.data.languages import ANALYZERS, ENGLISH
from rag.data.questions import read_questions
from rag.metrics.significance import bootstrap, compare_paired

_DEPTH = 100


def run_languages_benchmark(questions: Path) -> Report:
    """BM25 by Lucene's analysis of a question's language, and by its English one.

    The contexts of all questions, of all languages, are the passages of one index; a question is
    right where its own context comes first.

    Args:
        questions: Questions with their contexts, as SQuAD's, whose ids begin with the language and a
            hyphen, as in XQuAD.

    Raises:
        DataError: there is no question in a language that has an analyser.
    """
    asked: dict[str, list[tuple[str, str]]] = {}
    for question in read_questions(questions):
        language = question.id.partition("-")[0]
        if language in ANALYZERS and question.gold:
            context = question.gold[0].passage.text
            asked.setdefault(language, []).append((question.text, context))
    if not asked:
        raise DataError(
            f"{questions}: no question in a known language",
            hint="ids begin with the language, as in de-56be4db0acb8001400a502ec",
        )
    contexts = sorted({context for pairs in asked.values() for _, context in pairs})
    title = f"MRR in the first {_DEPTH} of {len(contexts)} passages, per cent"
    report = Report("languages", {"questions": questions}, title)
    in_english = _reciprocal_ranks(contexts, ENGLISH, asked)
    own: dict[str, Float64] = {}
    for language, pairs in asked.items():
        own |= _reciprocal_ranks(contexts, language, {language: pairs})
    for language in sorted(asked):
        _add(report, language, in_english[language], own[language])
    everything = [np.concatenate([of[name] for name in asked]) for of in (in_english, own)]
    _add(report, "all", *everything)
    return report


def _add(report: Report, name: str, english: Float64, own: Float64) -> None:
    test = compare_paired(english, own)
    report.rows[name] = {
        "questions": str(len(own)),
        "English words": bootstrap(english)[0].times(100),
        "own words": bootstrap(own)[0].times(100),
        "difference": test.difference.times(100),
        "p": test.p_value,
    }


def _reciprocal_ranks(
    contexts: Sequence[str], language: str, asked: dict[str, list[tuple[str, str]]]
) -> dict[str, Float64]:
    """For each language the reciprocal ranks (n,) of its questions' contexts, 0 beyond the depth,
    in an index whose words are of one language.
    """
    from indexers.index import Index
    from indexers.index_writer import write_index
    from indexers.settings import BuildSettings

    rows = {context: row for row, context in enumerate(contexts)}
    passages = [Passage(str(row), "", context) for context, row in rows.items()]
    ranks = {}
    with tempfile.TemporaryDirectory(prefix="rag-languages-") as folder:
        settings = BuildSettings(retriever="bm25", threads=1)
        write_index(folder, passages, settings=settings, language=language)
        with Index.open(folder) as index:
            assert index.lucene is not None
            for name, pairs in asked.items():
                found = index.lucene.search([question for question, _ in pairs], _DEPTH)
                values = np.zeros(len(pairs))
                for number, ((_, context), hits) in enumerate(zip(pairs, found, strict=True)):
                    places = [row for row, _ in hits]
                    if rows[context] in places:
                        values[number] = 1 / (1 + places.index(rows[context]))
                ranks[name] = values
    return ranks
