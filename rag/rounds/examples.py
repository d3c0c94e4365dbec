"""Score what was retrieved by a reader: training examples with a target for each passage."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rag.core.arrays import Float64
from rag.core.errors import ConfigError, DataError
from rag.core.files import atomic_write_json, check_target, directory_lock, sha256_file
from rag.data.examples import Example, read_examples, write_examples
from rag.data.text import REGEX_PROFILE, most_matched
from rag.rounds.judges import Judge
from retrievers.examples.data import answer_matcher
from retrievers.negatives.blocks import BlockFolder

# Questions that a killed run loses at most.
_BLOCK = 64


def score_examples(examples: Path, out: Path, judge: Judge) -> Mapping[str, Any]:
    """Write `examples` with a target for each of a question's candidates.

    Existing targets are replaced; everything else stays. After every 64 questions, results are
    saved in `OUT.scoring/`, from which an interrupted run resumes, with the same output.

    Args:
        examples: training examples of any kind: `rag mine`'s, results of `rag retrieve`, FiD's.
        out: DPR's training JSON with targets; `OUT.report.json` beside it says where they come
            from.

    Returns:
        The report: signal, reader, checksums, and "counts" of questions, passages and what teaches
        nothing.

    Raises:
        ConfigError: `out` is `examples`.
        DataError: the examples cannot be read, no target could be given, or the reader gave NaN.
        MismatchedArtifactError: unfinished parts of another run are in the way.
    """
    if out.resolve() == examples.resolve():
        raise ConfigError(
            f"{out}: the examples would be overwritten",
            hint="choose another {out}",
            arguments=["out"],
        )
    check_target(out)
    total = sum(1 for _ in read_examples(examples, needs="questions"))
    run = {"signal": judge.signal, "reader": judge.identity, "examples": sha256_file(examples)}
    work = out.with_name(out.name + ".scoring")
    with directory_lock(work):
        blocks = BlockFolder(work, run)
        questions = read_examples(examples, needs="questions")
        score = partial(_score_block, judge=judge)
        blocks.fill(questions, score, total=total, size=_BLOCK, verb="score")
        counts = dict(blocks.counts())
        report = {"counts": counts, **run}
        if counts["passages"]:
            atomic_write_json(out.with_name(f"{out.name}.report.json"), report)
            write_examples(out, blocks.examples())
        blocks.remove()
    if not counts["passages"]:
        raise DataError(
            f"{examples}: no passage could be scored: {counts}",
            hint=f"{judge.signal} needs candidates, as of `rag retrieve`, and answers",
        )
    return report


def to_judge(example: Example) -> Example:
    """The example with a `target_answer`: the one that its file names, else its first answer, or
    what its expressions match most often.
    """
    answer = example.target_answer or next(iter(example.answers), "")
    if example.answer_profile == REGEX_PROFILE and not example.target_answer:
        texts = [passage.text for passage in example.passages]
        answer = most_matched(answer_matcher(example), texts)
    return replace(example, target_answer=answer)


def _score_block(
    examples: Sequence[Example], judge: Judge, counts: Counter[str]
) -> Iterator[Example]:
    """The examples with targets; adds to the report's `counts`."""
    judged = list(map(to_judge, examples))
    needs_answers = "likelihood" in judge.signal

    def is_readable(example: Example) -> bool:
        return bool(example.candidates and (example.target_answer or not needs_answers))

    signals = iter(judge.judge(list(filter(is_readable, judged))))
    for asked, example in zip(examples, judged, strict=True):
        is_read = is_readable(example)
        targets = next(signals) if is_read else np.full(len(example.candidates), -np.inf)
        if not (targets < np.inf).all():
            name = judge.identity["name"]
            raise DataError(
                f"{name} gives {judge.signal} {targets} for {example.question!r:.80}",
                hint="its weights are damaged, or it overflows: try precision fp32",
            )
        readable = targets[np.isfinite(targets)]
        counts["questions"] += 1
        counts["passages"] += len(readable)
        counts["unreadable"] += (len(targets) - len(readable)) * is_read
        counts["all passages alike"] += len(set(readable.tolist())) == 1
        counts["without answers"] += needs_answers and not example.target_answer
        if example.target_answer:
            matcher = answer_matcher(example)
            holding = [matcher.matches(passage.text) for passage in example.passages]
            counts["no passage holds an answer"] += not any(holding)
        yield _with_targets(asked, targets)


def _with_targets(example: Example, targets: Float64) -> Example:
    candidates = []
    for candidate, target in zip(example.candidates, targets.tolist(), strict=True):
        rounded = round(target, 6) if np.isfinite(target) else None
        candidates.append(replace(candidate, target=rounded))
    return replace(example, candidates=tuple(candidates))
