"""Score a question into one record, all that report and prediction files need, and records into
figures.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rag.answering import Outcome
from rag.core.arrays import Float64
from rag.core.errors import DataError
from rag.core.types import AnswerSet, Claim, Passage, Paths, Question, RankedPassages
from rag.data.sentences import Spans, align_sentences, sentence_spans
from rag.data.text import AnswerMatcher, exact_match
from rag.eval.figures import GROUP_FIGURES
from rag.eval.gold import gold_facts, gold_keys, is_yes_no, needs_all
from rag.eval.settings import EvaluationSettings
from rag.metrics.answers import em_and_f1
from rag.metrics.calibration import measure_calibration
from rag.metrics.kilt import evidence_sets, score_answers, score_pages
from rag.metrics.multihop import Fact, multihop_scores, path_scores, score_hotpot
from rag.metrics.ranking import first_true, rank_figures, trec_measures
from rag.metrics.significance import bootstrap
from readers.paths import FactPassage, choose_facts

STAGES = {
    "correct": "the first answer is right",
    "retrieval": "no passage that was read holds the answer",
    "reading": "the answer stood in the passages, another was given",
    "unknown": "yes/no answer or no accepted answer: the stage cannot be determined",
}
_MAX_GROUPS = 30
_LATENCY_PERCENTILES = (50, 90, 95, 99)
_STORED_TEXTS = 5  # retrieved passages per question whose text stays in its record, for the report


@dataclass(frozen=True, slots=True)
class QuestionOutcome:
    """The outcome of a question.

    Attributes:
        timings_ms: wall milliseconds by stage: the batch's time divided by its questions.
        document_of: passage id → id of its document.
    """

    question: Question
    outcome: Outcome
    timings_ms: Mapping[str, float]
    document_of: Callable[[str], str] = str

    def key_of(self, passage: Passage) -> str:
        """The name of a passage in the terms of the question's gold passages."""
        kind = gold_keys(self.question)[0]
        if kind == "document":
            return self.document_of(passage.id)
        return passage.title if kind == "title" else passage.id

    @property
    def retrieved(self) -> RankedPassages:
        """Hits with passages, best first."""
        return self.outcome.result.passages

    @property
    def paths(self) -> Paths:
        """Hits with passages of each path, the best path first; empty if there are none."""
        return self.outcome.result.paths

    @property
    def answers(self) -> AnswerSet | None:
        """The short answers; None if the system only retrieves."""
        return self.outcome.short


def score_outcomes(
    outcomes: Sequence[QuestionOutcome], settings: EvaluationSettings
) -> list[dict[str, Any]]:
    """Score a batch.

    Returns:
        One JSON-ready record per question; `record["scores"]` holds the figures, None where
        undefined.
    """
    measured = _trec_measures(outcomes, settings)
    return [
        _record(
            each,
            {name: values.get(each.question.id) for name, values in measured.items()},
            settings,
        )
        for each in outcomes
    ]


def _record(
    outcome: QuestionOutcome, measured: Mapping[str, float | None], settings: EvaluationSettings
) -> dict[str, Any]:
    """The JSON-ready record of a question."""
    question = outcome.question
    answers = outcome.answers
    text = _first_text(answers, settings)
    support = None
    if settings.profile == "hotpot" and answers is not None:
        read = outcome.retrieved[: settings.read]
        support = [list(fact) for fact in find_facts(question, answers, read, outcome.paths)]
    matcher = AnswerMatcher(question.answers, settings.profile)
    flags = [matcher.matches(passage.text) for _, passage in outcome.retrieved]
    first_rank = first_true(flags)
    is_in_reach = any(flags[: settings.read])
    is_findable = bool(question.answers) and not is_yes_no(question)
    scores = _answer_scores(outcome, text, support, settings)
    if is_findable and not settings.gold:
        scores |= {
            name: float(value[0]) for name, value in rank_figures([first_rank], settings.ks).items()
        }
    if is_findable and answers is not None:
        scores["gold_span_em"] = float(is_in_reach)
    if not settings.gold:  # gold passages are no result of a retriever
        scores |= _coverage(outcome, settings)
    defined = {
        name: None if value is None or value != value else value
        for name, value in {**scores, **measured}.items()
    }
    record: dict[str, Any] = {
        "id": question.id,
        "question": question.text,
        "answers": list(question.answers),
        "scores": defined,
        "stage": _stage(defined, is_in_reach, is_findable),
        "first_rank": first_rank,
        "hits": _hits_json(outcome, flags),
        "timings_ms": {stage: round(value, 3) for stage, value in outcome.timings_ms.items()},
    }
    if answers is not None:
        record |= {**_answers_json(answers), "prediction": text}
        shown = outcome.outcome.shown
        if shown is not None and shown.kind != "answer":
            record |= {"kind": shown.kind, "shown": _shown_text(outcome)}
        if answers.failure:
            record["failure"] = answers.failure
        if text == "":  # the system's answer is "no answer"
            record["confidence"] = answers.no_answer_confidence
    if support is not None:
        record |= {"facts": support, "gold_facts": [list(fact) for fact in gold_facts(question)]}
    if settings.by:
        record["groups"] = field_values(question, settings.by)
    if outcome.paths:
        best = outcome.paths[:_STORED_TEXTS]
        record["paths"] = [[passage.id for _, passage in path] for path in best]
    return record


