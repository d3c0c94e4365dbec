"""Lucene BM25 by Anserini's classes: build an index of passages, and search it."""

from __future__ import annotations

import json
import os
import re
import shutil
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from indexers.exact import check_selected
from indexers.java import start_java
from indexers.passages import PassageStore
from indexers.protocols import Selection
from rag.config import Config
from rag.core.errors import (
    ArtifactError,
    DiskFullError,
    MismatchedArtifactError,
    ResourceError,
    RetrievalError,
)
from rag.core.files import TEMPORARY_MARK, atomic_path, clean_directory, disk_errors
from rag.core.log import Progress
from rag.data.languages import ANALYZERS, ENGLISH, pairs_of_characters

FOLDER_NAME = "lucene"
_MOST_QUERY_WORDS = 512
_MOST_QUERY_CHARACTERS = 16_384
_FILE_PASSAGES = 16_384  # passages per file for Lucene, whose threads work on different files
_BUILD_HEAP_MIB = 2048
_SEARCH_HEAP_MIB = 512
_MOST_RUNS = 16  # Lucene gets so many runs of selected rows as ranges, further rows one by one
_TERMS_AT_ONCE = 100_000
_OPTIONS = "-collection JsonCollection -generator DefaultLuceneDocumentGenerator -optimize -quiet"
_FULL_MIB = 8  # of free disk, with less a failure is for want of it


class Bm25Info(Config):
    """What the manifest says of a Lucene index.

    Attributes:
        k1: saturation of term frequency.
        b: length normalisation.
        rows: number of passages.
        documents: number of those that have a word, which Lucene holds.
        language: decides how words are found in passages and in questions.
    """

    k1: float
    b: float
    rows: int
    documents: int
    contents: str = "title, newline, text"
    analysis: str = "english, porter"
    language: str = ENGLISH


