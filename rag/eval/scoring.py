"""Score a question: one record, all that figures, report and prediction files need."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rag.answering import Outcome
from rag.core.errors import DataError
from rag.core.types import AnswerSet, Claim, Passage, Paths, Question, RankedPassages
from rag.data.sentences import Spans, align_sentences, sentence_spans
from rag.data.text import AnswerMatcher, exact_match
from rag.eval.gold import gold_facts, gold_keys, is_yes_no, needs_all
from rag.eval.records import QuestionRecord, StoredAnswer, StoredHit
from rag.eval.settings import EvaluationSettings
from rag.metrics.answers import em_and_f1
from rag.metrics.citations import citation_scores
from rag.metrics.kilt import evidence_sets, score_answers, score_pages
from rag.metrics.multihop import Fact, multihop_scores, path_scores, score_hotpot
from rag.metrics.ranking import first_true, rank_figures, trec_measures
from readers.paths import FactPassage, choose_facts

STAGES = {
    "correct": "the first answer is right",
    "retrieval": "no passage that was read holds the answer",
    "reading": "the answer stood in the passages, another was given",
    "unknown": "yes/no answer or no accepted answer: the stage cannot be determined",
}
# Retrieved passages per question whose text stays in its record, for the report.
_STORED_TEXTS = 5


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A question of the set, and what came of asking it.

    Attributes:
        timings_ms: wall milliseconds by stage: the batch's time divided by its questions.
        top_k: the number of passages that count.
        document_of: passage id → id of its document.
    """

    question: Question
    outcome: Outcome
    timings_ms: Mapping[str, float]
    top_k: int
    document_of: Callable[[str], str]

    def keys_of(self, ranked: RankedPassages) -> list[str]:
        """The passages, in their order, named as the question names its gold passages: by id,
        document or title.
        """
        kind, _ = gold_keys(self.question)
        if kind == "title":
            return [passage.title for _, passage in ranked]
        ids = [passage.id for _, passage in ranked]
        return list(map(self.document_of, ids)) if kind == "document" else ids

    @property
    def retrieved(self) -> RankedPassages:
        """Hits with passages, best first, without the question itself where that is not ranked."""
        found = self.outcome.result.passages
        question = self.question
        if not question.is_left_out or question.id in gold_keys(question)[1]:
            return found
        keys = self.keys_of(found)
        others = [pair for pair, key in zip(found, keys, strict=True) if key != question.id]
        return others[: self.top_k]

    @property
    def shown_text(self) -> str:
        """The answer as people see it: "" where none is presented, else a span, a list or a
        sentence.
        """
        presented = self.outcome.presented
        return presented.text if presented and presented.is_answered else ""


def score_outcomes(
    asked_questions: Sequence[AskedQuestion], settings: EvaluationSettings
) -> list[QuestionRecord]:
    """Score a batch: a record per question."""
    rankings: dict[str, list[str]] = {}
    qrels: dict[str, dict[str, int]] = {}
    for asked in asked_questions:
        question = asked.question
        keys = gold_keys(question)[1]
        # Gold passages that the reader gets are no ranking.
        if keys and not settings.gold:
            rankings[question.id] = list(dict.fromkeys(asked.keys_of(asked.retrieved)))
            qrels[question.id] = {key: question.gold_grades.get(key, 1) for key in keys}
    trec_figures = dict[str, dict[str, float]]()
    if qrels:
        trec_figures = trec_measures(rankings, qrels, settings.measures)
    records = []
    for asked in asked_questions:
        figures = {name: values.get(asked.question.id) for name, values in trec_figures.items()}
        records.append(_record(asked, figures, settings))
    return records