def field_values(question: Question | Claim, names: Sequence[str]) -> dict[str, str]:
    """The values of fields of the source of a question or claim."""
    values = question.meta
    if missing := [name for name in names if name not in values]:
        raise DataError(
            f"{question.id} has no field {missing[0]!r}, by which figures were to be grouped",
            hint=f"its fields are {', '.join(values)}",
        )
    return {name: "none" if values[name] is None else str(values[name]) for name in names}


def _answer_scores(
    outcome: QuestionOutcome,
    text: str | None,
    support: Sequence[Sequence[Any]] | None,
    settings: EvaluationSettings,
) -> dict[str, float]:
    """The figures of the answers to a question; NaN where undefined."""
    question = outcome.question
    answers = outcome.answers
    scores: dict[str, float] = {}
    if answers is not None:
        is_empty = (
            settings.profile == "squad2" and question.is_impossible
        )  # "" is then the accepted answer
        accepted = ("",) if is_empty else question.answers
        scores["em"], scores["f1"] = em_and_f1(text, accepted, settings.profile)
        if settings.profile == "hotpot" and question.answers:
            marked = gold_facts(question)
            values = score_hotpot(text, support, question.answers[0], marked)
            if support is None or not marked:  # only the answer can be judged
                values = {name: values[name] for name in ("em", "f1", "prec", "recall")}
            scores |= values
        right = [
            exact_match(each.text, question.answers, settings.profile) for each in answers.answers
        ]
        scores["n_best_em"] = float(any(right)) if question.answers else float("nan")
        scores["answered"] = float(answers.is_answered)
        shown = _shown_text(outcome)
        scores["shown_em"], scores["shown_f1"] = em_and_f1(shown, accepted, settings.profile)
    if settings.profile == "kilt" and question.provenance and not settings.gold:
        pages = score_pages(_pages(outcome), evidence_sets(question.provenance), settings.ks)
        if answers is not None and question.answers:
            scores |= score_answers(text or "", question.answers, pages["r_precision"])
        scores |= pages
    return scores


def _pages(outcome: QuestionOutcome) -> list[str]:
    """The documents of the retrieved passages, best first, each once."""
    names = (outcome.document_of(passage.id) for _, passage in outcome.retrieved)
    return list(dict.fromkeys(names))


def _first_text(answers: AnswerSet | None, settings: EvaluationSettings) -> str | None:
    """The best answer; by SQuAD 2's rules empty where "no answer" is likelier."""
    if answers is None:
        return None
    is_refused = not answers.answers or answers.no_answer_confidence > 0.5
    if settings.profile == "squad2" and is_refused:
        return ""
    return answers.answers[0].text if answers.answers else None


def _shown_text(outcome: QuestionOutcome) -> str:
    """The answer as people see it: "" where none is presented, else a span, a list or a sentence."""
    shown = outcome.outcome.shown
    if shown is None or not shown.is_answered:
        return ""
    return shown.answers[0].text


