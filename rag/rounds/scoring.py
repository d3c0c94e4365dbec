"""Add a reader's score, as a training target, to every candidate of training examples."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from rag.core.errors import ConfigError, DataError
from rag.core.files import atomic_write_json, check_target, directory_lock, sha256_file
from rag.data.examples import Example, read_examples, write_examples
from rag.rounds.signals import Judge, matcher_of, to_judge
from retrievers.negatives.blocks import BlockFolder

_BLOCK = 64  # questions that a killed run loses at most
_EXCLUDED = {
    "without answers": "without answers",
    "no passage holds an answer": "whose passages hold no answer",
    "constant": "whose targets are all alike",
    "short": "with fewer than two passages",
}


@dataclass(frozen=True, slots=True)
class ScoreReport:
    """Counts of the scoring; written beside the result as `NAME.report.json`.

    Attributes:
        counts: questions; passages scored; "without answers" (not scored: the signal is about an answer);
            "no passage holds an answer"; "constant" (all passages alike: nothing to learn from); "short"
            (fewer than two candidates); "unreadable" passages, which get no target.
        run: signal, reader with the hash of its weights, examples with theirs, depth.
        auc: mean over questions, of the probability that a passage with an answer has a larger target than
            another; NaN if no question has both.
    """

    counts: Counter[str]
    run: dict[str, Any]
    auc: float

    def lines(self) -> list[str]:
        """The report as text, line by line."""
        counts, reader = self.counts, self.run["reader"]
        excluded = ", ".join(f"{counts[name]:,} {why}" for name, why in _EXCLUDED.items() if counts[name])
        return [
            f"{counts['questions']:,} questions, {counts['passages']:,} passages scored by "
            f"{self.run['signal']} of {reader['name']} ({reader['weights_sha256'][:12]})",
            *([f"questions: {excluded}"] if excluded else []),
            f"AUC of passages with an answer against the others of a question: {self.auc:.2f}",
        ]


def report_path(out: Path) -> Path:
    """Path of the report about scored examples."""
    return out.with_name(out.name + ".report.json")


def score_examples(
    examples: Path, out: Path, judge: Judge, *, depth: int | None = None, limit: int | None = None
) -> ScoreReport:
    """Write `examples` with a target for each of a question's first `depth` candidates.

    Existing targets are replaced; everything else is kept. After every 64 questions, results are saved in
    `OUT.scoring/`, from which an interrupted run resumes, with the same output.

    Args:
        examples: training examples of any kind: `rag mine`'s, results of `rag retrieve`, FiD's.
        out: DPR's training JSON with targets; `OUT.report.json` beside it says where they come from.
        judge: gives the signal.
        depth: number of candidates per question, best first; None means all.
        limit: number of questions, from the beginning of the file; None means all.

    Raises:
        ConfigError: `out` is `examples`.
        DataError: the examples cannot be read, or no target could be given.
        MismatchedArtifactError: unfinished parts of another run are in the way.
    """
    if out.resolve() == examples.resolve():
        raise ConfigError(f"{out}: the examples would be overwritten", hint="give another --out")
    check_target(out)
    total = sum(1 for _ in islice(read_examples(examples, needs="questions"), limit))
    run = {
        "signal": judge.signal, "reader": dict(judge.identity), "examples": sha256_file(examples),
        "depth": depth, "limit": limit,
    }  # fmt: skip
    work = out.with_name(out.name + ".scoring")
    with directory_lock(work):
        blocks = BlockFolder(work, run)
        questions = islice(read_examples(examples, needs="questions"), limit)
        score = partial(_score_block, judge=judge, depth=depth)
        blocks.fill(questions, score, total=total, size=_BLOCK, unit="questions", verb="score")
        report = ScoreReport(blocks.counts(), run, _auc(blocks.examples()))
        if not report.counts["passages"]:
            blocks.remove()
            raise DataError(
                f"{examples}: no passage could be scored: {'; '.join(report.lines()[1:])}",
                hint=f"the signal {judge.signal} needs "
                + ("answers and " if judge.needs_answers else "")
                + "candidates: write them with `rag retrieve` or `rag mine`",
            )
        auc = None if np.isnan(report.auc) else report.auc
        atomic_write_json(report_path(out), {"counts": dict(report.counts), **run, "auc": auc})
        write_examples(out, blocks.examples())
        blocks.remove()
    return report


def _score_block(
    examples: Sequence[Example], judge: Judge, depth: int | None, counts: Counter[str]
) -> Iterator[Example]:
    """The examples with targets; adds to `counts`, which become `ScoreReport.counts`."""
    judged = [to_judge(example, depth) for example in examples]
    able = [bool(e.candidates) and (bool(e.target_answer) or not judge.needs_answers) for e in judged]
    signals = iter(judge.judge([example for example, can in zip(judged, able, strict=True) if can]))
    counts["questions"] += len(examples)
    for example, first, can in zip(examples, judged, able, strict=True):
        targets = next(signals).tolist() if can else []
        _count(first, targets, judge.needs_answers, counts)
        padded = [*targets, *[-np.inf] * (len(example.candidates) - len(targets))]
        candidates = (
            replace(candidate, target=round(target, 6) if np.isfinite(target) else None)
            for candidate, target in zip(example.candidates, padded, strict=True)
        )
        yield replace(example, candidates=tuple(candidates))


def _auc(examples: Iterator[Example]) -> float:
    """Mean AUC of the targets of passages with an answer, ties half; NaN if no question has both kinds."""
    values = []
    for example in examples:
        scored = [c for c in example.candidates if c.target is not None] if example.answers else []
        targets = np.array([c.target for c in scored], np.float64)
        holds = np.array([matcher_of(example).matches(c.passage.text) for c in scored], bool)
        if holds.any() and not holds.all():
            ahead = targets[holds][:, None] - targets[~holds]
            values.append(float((ahead > 0).mean() + (ahead == 0).mean() / 2))
    return float(np.mean(values)) if values else float("nan")


def _count(example: Example, targets: Sequence[float], needs_answers: bool, counts: Counter[str]) -> None:
    given = [target for target in targets if np.isfinite(target)]
    counts["passages"] += len(given)
    counts["unreadable"] += len(targets) - len(given)
    counts["short"] += len(example.candidates) < 2
    counts["constant"] += len(given) > 1 and len(set(given)) == 1
    counts["without answers"] += needs_answers and not example.target_answer
    if example.target_answer:
        matches = matcher_of(example).matches
        counts["no passage holds an answer"] += not any(matches(p.text) for p in example.passages)
