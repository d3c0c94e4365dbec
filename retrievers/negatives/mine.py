"""Make training examples from questions and a corpus: positives, and hard negatives with provenance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from indexers.gold import GoldLookup, GoldPassages
from indexers.index import Index
from indexers.passages import PassageStore
from rag.core.arrays import Float32
from rag.core.errors import ConfigError, DataError
from rag.core.files import atomic_write_json, check_target, directory_lock, sha256_file
from rag.core.types import Hit, Passage, Query, Question
from rag.data.examples import Candidate, Example, write_examples
from rag.data.questions import draw_sample, read_questions
from rag.data.text import AnswerMatcher
from rag.runtime.seeds import generator
from retrievers.encoders.cross_encoder import CrossEncoder
from retrievers.examples.data import answer_matcher
from retrievers.examples.hops import HopReport, hop_examples, passage_finder
from retrievers.negatives.blocks import BlockFolder, merge_examples
from retrievers.negatives.search import MiningSearch
from retrievers.negatives.select import NegativeFilter, Proposal, below_margin, candidates_by_rank, choose
from retrievers.negatives.settings import CROSS_ENCODER_DEPTH, WEAK_DEPTH, MiningSettings

BLOCK_QUESTIONS = 512


@dataclass(slots=True)
class MiningReport:
    """Counts of a mining run; written beside its result as `NAME.report.json`.

    Attributes:
        counts: by name: questions, examples, written, negatives, short (examples with fewer negatives than
            requested), empty (with none), "positive …" by how it was identified, "source …" of negatives,
            "removed …" candidates by reason.
        run: settings, index and questions.
    """

    counts: Counter[str] = field(default_factory=Counter)
    run: dict[str, Any] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """The report as text, line by line."""
        counts = self.counts

        def part(prefix: str) -> str:
            shares = {k.removeprefix(prefix): v for k, v in sorted(counts.items()) if k.startswith(prefix)}
            return ", ".join(f"{name} {value:,}" for name, value in shares.items()) or "none"

        mean = counts["negatives"] / max(1, counts["examples"])
        unit = "hop" if self.run.get("settings", {}).get("hops") else "question"
        lines = [
            f"{counts['questions']:,} {unit}s, {counts['examples']:,} with a positive; "
            f"positives found by: {part('positive ')}",
            f"{counts['negatives']:,} negatives ({mean:.1f} a {unit}): {part('source ')}; "
            f"{counts['short']:,} {unit}s have fewer than requested, {counts['empty']:,} none",
            f"candidates thrown out: {part('removed ')}",
        ]
        if missing := counts["gold passages outside the corpus"]:
            lines.append(
                f"{missing:,} gold passages are not in the corpus: they can be trained on, but never be found"
            )
        if counts["written"] != counts["examples"]:
            lines.append(f"{counts['written']:,} examples in all after merging")
        return lines


def mine(
    index_dir: str | Path,
    questions: str | Path,
    out: str | Path,
    settings: MiningSettings,
    *,
    index_encoder: str | None = None,
    format: str = "auto",
    split: str | None = None,
    limit: int | None = None,
    sample: int | None = None,
    merge: Path | None = None,
) -> MiningReport:
    """Write DPR's training JSON for a question set, with negatives from the index.

    Memory does not grow with the number of questions. After every 512 questions, results are saved in
    `OUT.mining/`, from which a killed run resumes, with the same output.

    Args:
        index_dir: the corpus as `rag index` built it.
        questions: whatever `read_questions` reads from files.
        out: the result; `OUT.report.json` beside it says how it was made.
        index_encoder: the index's encoder, if it was moved.
        format, split: of the question file, see `read_questions`.
        limit: number of questions, from the beginning of the set; None means all.
        sample: size of a random sample of them, drawn with the settings' seed, in the order of the set.
        merge: another training file, for the union of both.

    Raises:
        ConfigError: the index lacks what the settings need, or the questions come from standard input.
        DataError: no question has a positive.
        MismatchedArtifactError: unfinished blocks of another run are in the way.
    """
    if str(questions) == "-":
        raise ConfigError("questions are read twice, and standard input only once", hint="give a file")
    target = Path(out)
    check_target(target)
    work = target.with_name(target.name + ".mining")

    def read() -> Iterator[Question]:
        listed = islice(read_questions(questions, format, split), limit)
        return iter(listed if sample is None else draw_sample(listed, sample, settings.seed))

    with ExitStack() as stack:
        index = stack.enter_context(Index.open(index_dir))
        search = MiningSearch(index, settings, encoder=index_encoder)
        judge = None if settings.cross_encoder is None else CrossEncoder.load(settings.cross_encoder)
        stack.enter_context(directory_lock(work))
        run = {
            "settings": settings.model_dump(mode="json"),
            "index": index.version,
            "questions": sha256_file(questions) if Path(questions).is_file() else str(questions),
            "limit": limit,
            "sample": sample,
        }
        blocks = BlockFolder(work, run)
        items: Iterator[Any]
        mine_some: Callable[..., list[Example]]
        if settings.hops:
            hops = partial(hop_examples, max_hops=settings.hops, find=passage_finder(index.passages))
            total, items = sum(1 for _ in hops(read())), hops(read(), report=HopReport())
            mine_some = partial(mine_hops, search=search, settings=settings, judge=judge)
        else:
            total, items = sum(1 for _ in read()), read()
            lookup = GoldLookup(index.passages, near=search.near)
            mine_some = partial(mine_block, search=search, settings=settings, lookup=lookup, judge=judge)
        unit = "hops" if settings.hops else "questions"
        blocks.fill(items, mine_some, total=total, size=BLOCK_QUESTIONS, unit=unit, verb="mine")
        report = MiningReport(
            blocks.counts(), {**run, "merge": None if merge is None else sha256_file(merge)}
        )
        if not report.counts["examples"]:
            blocks.remove()
            raise DataError(
                f"{questions}: no question has a positive passage in {index_dir} ({report.lines()[0]})",
                hint="give gold passages or answers with the questions, or another corpus",
            )
        mined: Iterator[Example] = blocks.examples()
        if merge is not None:
            mined = merge_examples(mined, merge, work)
        report.counts["written"] = write_examples(target, mined)
        atomic_write_json(
            target.with_name(target.name + ".report.json"), {"counts": dict(report.counts), **report.run}
        )
        blocks.remove()
    return report


def mine_block(
    questions: Sequence[Question],
    *,
    search: MiningSearch,
    settings: MiningSettings,
    lookup: GoldLookup,
    judge: CrossEncoder | None,
    counts: Counter[str],
) -> list[Example]:
    """Examples of one block; questions without a positive are left out and counted.

    Args:
        counts: the counts of `MiningReport.counts`, to be added to.
    """
    passages = search.index.passages
    hits, vectors = search.search([Query(question.text) for question in questions])
    gold = lookup.find(questions)
    work: list[_Work] = []
    counts["questions"] += len(questions)
    for number, question in enumerate(questions):
        is_regex = settings.regex or question.answers_are_regex
        matcher = answer_matcher(question.answers, "regex" if is_regex else "tokens")
        retrieved = {source: lists[number] for source, lists in hits.items()}
        positives = gold[number] if settings.gold == "given" else gold[number].without_missing()
        if positives.how == "none" and settings.weak_positives:
            ranked = [hit.row for hit in next(iter(retrieved.values()))[:WEAK_DEPTH]]
            weak = next((row for row in ranked if matcher.matches(passages[row].text)), None)
            positives = positives if weak is None else GoldPassages((weak,), how="weak")
        counts[f"positive {positives.how}"] += 1
        counts["gold passages outside the corpus"] += len(positives.missing)
        if positives.how == "none":
            continue
        right = positives.rows
        if positives.how == "document":
            right = _of_documents(right, next(iter(retrieved.values())), matcher, passages)
            positives = replace(positives, rows=tuple(dict.fromkeys((*right, *positives.rows))))
        listed = (*passages.get_many(right), *positives.missing)
        example = Example.labelled(question.id, question.text, question.answers, listed)
        candidates = candidates_by_rank(retrieved, settings.first_rank, settings.last_rank)
        vector = None if vectors is None else vectors[number]
        example = replace(example, answers_are_regex=is_regex)
        work.append(_Work(example, positives.rows, candidates, matcher, vector))
    return _with_negatives(work, search, settings, judge, counts)


def _of_documents(
    rows: Sequence[int], hits: Sequence[Hit], matcher: AnswerMatcher, passages: PassageStore
) -> tuple[int, ...]:
    """The passages of the gold documents that contain an answer; without any, the first retrieved one."""
    ranks = {hit.row: rank for rank, hit in enumerate(hits)}
    ranked = sorted(rows, key=lambda row: ranks.get(row, len(ranks)))
    return tuple(row for row in ranked if matcher.matches(passages[row].text)) or (ranked[0],)


def mine_hops(
    hops: Sequence[Example],
    *,
    search: MiningSearch,
    settings: MiningSettings,
    judge: CrossEncoder | None,
    counts: Counter[str],
) -> list[Example]:
    """Examples of one block of hops: hits of a search at that hop take the place of their negatives.

    A passage of the path so far is no negative: a search over paths takes no passage twice.

    Args:
        hops: as `hop_examples` makes them of passages of the index.
        counts: the counts of `MiningReport.counts`, to be added to.
    """
    hits, vectors = search.search([hop.query for hop in hops])
    counts["questions"] += len(hops)
    counts["positive given"] += len(hops)
    work = []
    for number, hop in enumerate(hops):
        retrieved = {source: lists[number] for source, lists in hits.items()}
        ids = [passage.id for passage in (*hop.positives, *hop.context)]
        rows = tuple(row for name in ids if (row := search.index.passages.row_of(name)) is not None)
        right = replace(hop, candidates=hop.of_role("positive"))
        candidates = candidates_by_rank(retrieved, settings.first_rank, settings.last_rank)
        matcher = answer_matcher(hop.answers, "regex" if settings.regex else "tokens")
        vector = None if vectors is None else vectors[number]
        work.append(_Work(right, rows, candidates, matcher, vector))
    return _with_negatives(work, search, settings, judge, counts)


@dataclass(slots=True)
class _Work:
    """A question for which negatives are chosen.

    Attributes:
        example: with its positives.
        rows: passages of the index that are no negatives: the positives, the first of them first.
    """

    example: Example
    rows: tuple[int, ...]
    candidates: list[Proposal]
    matcher: AnswerMatcher
    vector: Float32 | None


def _apply_margin(work: Sequence[_Work], search: MiningSearch, margin: float, removed: Counter[str]) -> None:
    """Keep candidates that the model scores below the gold passage's score, with a margin."""
    outside = [item for item in work if not item.rows]
    outside_scores: dict[int, float] = {}
    if outside:
        vectors = np.stack([item.vector for item in outside if item.vector is not None])
        scores = search.scores_of(vectors, [item.example.positives[0] for item in outside])
        outside_scores = {id(item): float(score) for item, score in zip(outside, scores, strict=True)}
    for item in work:
        assert item.vector is not None
        rows = [candidate.row for candidate in item.candidates]
        scores = search.scores(item.vector, [*item.rows[:1], *rows])
        positive = outside_scores[id(item)] if id(item) in outside_scores else float(scores[0])
        item.candidates = below_margin(
            item.candidates, scores[len(scores) - len(rows) :], positive, margin, removed
        )


