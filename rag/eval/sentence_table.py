"""Sentence boundaries of passages, as the corpus itself defines them.

HotpotQA names a supporting fact by title and sentence number, and an index stores a passage as one text. The
boundaries are recovered by aligning the corpus's sentences with that text.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from rag.core.errors import DataError
from rag.core.files import hash64
from rag.data.corpus import read_documents
from rag.data.records import Document
from rag.data.sentences import Spans, align_sentences


class SentenceTable:
    """Sentences of a corpus, by title and text of the whole document; about 60 bytes per document.

    Args:
        documents: documents of the corpus; those without lists of sentences are ignored.

    Raises:
        DataError: no document has sentences.

    Example:
        >>> table = SentenceTable([Document("1", "T", "One. Two.", ("One.", " Two."))])
        >>> table.find("T", "One. Two."), table.find("T", "Three.")
        (((0, 4), (5, 9)), None)
    """

    def __init__(self, documents: Iterable[Document]) -> None:
        keys, firsts, ends = array("Q"), array("Q"), array("I")
        for document in documents:
            spans = align_sentences(document.text, document.sentences) if document.sentences else None
            if spans is not None:
                keys.append(_key(document.title, document.text))
                firsts.append(len(ends))
                for start, end in spans:
                    ends.extend((start, end))
        if not keys:
            raise DataError(
                "no document in the corpus has a list of sentences",
                hint="give a corpus in HotpotQA's format: {title, text: [sentences]} or {title, sentences}",
            )
        order = np.argsort(np.frombuffer(keys, dtype=np.uint64), kind="stable")
        self._keys = np.frombuffer(keys, dtype=np.uint64)[order]
        firsts.append(len(ends))
        bounds = np.frombuffer(firsts, dtype=np.uint64)
        self._firsts, self._stops = bounds[:-1][order], bounds[1:][order]
        self._ends = np.frombuffer(ends, dtype=np.uint32)

    @classmethod
    def of_corpus(cls, *paths: str | Path) -> SentenceTable:
        """Read a corpus that an index was built from.

        Raises:
            DataError: it cannot be read, or no document has sentences.
        """
        return cls(read_documents(list(paths)))

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, title: str, text: str) -> Spans | None:
        """Sentence spans of a document that was indexed as one passage; None if it is not in the corpus."""
        key = np.uint64(_key(title, text))
        place = int(np.searchsorted(self._keys, key))
        if place == len(self._keys) or self._keys[place] != key:
            return None
        found = self._ends[int(self._firsts[place]) : int(self._stops[place])].tolist()
        return tuple(zip(found[::2], found[1::2], strict=True))


def _key(title: str, text: str) -> int:
    return hash64(f"{title}\n{text}".encode("utf-8", "surrogatepass"))
