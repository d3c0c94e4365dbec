"""Supporting facts for HotpotQA's sp and joint figures: (title, sentence number) pairs chosen from the
passages read.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from rag.config import load_config
from rag.core.errors import DataError
from rag.core.files import hash64
from rag.core.types import AnswerSet, Passage, Paths, Question, RankedPassages
from rag.data.corpus import read_documents
from rag.data.records import Document
from rag.data.sentences import Spans, align_sentences, sentence_spans
from rag.metrics.multihop import Fact
from readers.facts import FactPassage, FactSettings, FactSigns, choose_facts, find_signs

BOUNDARIES = {
    "corpus": "as the corpus cut them",
    "question set": "as the question's own paragraphs are cut",
    "rule": "by a rule: their numbers may differ from the official ones",
}


class SentenceTable:
    """Sentences of a corpus, by title and text of the whole document; about 60 bytes per document.

    HotpotQA names a supporting fact by title and sentence number, and an index stores a passage as one text:
    boundaries are recovered by aligning the corpus's sentences with that text.

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


class FactFinder:
    """Chooses the supporting facts of an answer; see `readers.facts` for the rule.

    Sentence boundaries come from the corpus if it is given, else from the paragraph with this title and text
    among those that the question set quotes (the distractor files quote all gold paragraphs), else from a
    rule of punctuation. Nothing else of the quoted paragraphs is used: they have no influence on which
    passages are chosen.

    Attributes:
        boundaries: number of chosen passages by source of their boundaries, see `BOUNDARIES`.
    """

    def __init__(
        self,
        settings: FactSettings | None = None,
        table: SentenceTable | None = None,
        *,
        read: int = 20,
    ) -> None:
        self.settings = settings or FactSettings()
        self.boundaries: Counter[str] = Counter()
        self._table = table
        self._read = read

    @property
    def identity(self) -> dict[str, Any]:
        """Description of the method, for the report."""
        return {
            "method": "features of words, titles and answers; no trained model",
            "settings": self.settings.model_dump(mode="json"),
            "sentences": f"corpus of {len(self._table):,} documents" if self._table else "question set",
        }

    def __call__(
        self, question: Question, answers: AnswerSet, retrieved: RankedPassages, paths: Paths = ()
    ) -> list[Fact]:
        """Supporting (title, sentence number) pairs."""
        signs, sources = self.signs(question, answers, retrieved, paths)
        facts = choose_facts(signs, self.settings)
        self.boundaries.update(sources[number] for number in dict.fromkeys(n for n, _ in facts))
        return [(signs.titles[number], sentence) for number, sentence in facts]

    def signs(
        self, question: Question, answers: AnswerSet, retrieved: RankedPassages, paths: Paths = ()
    ) -> tuple[FactSigns, list[str]]:
        """Features of the candidate sentences, and the source of each passage's boundaries."""
        confidence: Counter[str] = Counter()
        for answer in answers.answers:
            confidence[answer.evidence.passage_id] += answer.confidence  # type: ignore[assignment]
        best = answers.answers[0].evidence if answers.answers else None
        passages, sources = [], []
        for hit, passage in retrieved[: self._read]:
            spans, source = self._spans(question, passage)
            at = None
            if best is not None and best.passage_id == passage.id and (start := best.start) is not None:
                at = next((n for n, (_, end) in enumerate(spans) if start < end), None)
            texts = [passage.text[start:end] for start, end in spans]
            passages.append(FactPassage(passage.title, texts, hit.score, confidence[passage.id], at))
            sources.append(source)
        number = {passage.id: n for n, (_, passage) in enumerate(retrieved[: self._read])}
        chains = [[number[p.id] for _, p in path if p.id in number] for path in paths]
        return find_signs(question.text, passages, chains), sources

    def _spans(self, question: Question, passage: Passage) -> tuple[Spans, str]:
        spans = self._table.find(passage.title, passage.text) if self._table else None
        if spans is not None:
            return spans, "corpus"
        for shown in (*question.gold, *question.context):
            if shown.sentences and shown.passage.title == passage.title:
                spans = align_sentences(passage.text, shown.sentences)
                if spans is not None:
                    return spans, "question set"
        return sentence_spans(passage.text), "rule"


def open_finder(facts: str | Path, sentences: str | Path | None, *, read: int) -> FactFinder | None:
    """Open the finder of supporting facts for an evaluation.

    Args:
        facts: "auto" for the settings that ship, "off" for none, or a file of settings from tuning.
        sentences: corpus with the official sentence boundaries, if any.

    Raises:
        ConfigError: the settings cannot be read.
        DataError: the corpus cannot be read, or has no sentences.
    """
    if facts == "off":
        return None
    settings = load_config(FactSettings, None if facts == "auto" else facts)
    table = SentenceTable(read_documents(sentences)) if sentences else None
    return FactFinder(settings, table, read=read)