def _with_negatives(
    work: Sequence[_Work],
    search: MiningSearch,
    settings: MiningSettings,
    judge: CrossEncoder | None,
    counts: Counter[str],
) -> list[Example]:
    removed: Counter[str] = Counter()
    if settings.margin is not None:
        _apply_margin(work, search, settings.margin, removed)
    wanted: int | None = settings.per_question
    if judge is not None:
        wanted = CROSS_ENCODER_DEPTH
    elif settings.pick == "random":
        wanted = None
    passing: list[list[tuple[Proposal, Passage]]] = []
    for item in work:
        chosen = NegativeFilter(
            item.matcher if settings.answer_filter else None,
            item.rows,
            [passage.text for passage in (*item.example.positives, *item.example.context)],
            removed,
        )
        passing.append(list(islice(chosen.passing(item.candidates, search.index.passages), wanted)))
    if judge is not None:
        passing = _denoised(work, passing, judge, settings.keep_below, removed)
    examples: list[Example] = []
    for item, kept in zip(work, passing, strict=True):
        draw = None
        if settings.pick == "random":
            draw = generator(settings.seed, *item.example.id.encode())
        negatives = tuple(
            Candidate(passage, "hard_negative", candidate.source, candidate.rank, round(candidate.score, 5))
            for candidate, passage in choose(kept, settings.per_question, draw)
        )
        examples.append(replace(item.example, candidates=(*item.example.candidates, *negatives)))
        counts["negatives"] += len(negatives)
        counts["short"] += len(negatives) < settings.per_question
        counts["empty"] += not negatives
        counts.update(f"source {negative.source}" for negative in negatives)
    counts["examples"] += len(examples)
    counts.update({f"removed {reason}": count for reason, count in removed.items()})
    return examples


def _denoised(
    work: Sequence[_Work],
    passing: list[list[tuple[Proposal, Passage]]],
    judge: CrossEncoder,
    keep_below: float,
    removed: Counter[str],
) -> list[list[tuple[Proposal, Passage]]]:
    """Only what the cross-encoder is sure is no answer.

    Source: Qu et al. 2021, "RocketQA", section 4.2 (denoised hard negatives).
    """
    questions = [item.example.question for item, kept in zip(work, passing, strict=True) for _ in kept]
    scores = judge.score(questions, [passage for kept in passing for _, passage in kept])
    chances = iter((scores < keep_below).tolist())
    denoised = [[entry for entry in kept if next(chances)] for kept in passing]
    removed["cross-encoder"] += len(scores) - sum(map(len, denoised))
    return denoised
