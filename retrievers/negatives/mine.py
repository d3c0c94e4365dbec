"""Make training examples from questions and a corpus: positives, and hard negatives with provenance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from indexers.gold import GoldLookup, GoldPassages
from indexers.index import Index
from rag.core.arrays import Float32
from rag.core.errors import ConfigError, DataError
from rag.core.files import atomic_write_json, check_target, directory_lock, sha256_file
from rag.core.types import Hit, Query, Question
from rag.data.examples import Candidate, Example, write_examples
from rag.data.questions import draw_sample, read_questions
from rag.data.text import AnswerMatcher
from retrievers.dense import DenseRetriever
from retrievers.examples.data import answer_matcher
from retrievers.negatives.blocks import BlockFolder, merge_examples
from retrievers.negatives.select import NegativeFilter, Proposal, below_margin, candidates_by_rank
from retrievers.negatives.settings import MiningSettings
from retrievers.open import open_encoder
from retrievers.sparse import SparseRetriever

BLOCK_QUESTIONS = 512
_WEAK_DEPTH = 100


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
        lines = [
            f"{counts['questions']:,} questions, {counts['examples']:,} with a positive; "
            f"positives found by: {part('positive ')}",
            f"{counts['negatives']:,} negatives ({mean:.1f} a question): {part('source ')}; "
            f"{counts['short']:,} questions have fewer than requested, {counts['empty']:,} none",
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
        miner = Miner(index, settings, encoder=index_encoder)
        stack.enter_context(directory_lock(work))
        run = {
            "settings": settings.model_dump(mode="json"),
            "index": index.version,
            "questions": sha256_file(questions) if Path(questions).is_file() else str(questions),
            "limit": limit,
            "sample": sample,
        }
        blocks = BlockFolder(work, run)
        total = sum(1 for _ in read())
        blocks.fill(
            read(), miner.mine_questions, total=total, size=BLOCK_QUESTIONS, unit="questions", verb="mine"
        )
        report = MiningReport(
            blocks.counts(), {**run, "merge": None if merge is None else sha256_file(merge)}
        )
        if not report.counts["examples"]:
            blocks.remove()
            raise DataError(
                f"{questions}: no question has a positive passage in {index_dir} ({report.lines()[0]})",
                hint="give gold passages or answers with the questions, or another corpus",
            )
        mined = blocks.examples()
        if merge is not None:
            mined = merge_examples(mined, merge, work)
        report.counts["written"] = write_examples(target, mined)
        atomic_write_json(
            target.with_name(target.name + ".report.json"), {"counts": dict(report.counts), **report.run}
        )
        blocks.remove()
    return report


class Miner:
    """Searches an index for questions and makes examples of what it finds.

    Args:
        encoder: the index's encoder, if it was moved: a folder or a name.

    Raises:
        ConfigError: the index was built without what the settings need.
        MismatchedArtifactError: the encoder is not the one the index was built with.
    """

    def __init__(self, index: Index, settings: MiningSettings, *, encoder: str | None = None) -> None:
        self._sources = ("bm25", "dense") if settings.source == "both" else (settings.source,)
        needed = {*self._sources, *(() if settings.margin is None else ("dense",))}
        if missing := sorted(needed.difference(index.parts)):
            why = f"source {settings.source}" if missing[0] in self._sources else "margin, a model's scores,"
            raise ConfigError(
                f"{why} needs a {missing[0]} index, which {index.directory} lacks",
                hint="build it with `rag index … --retriever hybrid`, or mine from what there is",
            )
        self._index, self._passages, self._settings = index, index.passages, settings
        self._sparse: SparseRetriever | None = None
        self._dense: DenseRetriever | None = None
        if "bm25" in needed:
            assert index.lucene is not None
            self._sparse = SparseRetriever(index.lucene, index.passages)
        if "dense" in needed:
            loaded = open_encoder(index, encoder=encoder)
            self._dense = DenseRetriever(index.require_dense().vectors, index.passages, loaded)
        searcher = self._sparse or self._dense
        assert searcher is not None
        self._gold = GoldLookup(index.passages, near=searcher.search)

    def mine_questions(self, questions: Sequence[Question], *, counts: Counter[str]) -> list[Example]:
        """Examples of one block; questions without a positive are left out and counted.

        Args:
            counts: the counts of `MiningReport.counts`, to be added to.
        """
        searched = self._search([question.text for question in questions])
        counts["questions"] += len(questions)
        examples = []
        for question, gold, (hits, vector) in zip(
            questions, self._gold.find(questions), searched, strict=True
        ):
            matcher = answer_matcher(question.answers, question.answer_mode)
            ranked = [hit.row for hit in next(iter(hits.values()))]
            if gold.how == "none" and self._settings.weak_positives:
                best = ranked[:_WEAK_DEPTH]
                weak = next((row for row in best if matcher.matches(self._passages[row].text)), None)
                gold = gold if weak is None else GoldPassages((weak,), how="weak")
            counts[f"positive {gold.how}"] += 1
            counts["gold passages outside the corpus"] += len(gold.missing)
            if gold.how == "none":
                continue
            right, wrong = gold.rows, gold.rows
            if gold.how == "document":
                right = self._of_documents(gold.rows, ranked, matcher)
                wrong = tuple(dict.fromkeys((*right, *gold.rows)))
            positives = (*self._passages.get_many(right), *gold.missing)
            example = Example.labelled(question.id, question.text, question.answers, positives)
            example = replace(example, answers_are_regex=question.answers_are_regex)
            examples.append(self._with_negatives(example, wrong, hits, vector, counts))
        return examples

    def _search(self, questions: Sequence[str]) -> list[tuple[dict[str, list[Hit]], Float32 | None]]:
        """For each question its hits by source, and its vector (D,), if there is a model."""
        settings = self._settings
        top_k = max(settings.last_rank, _WEAK_DEPTH if settings.weak_positives else 0)
        hits: dict[str, list[list[Hit]]] = {}
        if self._sparse is not None:
            hits["bm25"] = self._sparse.search(questions, top_k)
        queries = [Query(question) for question in questions]
        vectors = None if self._dense is None else self._dense.encoder.encode_queries(queries)
        if self._dense is not None and vectors is not None and "dense" in self._sources:
            hits["dense"] = self._dense.search_vectors(vectors, top_k)
        return [
            ({source: lists[number] for source, lists in hits.items()}, vector)
            for number, vector in enumerate([None] * len(queries) if vectors is None else vectors)
        ]

    def _of_documents(
        self, rows: Sequence[int], ranked: Sequence[int], matcher: AnswerMatcher
    ) -> tuple[int, ...]:
        """The passages of the gold documents that contain an answer; without any, the first retrieved one."""
        ranks = {row: rank for rank, row in enumerate(ranked)}
        ordered = sorted(rows, key=lambda row: ranks.get(row, len(ranks)))
        return tuple(row for row in ordered if matcher.matches(self._passages[row].text)) or (ordered[0],)

    def _with_negatives(
        self,
        example: Example,
        rows: tuple[int, ...],
        hits: Mapping[str, Sequence[Hit]],
        vector: Float32 | None,
        counts: Counter[str],
    ) -> Example:
        """The example with the best of its hits that are no positives.

        Args:
            rows: passages of the index that are no negatives: the positives, the first of them first.
        """
        settings, removed = self._settings, Counter[str]()
        proposals = candidates_by_rank(hits, settings.first_rank, settings.last_rank)
        if settings.margin is not None:
            assert vector is not None
            scores = self._scores(vector, [proposal.row for proposal in proposals])
            positive = self._positive_score(example, rows, vector)
            proposals = below_margin(proposals, scores, positive, settings.margin, removed)
        matcher = answer_matcher(example.answers, example.answer_mode)
        texts = [passage.text for passage in example.positives]
        allowed = NegativeFilter(matcher, rows, texts, removed)
        negatives = tuple(islice(self._accepted(proposals, allowed.accepts), settings.per_question))
        counts["examples"] += 1
        counts["negatives"] += len(negatives)
        counts["short"] += len(negatives) < settings.per_question
        counts["empty"] += not negatives
        counts.update(f"source {negative.source}" for negative in negatives)
        counts.update({f"removed {reason}": count for reason, count in removed.items()})
        return replace(example, candidates=(*example.candidates, *negatives))

    def _accepted(self, proposals: Sequence[Proposal], accepts: Callable[..., bool]) -> Iterator[Candidate]:
        """Those that pass, in order; texts are read one by one, only when needed."""
        for proposal in proposals:
            passage = self._passages[proposal.row]
            if accepts(proposal.row, passage):
                score = round(proposal.score, 5)
                yield Candidate(passage, "hard_negative", proposal.source, proposal.rank, score)

    def _scores(self, vector: Float32, rows: Sequence[int]) -> Float32:
        """The model's scores (n,) of passages for a question's vector (D,)."""
        vectors = self._index.require_dense().embeddings.rows(np.asarray(rows, np.int64))
        return np.asarray(vectors @ vector, np.float32)

    def _positive_score(self, example: Example, rows: Sequence[int], vector: Float32) -> float:
        """The model's score of the first positive, which may lie outside of the corpus."""
        if rows:
            return float(self._scores(vector, rows[:1])[0])
        assert self._dense is not None
        passage = example.positives[0]
        return float(self._dense.encoder.encode_passages([passage.title], [passage.text])[0] @ vector)