def _trec_measures(
    outcomes: Sequence[QuestionOutcome], settings: EvaluationSettings
) -> dict[str, dict[str, float]]:
    """trec_eval measures of the questions that have gold passages, unless the reader gets these."""
    if settings.gold:
        return {}
    rankings: dict[str, list[str]] = {}
    qrels: dict[str, dict[str, int]] = {}
    for outcome in outcomes:
        keys = gold_keys(outcome.question)[1]
        if keys:
            names = [outcome.key_of(passage) for _, passage in outcome.retrieved]
            rankings[outcome.question.id] = list(dict.fromkeys(names))
            grades = outcome.question.gold_grades
            qrels[outcome.question.id] = {key: grades.get(key, 1) for key in keys}
    return trec_measures(rankings, qrels, settings.measures) if qrels else {}


def _coverage(outcome: QuestionOutcome, settings: EvaluationSettings) -> dict[str, float]:
    """Multi-hop figures, for questions that need two passages or more."""
    keys = gold_keys(outcome.question)[1]
    if not needs_all(outcome.question):
        return {}
    names = [outcome.key_of(passage) for _, passage in outcome.retrieved]
    scores = multihop_scores(names, keys, settings.ks)
    if outcome.paths:
        paths = [[outcome.key_of(passage) for _, passage in path] for path in outcome.paths]
        scores |= path_scores(paths, keys, settings.ks)
    return scores


def _stage(scores: Mapping[str, float | None], is_in_reach: bool, is_findable: bool) -> str | None:
    """The stage of `STAGES` that caused a miss; None if the system does not answer."""
    if "em" not in scores:
        return None
    if scores["em"] == 1.0:
        return "correct"
    if scores["em"] is None or not is_findable:
        return "unknown"
    return "reading" if is_in_reach else "retrieval"


def _answers_json(answers: AnswerSet) -> dict[str, Any]:
    best = answers.answers[0] if answers.answers else None
    return {
        "confidence": best.confidence if best else 0.0,
        "no_answer_confidence": answers.no_answer_confidence,
        "evidence": best.evidence.to_json() if best else None,
        "n_best": [
            {
                "text": each.text,
                "confidence": each.confidence,
                "score": each.score,
                "passage_id": each.evidence.passage_id,
            }
            for each in answers.answers
        ],
        "reading": dict(answers.reading),
    }


def _hits_json(outcome: QuestionOutcome, flags: Sequence[bool]) -> list[dict[str, Any]]:
    keys = gold_keys(outcome.question)[1]
    rows = []
    for rank, ((hit, passage), flag) in enumerate(zip(outcome.retrieved, flags, strict=True)):
        row: dict[str, Any] = {"id": passage.id, "title": passage.title, "score": hit.score}
        row["has_answer"] = flag
        if keys:
            row["is_gold"] = outcome.key_of(passage) in keys
        if rank < _STORED_TEXTS:
            row["text"] = passage.text
        rows.append(row)
    return rows


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
    confidence: dict[str, float] = {}
    for answer in answers.answers:
        name = answer.evidence.passage_id
        confidence[name] = confidence.get(name, 0.0) + answer.confidence
    best = answers.answers[0].evidence if answers.answers else None
    passages = []
    for hit, passage in read:
        spans = _spans(question, passage)
        at = None
        if best is not None and best.passage_id == passage.id and (start := best.start) is not None:
            at = next((n for n, (_, end) in enumerate(spans) if start < end), None)
        texts = [passage.text[start:end] for start, end in spans]
        passages.append(
            FactPassage(passage.title, texts, hit.score, confidence.get(passage.id, 0.0), at)
        )
    number = {passage.id: n for n, (_, passage) in enumerate(read)}
    chains = [[number[p.id] for _, p in path if p.id in number] for path in paths]
    return [
        (passages[n].title, sentence)
        for n, sentence in choose_facts(question.text, passages, chains)
    ]


def _spans(question: Question, passage: Passage) -> Spans:
    for shown in (*question.gold, *question.context):
        if shown.sentences and shown.passage.title == passage.title:
            spans = align_sentences(passage.text, shown.sentences)
            if spans is not None:
                return spans
    return sentence_spans(passage.text)


