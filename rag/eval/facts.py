"""Supporting facts for HotpotQA's sp and joint figures: (title, sentence number) pairs chosen from the
passages read.
"""

from __future__ import annotations

from collections import Counter

from rag.core.types import AnswerSet, Passage, Paths, Question, RankedPassages
from rag.data.sentences import Spans, align_sentences, sentence_spans
from rag.metrics.multihop import Fact
from readers.facts import FactPassage, choose_facts


class FactFinder:
    """Chooses the supporting facts of an answer; see `readers.facts` for the rule.

    Sentence boundaries come from the paragraph with this title and text among those that the question set
    quotes (the distractor files quote all gold paragraphs), else from a rule of punctuation. Nothing else of
    the quoted paragraphs is used: they have no influence on which passages are chosen.

    Attributes:
        boundaries: number of chosen passages by source of their boundaries.
    """

    def __init__(self, *, read: int = 20) -> None:
        self.boundaries: Counter[str] = Counter()
        self._read = read

    def __call__(
        self, question: Question, answers: AnswerSet, retrieved: RankedPassages, paths: Paths = ()
    ) -> list[Fact]:
        """Supporting (title, sentence number) pairs."""
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
        facts = choose_facts(question.text, passages, chains)
        self.boundaries.update(sources[number] for number in dict.fromkeys(n for n, _ in facts))
        return [(passages[number].title, sentence) for number, sentence in facts]

    def _spans(self, question: Question, passage: Passage) -> tuple[Spans, str]:
        for shown in (*question.gold, *question.context):
            if shown.sentences and shown.passage.title == passage.title:
                spans = align_sentences(passage.text, shown.sentences)
                if spans is not None:
                    return spans, "question set"
        return sentence_spans(passage.text), "rule"

    def notes(self) -> list[str]:
        """A warning where sentences were cut by a rule."""
        if not (guessed := self.boundaries["rule"]):
            return []
        return [
            f"sentences of {guessed:,} of {self.boundaries.total():,} supporting passages were cut by rule: "
            "their numbers may differ from the official ones"
        ]
