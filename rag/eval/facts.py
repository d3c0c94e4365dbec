"""Supporting facts for HotpotQA's sp and joint figures: (title, sentence number) pairs chosen from the
passages read.
"""

from __future__ import annotations

from collections import Counter

from rag.core.types import AnswerSet, Passage, Paths, Question, RankedPassages
from rag.data.sentences import Spans, align_sentences, sentence_spans
from rag.metrics.multihop import Fact
from readers.facts import FactPassage, choose_facts


def find_facts(question: Question, answers: AnswerSet, read: RankedPassages, paths: Paths = ()) -> list[Fact]:
    """Supporting facts of the answers; see `readers.facts` for the rule.

    Sentence boundaries come from the paragraph with this title and text among those that the question set
    quotes (the distractor files quote all gold paragraphs), else from a rule of punctuation. Nothing else of
    the quoted paragraphs is used: they have no influence on which passages are chosen.

    Args:
        read: hits with the passages that were read.
    """
    confidence: Counter[str] = Counter()
    for answer in answers.answers:
        confidence[answer.evidence.passage_id] += answer.confidence  # type: ignore[assignment]
    best = answers.answers[0].evidence if answers.answers else None
    passages = []
    for hit, passage in read:
        spans = _spans(question, passage)
        at = None
        if best is not None and best.passage_id == passage.id and (start := best.start) is not None:
            at = next((n for n, (_, end) in enumerate(spans) if start < end), None)
        texts = [passage.text[start:end] for start, end in spans]
        passages.append(FactPassage(passage.title, texts, hit.score, confidence[passage.id], at))
    number = {passage.id: n for n, (_, passage) in enumerate(read)}
    chains = [[number[p.id] for _, p in path if p.id in number] for path in paths]
    return [(passages[n].title, sentence) for n, sentence in choose_facts(question.text, passages, chains)]


def _spans(question: Question, passage: Passage) -> Spans:
    for shown in (*question.gold, *question.context):
        if shown.sentences and shown.passage.title == passage.title:
            spans = align_sentences(passage.text, shown.sentences)
            if spans is not None:
                return spans
    return sentence_spans(passage.text)