def build_bm25(
    passages: PassageStore,
    directory: str | Path,
    *,
    k1: float = 0.9,
    b: float = 0.4,
    language: str = ENGLISH,
    threads: int = 1,
) -> Bm25Info:
    """Index titles and texts for BM25 with Lucene's analysis of a language: its stems and stop words
    (of English: Porter's stems).

    A document's content is title, newline, text; its name is the row of the passage, padded with
    zeros, because Lucene breaks ties by the name as a string.

    Args:
        directory: gets the folder `lucene`.
        k1: term saturation, kept for search.
        language: English, or one of `rag.data.languages.ANALYZERS`.
        threads: indexing threads; rankings do not depend on it.

    Raises:
        ResourceError: the disk is full, Java does not start, or Lucene lost documents.

    Note:
        Lucene puts random ids and times into its files: equal runs give equal rankings, not equal
        bytes.

    Source: Robertson & Zaragoza 2009; parameters of DPR's BM25 baseline.
    """
    parent = Path(directory).absolute()  # Java keeps the working directory that it was started in
    clean_directory(parent)
    find_class = start_java(heap_mib=_BUILD_HEAP_MIB)
    source = parent / f".documents{TEMPORARY_MARK}json"
    try:
        with atomic_path(parent / FOLDER_NAME, folder=True) as target:
            documents = _write_documents(passages, source, language)
            arguments = ["-input", str(source), "-index", str(target), *_OPTIONS.split()]
            # Anserini's own buffer is twice our heap: large corpora would end in an error.
            arguments += ["-threads", str(threads), "-memoryBuffer", str(_BUILD_HEAP_MIB // 4)]
            found = {}
            if language != ENGLISH:
                # Anserini knows half of Lucene's analysers by itself.
                analyzers = find_class("io.anserini.analysis.AnalyzerMap").analyzerMap
                analyzers.put(language, ANALYZERS[language])
                arguments += ["-language", language]
                found = {"language": language, "analysis": ANALYZERS[language]}
            find_class("io.anserini.index.IndexCollection").main(arguments)
            (target / "write.lock").unlink(missing_ok=True)
        info = Bm25Info(k1=k1, b=b, rows=len(passages), documents=documents, **found)
        LuceneIndex(parent, info).close()  # Lucene ends without an error where the disk is full
    except (OSError, ResourceError):
        raise
    except Exception as error:
        shutil.rmtree(parent / FOLDER_NAME, ignore_errors=True)
        raise _build_failure(len(passages), error, parent) from error
    finally:
        shutil.rmtree(source, ignore_errors=True)
    return info


def _write_documents(passages: PassageStore, folder: Path, language: str) -> int:
    """Write Anserini's JSON lines of passages that have a word, since it refuses the others; returns
    the number of documents.
    """
    documents = 0
    with disk_errors(folder), Progress(len(passages), "passages", "bm25") as progress:
        folder.mkdir()
        for number, batch in enumerate(passages.batches(_FILE_PASSAGES)):
            lines = []
            for row, passage in enumerate(batch, start=number * _FILE_PASSAGES):
                contents = pairs_of_characters(f"{passage.title}\n{passage.text}", language)
                # Blank for Anserini is also what Java's `trim` removes: control characters.
                if contents.strip() and any(character > " " for character in contents):
                    record = {"id": _name_of(row, len(passages)), "contents": contents}
                    lines.append(json.dumps(record) + "\n")
            path = folder / f"documents-{number:05d}.jsonl"
            path.write_text("".join(lines), encoding="utf-8")
            documents += len(lines)
            progress.update(len(batch))
    return documents


def _name_of(row: int, rows: int) -> str:
    """Name of a passage's document in Lucene: as many digits for every row."""
    return str(row).zfill(len(str(rows)))


def _build_failure(rows: int, error: Exception, parent: Path) -> ResourceError:
    free_mib = shutil.disk_usage(parent).free / 2**20
    if free_mib < _FULL_MIB or "No space left" in str(error):
        return DiskFullError(
            f"the disk is full: could not write {parent} ({free_mib:.0f} MiB free)",
            hint="free some space and run the same command again; finished parts are kept",
        )
    return ResourceError(
        f"Lucene could not index {rows} passages: {_first_line(error)} "
        f"({free_mib:.0f} MiB of disk free)",
        hint="free some disk, then run the same command again",
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


class LuceneIndex:
    """BM25 search in the directory that `build_bm25` filled, returning `info`; the first search
    starts Java.

    Raises:
        ArtifactError: it holds no Lucene index, or another one.
    """

    def __init__(self, directory: str | Path, info: Bm25Info) -> None:
        folder = Path(directory).absolute() / FOLDER_NAME
        self._find_class = find_class = start_java(heap_mib=_SEARCH_HEAP_MIB)
        self._occurs = find_class("org.apache.lucene.search.BooleanClause$Occur")
        self._clauses: WeakKeyDictionary[Selection, tuple[Any, Any]] = WeakKeyDictionary()
        try:
            self._searcher = find_class("io.anserini.search.SimpleSearcher")(str(folder))
            self.documents = int(self._searcher.get_total_num_docs())
        except Exception as error:
            reason = f"{folder} is not a readable Lucene index: {_first_line(error)}"
            raise ArtifactError(reason, hint="restore it or rebuild the index") from error
        if self.documents != info.documents:
            raise MismatchedArtifactError(
                f"{folder} holds {self.documents} documents, expected {info.documents}",
                hint="restore it or rebuild the index",
            )
        self.rows = info.rows
        self._language = info.language
        self._searcher.set_bm25(info.k1, info.b)
        if info.language != ENGLISH:
            self._searcher.set_analyzer(find_class(ANALYZERS[info.language])())
        find_class("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(1 << 16)
        # All results of a batch cross from Java as one string: field by field costs a call for each
        # hit.
        self._mapper = find_class("com.fasterxml.jackson.databind.ObjectMapper")()
        document = find_class("java.lang.Class").forName("org.apache.lucene.document.Document")
        is_ignored = find_class("java.lang.Boolean")("true")
        self._mapper.configOverride(document).setIsIgnoredType(is_ignored)

    def search(
        self, texts: Sequence[str], top_k: int, selected: Selection | None = None
    ) -> list[list[tuple[int, float]]]:
        """Best (row, score) of each text, best first, ties by row; fewer than `top_k` if fewer
        match.

        With a selection, Lucene scores only the selected rows, with the statistics of all; only the
        scores of tied documents differ.

        A text is a bag of words: none of its characters is query syntax. A text without an
        indexable word has no results. Anserini lowers the scores of tied documents by steps of
        1e-6, so they stay in order.

        Raises:
            RetrievalError: Lucene fails.
        """
        if not texts:
            return []
        if selected is not None and not len(check_selected(selected, self.rows)):
            return [[] for _ in texts]
        questions = [pairs_of_characters(clean_query(text), self._language) for text in texts]
        most = min(top_k, max(self.documents, 1))
        try:
            hits = self._search(questions, most, selected)
        except Exception as error:
            reason = f"Lucene could not answer {len(texts)} questions: {_first_line(error)}"
            raise RetrievalError(reason) from error
        results = []
        for hits_of_question in hits:
            pairs = [(int(hit["docid"]), float(hit["score"])) for hit in hits_of_question]
            results.append(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))
        return results

    def _search(self, questions: Sequence[str], most: int, selected: Selection | None) -> list[Any]:
        if selected is not None:
            if selected not in self._clauses:
                self._clauses[selected] = self._clause(selected)
            words = self._find_class("io.anserini.search.query.BagOfWordsQueryGenerator")()
            analyzer = self._searcher.get_analyzer()
            results = []
            for question in questions:
                query = self._find_class("org.apache.lucene.search.BooleanQuery$Builder")()
                query.add(words.buildQuery("contents", analyzer, question), self._occurs.MUST)
                query.add(*self._clauses[selected])
                found = self._searcher.search(query.build(), most)
                results.append(json.loads(self._mapper.writeValueAsString(found)))
            return results
        queries = self._find_class("java.util.ArrayList")()
        names = self._find_class("java.util.ArrayList")()
        for position, question in enumerate(questions):
            queries.add(question)
            names.add(str(position))
        threads = min(os.cpu_count() or 1, len(questions))
        found = self._searcher.batch_search(queries, names, most, threads)
        hits = json.loads(self._mapper.writeValueAsString(found))
        return [hits.get(str(position), ()) for position in range(len(questions))]

    def _clause(self, selected: Selection) -> tuple[Any, Any]:
        """A query that matches the selected rows, or all others, and how it is to occur."""
        either = self._find_class("org.apache.lucene.search.BooleanQuery$Builder")()
        if len(selected.runs) <= _MOST_RUNS:
            between = self._find_class("org.apache.lucene.search.TermRangeQuery").newStringRange
            for first, stop in selected.runs.tolist():
                ends = (_name_of(first, self.rows), _name_of(stop - 1, self.rows))
                either.add(between("id", *ends, True, True), self._occurs.SHOULD)
            return either.build(), self._occurs.FILTER
        # Whichever are fewer are named.
        occurs = self._occurs.FILTER
        rows = selected.rows
        if 2 * len(selected) > selected.total:
            occurs = self._occurs.MUST_NOT
            rows = np.flatnonzero(~selected.mask)
        # Terms cross to Java as one string, which Jackson turns into objects: one call in place of
        # thousands.
        term_class = self._find_class("java.lang.Class").forName("org.apache.lucene.util.BytesRef")
        reader = self._mapper.readerForListOf(term_class)
        in_set = self._find_class("org.apache.lucene.search.TermInSetQuery")
        for start in range(0, len(rows), _TERMS_AT_ONCE):
            terms = []
            for row in rows[start : start + _TERMS_AT_ONCE].tolist():
                name = _name_of(row, self.rows)
                code = b64encode(name.encode()).decode()
                terms.append({"bytes": code, "offset": 0, "length": len(name)})
            either.add(in_set("id", reader.readValue(json.dumps(terms))), self._occurs.SHOULD)
        return either.build(), occurs

    def close(self) -> None:
        """Release the files."""
        self._searcher.close()


def clean_query(text: str) -> str:
    """Clean a question for Lucene: valid Unicode, no control characters, at most 512 words.

    Example:
        >>> clean_query("who\\x00 is\\ud800 it?")
        'who is it?'
    """
    valid = text[:_MOST_QUERY_CHARACTERS].encode("utf-8", "ignore").decode("utf-8")
    printable = re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", valid)
    return " ".join(printable.split()[:_MOST_QUERY_WORDS])
