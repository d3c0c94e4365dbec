"""Evaluate verdicts on claims: streamed to the disk and resumable, as answers to questions are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from indexers.gold import CorpusTexts
from indexers.index import Index
from rag.core.errors import DataError
from rag.core.files import clean_directory, directory_lock, disk_errors
from rag.core.log import Progress
from rag.core.types import VERDICT_LABELS, Claim, ClaimLabel, GoldSentence, Verdict, VerdictLabel
from rag.data.claims import fever_title
from rag.data.files.rows import write_json_lines
from rag.data.sentences import sentence_spans
from rag.eval import runner
from rag.eval.records import QuestionRecord, StoredHit, read_records
from rag.eval.scoring import field_values
from rag.eval.settings import EvaluationSettings
from rag.eval.source import QuestionSource
from rag.eval.summary import summarise
from rag.metrics.calibration import measure_calibration
from rag.metrics.claims import macro_f1, score_claim
from rag.metrics.significance import bootstrap
from rag.opening import resolve_verifier
from rag.pipeline import Pipeline

if TYPE_CHECKING:
    from rag.opening import VerifierLike

MOST_SENTENCES = 5  # that FEVER counts of a claim's evidence
READ = 5  # passages by which a claim is judged
PREDICTIONS_NAME = "predictions.fever.jsonl"
_FEVER_LABELS = {
    "supported": "SUPPORTS",
    "refuted": "REFUTES",
    "not_supported": "NOT_SUPPORTED",
}
Judge = Callable[[Sequence[Claim]], list[Verdict]]


@dataclass(frozen=True, slots=True)
class ClaimSystem:
    """A verifier, with or without a search, that judges the claims of an evaluation.

    Attributes:
        index: the index in which passages are found; None where claims bring their evidence.
    """

    identity: Mapping[str, object]
    judge: Judge
    index: Index | None = None


def system_with_evidence(verifier: VerifierLike) -> ClaimSystem:
    """A verifier over the evidence that the claims bring."""
    opened = resolve_verifier(verifier)

    def judge(claims: Sequence[Claim]) -> list[Verdict]:
        for claim in claims:
            # A claim that its texts do not decide may bring none at all.
            if not claim.evidence and claim.label != "not_enough":
                raise DataError(
                    f"claim {claim.id!r} brings no text as evidence",
                    hint="give the index of its corpus, and judge by what is found there",
                )
        return opened.judge([claim.text for claim in claims], [claim.evidence for claim in claims])

    return ClaimSystem({"verifier": opened.name, "index_version": ""}, judge)


def system_with_search(pipeline: Pipeline, read: int) -> ClaimSystem:
    """A pipeline, whose verifier judges by the `read` best passages."""
    name = resolve_verifier(pipeline.verifier).name
    # A promise would withhold verdicts, which are to be scored.
    plain = pipeline.without_promises()

    def judge(claims: Sequence[Claim]) -> list[Verdict]:
        return plain.verify([claim.text for claim in claims], read)

    return ClaimSystem({**pipeline.identity, "verifier": name}, judge, pipeline.index)


def evaluate_claims(
    system: ClaimSystem,
    claims: Iterable[Claim],
    folder: Path,
    settings: EvaluationSettings,
    *,
    source: QuestionSource,
    command: str = "",
) -> None:
    """Judge every claim, score every verdict, write the results; users call `rag.evaluate`.

    In a claim set with fewer than three labels, the prediction is the likeliest of these, whichever
    claims are drawn.

    Raises:
        DataError: there is no claim with a label, or a set mixes labels of two kinds.
    """
    claims = list(claims)
    chosen = list(settings.draw(claims))
    choices = label_choices(claims)
    header: dict[str, Any] = {
        **runner.settings_header(settings, source),
        "profile": "claims",
        "system": dict(system.identity),
    }
    with directory_lock(folder):
        if not runner.check_folder(folder, header):
            clean_directory(folder)
            _judge_all(system, chosen, choices, folder, settings, header)
            _write_predictions(folder)
            figures = _figures(folder / runner.RECORDS_NAME, settings)
            figures["notes"] += _notes(system, chosen, folder)
            runner.finish(folder, {**header, **figures}, command)


def label_choices(claims: Iterable[Claim]) -> dict[str, list[ClaimLabel]]:
    """The labels of each claim set, by `set_of` its claims.

    Raises:
        DataError: there is no claim with a label, or a set mixes labels of two kinds.
    """
    labels = defaultdict[str, set[ClaimLabel]](set)
    for claim in claims:
        if claim.label is not None:
            labels[set_of(claim)].add(claim.label)
    if not labels:
        raise DataError("no claim has a label", hint="give it in a field called label")
    for name, found in labels.items():
        if "not_supported" in found and found & {"refuted", "not_enough"}:
            raise DataError(
                f"the claims of {name or 'one set'} have labels of two kinds: {', '.join(sorted(found))}",
                hint="name the set of each claim in a field called set",
            )
        # One label alone would always be right.
        if found == {"not_supported"}:
            found.add("supported")
        elif len(found) == 1:
            found.update(VERDICT_LABELS)
    return {name: sorted(found) for name, found in labels.items()}


def set_of(claim: Claim) -> str:
    """The claim set that a claim is of: its field `set`."""
    return str(claim.meta.get("set", ""))


def _judge_all(
    system: ClaimSystem,
    claims: Sequence[Claim],
    choices: Mapping[str, Sequence[ClaimLabel]],
    folder: Path,
    settings: EvaluationSettings,
    header: Mapping[str, Any],
) -> None:
    """Append the records of all claims that have none yet."""
    journal = runner.open_journal(folder)
    unjudged = journal.unanswered(iter(claims))
    done = len(journal.answered)
    with (
        disk_errors(journal.path),
        Progress(len(claims), "claims", "evaluate", initial=done) as bar,
    ):
        while batch := list(islice(unjudged, settings.batch_size)):
            runner.write_state(folder, header)
            records = []
            for claim, verdict in zip(batch, system.judge(batch), strict=True):
                shares_ms = runner.shares_of(verdict.timings_ms, len(batch))
                extra = {"groups": field_values(claim, settings.by), "timings_ms": shares_ms}
                possible = choices.get(set_of(claim), VERDICT_LABELS)
                records.append(_record(claim, verdict, possible, system.index, extra))
            journal.append(records)
            bar.update(len(batch))
        journal.finish(folder / runner.RECORDS_NAME, [claim.id for claim in claims])


def _record(
    claim: Claim,
    verdict: Verdict,
    choices: Sequence[ClaimLabel],
    index: Index | None,
    extra: Mapping[str, object],
) -> QuestionRecord:
    """The record of a claim.

    Args:
        extra: further fields.
    """
    fields: dict[str, object] = {
        "id": claim.id,
        "question": claim.text,
        "answers": [claim.label] if claim.label else [],
        "probabilities": dict(verdict.probabilities),
        "stage": None,
        "hits": [
            StoredHit(id=step.passage_id, title=step.title, score=step.score, text=step.text)
            for step in verdict.path
        ],
        **extra,
    }
    prediction: str = verdict.label
    if verdict.probabilities:
        prediction, fields["confidence"] = likeliest(verdict.probabilities, choices)
    else:
        fields["notice"] = verdict.notice
    found = {} if index is None else _found_sentences(claim, verdict, index)
    scores: dict[str, float] = {}
    if claim.label is not None:
        gold_sets = [list(map(_sentence_key, gold_set)) for gold_set in claim.gold_sets]
        scores = score_claim(claim.label, prediction, gold_sets, list(found))
        if index is None:
            # The evidence was given, not found.
            scores = {"label_accuracy": scores["label_accuracy"]}
    fields["prediction"] = prediction
    fields["sentences"] = list(found.values())
    fields["scores"] = scores
    return QuestionRecord.model_validate(fields)


def likeliest(
    probabilities: Mapping[VerdictLabel, float], choices: Iterable[ClaimLabel]
) -> tuple[str, float]:
    """The likeliest of the labels that a set has, and its probability among these.

    Example:
        >>> likeliest({"supported": 0.4, "refuted": 0.3, "not_enough": 0.3}, ["supported", "not_supported"])
        ('not_supported', 0.6)
    """
    shares = {str(label): share for label, share in probabilities.items()}
    shares["not_supported"] = probabilities["refuted"] + probabilities["not_enough"]
    candidates = {label: shares[label] for label in choices}
    best = max(candidates, key=candidates.__getitem__)
    return best, candidates[best] / max(sum(candidates.values()), 1e-9)


def _found_sentences(
    claim: Claim, verdict: Verdict, index: Index
) -> dict[Hashable, tuple[str, int]]:
    """The best sentence of each passage, the deciding one first.

    Returns:
        The key of a sentence, or of the gold sentence that it is → the title of its passage, and
        the number of the sentence in it.
    """
    found: dict[Hashable, tuple[str, int]] = {}
    path = sorted(verdict.path, key=lambda step: step is not verdict.evidence)
    for step in path[:MOST_SENTENCES]:
        start, end = step.supporting[0]
        number = sentence_spans(step.text).index((start, end))
        names = {step.title, step.passage_id, index.document_of(step.passage_id)}
        key: Hashable = (step.passage_id, start, end)
        for sentence in chain.from_iterable(claim.gold_sets):
            if _is_sentence(sentence, names, number, step.text[start:end]):
                key = _sentence_key(sentence)
        found[key] = (step.title or step.passage_id, number)
    return found


def _is_sentence(sentence: GoldSentence, names: set[str], number: int, text: str) -> bool:
    if sentence.article and sentence.article not in names:
        return False
    if sentence.text:
        return text.strip() in sentence.text or sentence.text.strip() in text
    return sentence.sentence == number


def _sentence_key(sentence: GoldSentence) -> Hashable:
    return (sentence.article, sentence.text or sentence.sentence)


def _figures(path: Path, settings: EvaluationSettings) -> dict[str, Any]:
    """All figures, ready for `metrics.json`."""
    figures = summarise(read_records(path), settings)
    labelled = [record for record in read_records(path) if record.answers]
    figures["calibration"] = measure_calibration(
        np.array([record.confidence for record in labelled], np.float64),
        np.array([record.scores["label_accuracy"] for record in labelled], np.float64),
    )
    figures["figures"]["macro_f1"] = _macro_f1(labelled, settings)
    for name, groups in figures["groups"].items():
        for group in groups:
            members = [record for record in labelled if record.groups[name] == group["value"]]
            group["figures"]["macro_f1"] = _macro_f1(members, settings)
    return figures


def _macro_f1(records: Sequence[QuestionRecord], settings: EvaluationSettings) -> dict[str, Any]:
    if not records:
        return bootstrap([]).to_json()
    labels = [record.answers[0] for record in records]
    predicted = [record.prediction or "" for record in records]
    return macro_f1(labels, predicted, seed=settings.seed).to_json()


def _write_predictions(folder: Path) -> None:
    """Write the verdicts in the form that FEVER's scorer reads."""
    lines = []
    for record in read_records(folder / runner.RECORDS_NAME):
        evidence = [[fever_title(title), number] for title, number in record.sentences]
        label = _FEVER_LABELS.get(record.prediction or "", "NOT ENOUGH INFO")
        identifier: str | int = record.id
        if record.id.isdecimal() and record.id == str(int(record.id)):
            # FEVER's ids are numbers; "007" is none.
            identifier = int(record.id)
        lines.append({"id": identifier, "predicted_label": label, "predicted_evidence": evidence})
    write_json_lines(folder / PREDICTIONS_NAME, lines)