def _record(
    asked: AskedQuestion, trec_figures: Mapping[str, float | None], settings: EvaluationSettings
) -> QuestionRecord:
    question = asked.question
    answers = asked.outcome.short
    paths = asked.outcome.result.paths
    matcher = AnswerMatcher(question.answers, settings.profile)
    has_answer = [matcher.matches(passage.text) for _, passage in asked.retrieved]
    first_rank = first_true(has_answer)
    reader_saw_answer = any(has_answer[: settings.read])
    is_findable = bool(question.answers) and not is_yes_no(question)
    scores: dict[str, float | None] = {}
    stored: dict[str, object] = {}
    text = None
    if answers is not None:
        text = _first_text(answers, settings)
        facts = None
        if settings.profile == "hotpot":
            facts = find_facts(question, answers, asked.retrieved[: settings.read], paths)
            stored |= {"facts": facts, "gold_facts": gold_facts(question)}
        scores |= _answer_scores(asked, answers, text, facts, settings)
        if is_findable:
            scores["gold_span_em"] = float(reader_saw_answer)
        stored |= _stored_answers(asked, answers, text)
    # Gold passages are no result of a retriever: there is no ranking to score.
    if not settings.gold:
        if is_findable:
            for name, values in rank_figures([first_rank], settings.ks).items():
                scores[name] = float(values[0])
        scores |= _page_scores(asked, text, settings)
        scores |= _coverage(asked, settings)
    scores |= trec_figures
    if settings.by:
        stored["groups"] = field_values(question, settings.by)
    if paths:
        stored["paths"] = [[passage.id for _, passage in path] for path in paths[:_STORED_TEXTS]]
    if "em" in scores:
        stored["stage"] = _stage(scores, reader_saw_answer, is_findable)
    fields: dict[str, object] = {
        "id": question.id,
        "question": question.text,
        "answers": question.answers,
        "scores": scores,
        "first_rank": first_rank,
        "hits": _stored_hits(asked, has_answer),
        "timings_ms": asked.timings_ms,
    }
    return QuestionRecord.model_validate(fields | stored)


def field_values(question: Question | Claim, names: Sequence[str]) -> dict[str, str]:
    """These fields of a question or claim, as its file states them, as texts; "none" for null.

    Raises:
        DataError: it has no such field.
    """
    values: dict[str, str] = {}
    for name in names:
        if name not in question.meta:
            raise DataError(
                f"question {question.id} has no field {name!r}, by which figures were to be grouped",
                hint=f"its fields are {', '.join(question.meta)}",
            )
        value = question.meta[name]
        values[name] = "none" if value is None else str(value)
    return values


def _answer_scores(
    asked: AskedQuestion,
    answers: AnswerSet,
    text: str | None,
    facts: Sequence[Fact] | None,
    settings: EvaluationSettings,
) -> dict[str, float]:
    """The figures of the answers to a question; NaN where undefined."""
    question = asked.question
    accepted = question.answers
    if settings.profile == "squad2" and question.is_impossible:
        # By SQuAD 2's rules no answer is the accepted one.
        accepted = ("",)
    scores: dict[str, float] = {}
    scores["em"], scores["f1"] = em_and_f1(text, accepted, settings.profile)
    if settings.profile == "hotpot" and question.answers:
        marked = gold_facts(question)
        values = score_hotpot(text, facts, question.answers[0], marked)
        if not marked:
            # Only the answer can be judged.
            values = {name: values[name] for name in ("em", "f1", "prec", "recall")}
        scores |= values
    texts = [answer.text for answer in answers.answers]
    right = [exact_match(candidate, question.answers, settings.profile) for candidate in texts]
    scores["n_best_em"] = float(any(right)) if question.answers else math.nan
    scores["answered"] = float(answers.is_answered)
    if answers.best and answers.best.sentences:
        scores |= citation_scores(answers.best.sentences)
    scores["shown_em"], scores["shown_f1"] = em_and_f1(asked.shown_text, accepted, settings.profile)
    return scores


def _page_scores(
    asked: AskedQuestion, text: str | None, settings: EvaluationSettings
) -> dict[str, float]:
    """KILT's figures, for questions whose source pages are known."""
    question = asked.question
    if settings.profile != "kilt" or not question.provenance:
        return {}
    documents = [asked.document_of(passage.id) for _, passage in asked.retrieved]
    pages = list(dict.fromkeys(documents))
    scores = score_pages(pages, evidence_sets(question.provenance), settings.ks)
    if asked.outcome.short is None or not question.answers:
        return scores
    return score_answers(text or "", question.answers, scores["r_precision"]) | scores


def _first_text(answers: AnswerSet, settings: EvaluationSettings) -> str | None:
    """The best answer; by SQuAD 2's rules empty where "no answer" is likelier."""
    is_refused = not answers.answers or answers.no_answer_confidence > 0.5
    if settings.profile == "squad2" and is_refused:
        return ""
    return answers.text if answers.answers else None


