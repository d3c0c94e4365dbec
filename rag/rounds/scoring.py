"""Add a reader's score, as a training target, to every candidate of training examples."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from rag.core.errors import ConfigError, DataError
from rag.core.files import atomic_write_json, check_target, directory_lock, sha256_file
from rag.data.examples import Example, read_examples, write_examples
from rag.metrics.significance import Interval, bootstrap
from rag.rounds.signals import Judge, matcher_of, to_judge
from retrievers.negatives.blocks import BlockFolder

_BLOCK = 64  # questions that a killed run loses at most


@dataclass(slots=True)
class ScoreReport:
    """Counts of the scoring; written beside the result as `NAME.report.json`.

    Attributes:
        counts: questions; passages scored; "without answers" (not scored: the signal is about an answer);
            "no passage holds an answer"; "constant" (all passages alike: nothing to learn from); "short"
            (fewer than two candidates); "unreadable" passages, which get no target.
        run: signal, reader with the hash of its weights, examples with theirs, depth; passages per second.
        separation: how well the signal tells passages that hold an answer from others of the same question,
            over the questions that have both: "auc", and "best", how often its best passage holds one.
    """

    counts: Counter[str] = field(default_factory=Counter)
    run: dict[str, Any] = field(default_factory=dict)
    separation: dict[str, Interval] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """The report as text, line by line."""
        counts, reader = self.counts, self.run["reader"]
        return [
            f"{counts['questions']:,} questions, {counts['passages']:,} passages scored by "
            f"{self.run['signal']} of {reader['name']} ({reader['weights_sha256'][:12]})",
            *(["questions: " + self.excluded] if self.excluded else []),
            *(
                f"{_SEPARATION[name]}: {x:.2f}, {x.n:,} questions"
                for name, x in self.separation.items()
                if x.n
            ),
        ]

    @property
    def excluded(self) -> str:
        """Number of questions that cannot be learned from, by reason."""
        return ", ".join(
            f"{self.counts[name]:,} {why}" for name, why in _EXCLUDED.items() if self.counts[name]
        )


_SEPARATION = {
    "auc": "AUC of passages with an answer against the others of a question",
    "best": "the best passage holds an answer",
}
_EXCLUDED = {
    "without answers": "without answers",
    "no passage holds an answer": "whose passages hold no answer",
    "constant": "whose targets are all alike",
    "short": "with fewer than two passages",
}


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
    with ExitStack() as stack:
        stack.enter_context(directory_lock(work))
        blocks = BlockFolder(work, run)
        started, before = time.monotonic(), blocks.counts()["passages"]
        asked = islice(read_examples(examples, needs="questions"), limit)
        score = partial(score_block, judge=judge, depth=depth)
        blocks.fill(asked, score, total=total, size=_BLOCK, unit="questions", verb="score")
        report = ScoreReport(blocks.counts(), run)
        if read := report.counts["passages"] - before:
            report.run["passages_per_s"] = round(read / (time.monotonic() - started), 2)
        if not report.counts["passages"]:
            blocks.remove()
            raise DataError(
                f"{examples}: no passage of {report.counts['questions']:,} questions could be scored: "
                f"{report.excluded}",
                hint=f"the signal {judge.signal} needs "
                + ("answers and " if judge.needs_answers else "")
                + "candidates: write them with `rag retrieve` or `rag mine`",
            )
        write_examples(out, blocks.examples())
        report.separation = dict(
            zip(_SEPARATION, bootstrap([_tells(one) for one in blocks.examples()]), strict=False)
        )
        separation = {name: interval.to_json() for name, interval in report.separation.items()}
        atomic_write_json(report_path(out), {"counts": dict(report.counts), **report.run, **separation})
        blocks.remove()
    return report


def score_block(
    examples: Sequence[Example], judge: Judge, depth: int | None, counts: Counter[str]
) -> Iterator[Example]:
    """The examples with targets; adds to `counts`, which become `ScoreReport.counts`."""
    asked = [to_judge(example, depth) for example in examples]
    able = [bool(one.candidates) and (bool(one.target_answer) or not judge.needs_answers) for one in asked]
    found = iter(judge.judge([one for one, can in zip(asked, able, strict=True) if can]))
    scored = []
    counts["questions"] += len(examples)
    for example, one, can in zip(examples, asked, able, strict=True):
        targets = next(found).tolist() if can else []
        _count(one, targets, judge.needs_answers, counts)
        padded = [*targets, *[-np.inf] * (len(example.candidates) - len(targets))]
        candidates = (
            replace(candidate, target=round(target, 6) if np.isfinite(target) else None)
            for candidate, target in zip(example.candidates, padded, strict=True)
        )
        scored.append(replace(example, candidates=tuple(candidates)))
    return iter(scored)


def _tells(example: Example) -> tuple[float, float]:
    """AUC of the targets, ties half, and whether the best is of a passage with an answer; else NaN."""
    scored = [c for c in example.candidates if c.target is not None] if example.answers else []
    targets = np.array([c.target for c in scored], np.float64)
    holds = np.array([matcher_of(example).matches(c.passage.text) for c in scored], bool)
    if holds.all() or not holds.any():
        return np.nan, np.nan
    ahead = targets[holds][:, None] - targets[~holds]
    return float((ahead > 0).mean() + (ahead == 0).mean() / 2), float(holds[targets.argmax()])


def _count(one: Example, targets: Sequence[float], needs_answers: bool, counts: Counter[str]) -> None:
    given = [target for target in targets if np.isfinite(target)]
    counts["passages"] += len(given)
    counts["unreadable"] += len(targets) - len(given)
    counts["short"] += len(one.candidates) < 2
    counts["constant"] += len(given) > 1 and len(set(given)) == 1
    counts["without answers"] += needs_answers and not one.target_answer
    if one.target_answer:
        matches = matcher_of(one).matches
        counts["no passage holds an answer"] += not any(matches(p.text) for p in one.passages)