def _notes(system: ClaimSystem, claims: Sequence[Claim], folder: Path) -> list[str]:
    """Warnings about the figures."""
    notes = []
    unjudged = [
        record.question for record in read_records(folder / runner.RECORDS_NAME) if record.notice
    ]
    if unjudged:
        notes.append(
            f"{len(unjudged):,} claims are questions, were not judged and count as wrong: "
            f"{unjudged[0]}"
        )
    if system.index is not None:
        missing = _claims_without_articles(system.index, claims)
        if missing:
            notes.append(
                f"the evidence of {len(missing):,} of {len(claims):,} claims, such as "
                f"{missing[0]!r}, names articles that are not in this index, and counts as not found"
            )
    return notes


def _claims_without_articles(index: Index, claims: Sequence[Claim]) -> list[str]:
    """Ids of the claims whose gold sets all name an article that the index lacks."""
    titles = CorpusTexts(index.passages, of=attrgetter("title"))

    def is_here(article: str) -> bool:
        is_passage = index.passages.row_of(article) is not None
        return is_passage or article in titles or index.documents.row_of(article) is not None

    missing = []
    for claim in claims:
        article_sets = [
            {sentence.article for sentence in gold_set} - {""} for gold_set in claim.gold_sets
        ]
        if article_sets and not any(all(map(is_here, articles)) for articles in article_sets):
            missing.append(claim.id)
    return missing