def figure_columns(scores: Sequence[Mapping[str, float | None]]) -> dict[str, Float64]:
    """Each figure of all questions, (n,), NaN where undefined; without those that no question
    has.
    """
    names = dict.fromkeys(name for row in scores for name in row)
    columns = {name: np.array([row.get(name) for row in scores], np.float64) for name in names}
    return {name: column for name, column in columns.items() if not np.isnan(column).all()}


def summarise(records: Iterable[Mapping[str, Any]], settings: EvaluationSettings) -> dict[str, Any]:
    """All figures of an evaluation, ready for `metrics.json`.

    Args:
        records: from `score_outcomes`, one per question; at least one.

    Returns:
        "n", "failed" (questions that could not be read), "figures" {name: interval}, "curve"
        (accuracy over k), "calibration", "stages", "groups" (of each field, by size: value, "n",
        "figures"), "latency_ms", "reading".
    """
    scores: list[Mapping[str, float | None]] = []
    confidence: list[float] = []
    ranks: list[float] = []
    stages = Counter[str]()
    reading = Counter[str]()
    latency: dict[str, list[float]] = {}
    groups: dict[str, dict[str, list[int]]] = {}  # field → value → rows of its questions
    deepest = 0
    failed = 0
    for row, record in enumerate(records):
        scores.append(record["scores"])
        confidence.append(record.get("confidence", np.nan))
        deepest = max(deepest, len(record["hits"]))
        if record["scores"].get("mrr") is not None:
            ranks.append(record["first_rank"] or np.inf)
        if record["stage"] is not None:
            stages[record["stage"]] += 1
        for stage, milliseconds in record["timings_ms"].items():
            latency.setdefault(stage, []).append(milliseconds)
        for name, value in record.get("groups", {}).items():
            groups.setdefault(name, {}).setdefault(value, []).append(row)
        reading.update(record.get("reading", {}))
        failed += bool(record.get("failure"))
    n = len(scores)
    columns = figure_columns(scores)
    return {
        "n": n,
        "failed": failed,
        "figures": _intervals(columns, settings),
        "curve": _accuracy_curve(np.array(ranks), deepest),
        "calibration": measure_calibration(
            np.array(confidence), columns.get("em", np.full(n, np.nan))
        ),
        "stages": dict(stages.most_common()),
        "groups": {
            name: _group_figures(values, columns, settings) for name, values in groups.items()
        },
        "latency_ms": {stage: _percentiles(np.array(values)) for stage, values in latency.items()},
        "reading": {name: round(total / n, 2) for name, total in reading.items()},
    }


def _group_figures(
    rows_by_value: Mapping[str, list[int]],
    columns: Mapping[str, Float64],
    settings: EvaluationSettings,
) -> list[dict[str, Any]]:
    """The figures of the questions with each value of a field, the largest groups first."""
    shown = {name: columns[name] for name in GROUP_FIGURES if name in columns}
    by_size = sorted(rows_by_value.items(), key=lambda item: (-len(item[1]), item[0]))
    groups = []
    for value, rows in by_size[:_MAX_GROUPS]:
        figures = _intervals({name: column[rows] for name, column in shown.items()}, settings)
        groups.append({"value": value, "n": len(rows), "figures": figures})
    return groups


def _intervals(columns: Mapping[str, Float64], settings: EvaluationSettings) -> dict[str, Any]:
    return {
        name: bootstrap(column, seed=settings.seed)[0].to_json() for name, column in columns.items()
    }


def _accuracy_curve(ranks: Float64, deepest: int) -> list[dict[str, Any]]:
    """Accuracy at up to 40 cut-offs between 1 and the deepest hit, evenly spaced on a logarithmic
    axis.
    """
    if deepest == 0 or not len(ranks):
        return []
    ks = np.unique(np.geomspace(1, deepest, 40).round().astype(int))
    return [{"k": int(k), "value": float((ranks <= k).mean()), "n": len(ranks)} for k in ks]


def _percentiles(values: Float64) -> dict[str, float]:
    figures = {f"p{p}": float(np.percentile(values, p)) for p in _LATENCY_PERCENTILES}
    return {"mean": float(values.mean()), **figures, "max": float(values.max())}