def _coverage(asked: AskedQuestion, settings: EvaluationSettings) -> dict[str, float]:
    """Multi-hop figures, for questions that need two passages or more."""
    if not needs_all(asked.question):
        return {}
    keys = gold_keys(asked.question)[1]
    paths = list(map(asked.keys_of, asked.outcome.result.paths))
    scores = multihop_scores(asked.keys_of(asked.retrieved), keys, settings.ks)
    if paths:
        scores |= path_scores(paths, keys, settings.ks)
    return scores


def _stage(scores: Mapping[str, float | None], reader_saw_answer: bool, is_findable: bool) -> str:
    """The stage of `STAGES` that caused a miss."""
    if scores["em"] == 1.0:
        return "correct"
    if not is_findable:
        return "unknown"
    return "reading" if reader_saw_answer else "retrieval"


def _stored_answers(
    asked: AskedQuestion, answers: AnswerSet, text: str | None
) -> dict[str, object]:
    """The fields of a record that say what was answered."""
    n_best = [
        StoredAnswer(
            text=answer.text,
            confidence=answer.confidence,
            score=answer.score,
            passage_id=answer.evidence.passage_id,
        )
        for answer in answers.answers
    ]
    fields: dict[str, object] = {
        "confidence": answers.confidence,
        "no_answer_confidence": answers.no_answer_confidence,
        "n_best": n_best,
        "reading": answers.reading,
        "prediction": text,
    }
    if text == "":
        # The system's answer is "no answer".
        fields["confidence"] = answers.no_answer_confidence
    best = answers.best
    if best is not None:
        fields["evidence"] = best.evidence.to_json()
        if best.sentences:
            fields["cited_sentences"] = best.sentences
    presented = asked.outcome.presented
    if presented is not None and presented.kind != "answer":
        fields |= {"kind": presented.kind, "shown": asked.shown_text}
    if answers.failure:
        fields["failure"] = answers.failure
    return fields


def _stored_hits(asked: AskedQuestion, has_answer: Sequence[bool]) -> list[StoredHit]:
    gold = gold_keys(asked.question)[1]
    keys = asked.keys_of(asked.retrieved)
    stored = []
    for rank, (hit, passage) in enumerate(asked.retrieved):
        fields: dict[str, object] = {"id": passage.id, "title": passage.title, "score": hit.score}
        fields["has_answer"] = has_answer[rank]
        if gold:
            fields["is_gold"] = keys[rank] in gold
        if rank < _STORED_TEXTS:
            fields["text"] = passage.text
        stored.append(StoredHit.model_validate(fields))
    return stored


def find_facts(
    question: Question, answers: AnswerSet, read: RankedPassages, paths: Paths = ()
) -> list[Fact]:
    """Supporting facts for HotpotQA's sp and joint figures; see `readers.paths` for the rule.

    Sentence boundaries come from the paragraph with this title and text among those that the
    question set quotes (the distractor files quote all gold paragraphs), else from a rule of
    punctuation. Nothing else of the quoted paragraphs is used: they have no influence on which
    passages are chosen.

    Args:
        read: hits with the passages that were read.
    """
    confidence = defaultdict[str, float](float)
    for answer in answers.answers:
        confidence[answer.evidence.passage_id] += answer.confidence
    passages = list[FactPassage]()
    rows: dict[str, int] = {}
    for hit, passage in read:
        rows[passage.id] = len(passages)
        spans = _spans(question, passage)
        texts = [passage.text[start:end] for start, end in spans]
        answer_sentence = None
        if answers.best and answers.best.evidence.passage_id == passage.id:
            start = answers.best.evidence.start
            # The sentence in which the answer begins.
            behind = (n for n, (_, end) in enumerate(spans) if start is not None and start < end)
            answer_sentence = next(behind, None)
        passages.append(
            FactPassage(passage.title, texts, hit.score, confidence[passage.id], answer_sentence)
        )
    chains = []
    for path in paths:
        chains.append([rows[p.id] for _, p in path if p.id in rows])
    chosen = choose_facts(question.text, passages, chains)
    return [(passages[row].title, sentence) for row, sentence in chosen]


def _spans(question: Question, passage: Passage) -> Spans:
    """Sentences of a passage as the question set divides them, else as a rule does."""
    for quoted in (*question.gold, *question.context):
        if quoted.sentences and quoted.passage.title == passage.title:
            spans = align_sentences(passage.text, quoted.sentences)
            if spans is not None:
                return spans
    return sentence_spans(passage.text)
