"""Make training examples from questions and a corpus: positives, and hard negatives with
provenance.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from indexers.gold import GoldLookup, GoldPassages, text_key
from indexers.index import Index
from rag.config import load_config
from rag.core.arrays import Float32
from rag.core.errors import DataError
from rag.core.files import atomic_write_json, check_target, directory_lock, hash64, sha256_file
from rag.core.types import Hit, Passage, Query, Question
from rag.data.examples import Candidate, Example, write_examples
from rag.data.questions import draw_sample, questions_digest, read_questions
from rag.data.text import AnswerMatcher
from retrievers.examples.data import answer_matcher
from retrievers.negatives.blocks import BlockFolder, merge_examples
from retrievers.negatives.settings import MiningSettings
from retrievers.open import open_retriever
from retrievers.protocols import TextEncoder

BLOCK_QUESTIONS = 512
_WEAK_DEPTH = 100


def mine(
    index: str | Path,
    questions: str | Path,
    out: str | Path,
    *,
    index_encoder: str | None = None,
    limit: int | None = None,
    sample: int | None = None,
    merge: str | Path | None = None,
    **settings: object,
) -> dict[str, Any]:
    """Write DPR's training JSON for a question set, with negatives from the index.

    Memory does not grow with the number of questions. After every 512 questions, results are saved
    in `OUT.mining/`, from which a killed run resumes, with the same output.

    Args:
        out: the result; `OUT.report.json` beside it says how it was made.
        index_encoder: the index's encoder, if it was moved.
        limit: number of questions, from the beginning of the set; None means all.
        sample: size of a random sample of them, drawn with the settings' seed, in the order of the
            set.
        merge: another training file, for the union of both; it is held in memory.
        **settings: fields of `MiningSettings` (source, ranks, per_question, margin, …).

    Returns:
        The report: settings, index, questions, and "counts" by name: questions, examples, written,
        negatives, short (examples with fewer negatives than requested), "positive …" by how it was
        identified, "source …" of negatives, "removed …" candidates by reason.

    Raises:
        ConfigError: the index lacks what the settings need.
        DataError: no question has a positive.
        MismatchedArtifactError: unfinished blocks of another run are in the way.
    """
    mining = load_config(MiningSettings, overrides=settings)
    target = Path(out)
    check_target(target)
    work_dir = target.with_name(target.name + ".mining")

    read_set = partial(_selected_questions, questions, limit, sample, mining.seed)
    # A wrong file of questions is named before the index and its encoder are loaded.
    n_questions, repeated = _repeated_questions(questions)
    total = min(size for size in (n_questions, limit, sample) if size is not None)
    with Index.open(index) as opened_index, directory_lock(work_dir):
        miner = Miner(opened_index, mining, encoder=index_encoder, repeated=repeated)
        run = {
            "settings": mining.model_dump(mode="json"),
            "index": opened_index.version,
            "questions": questions_digest(questions),
            "limit": limit,
            "sample": sample,
        }
        blocks = BlockFolder(work_dir, run)
        blocks.fill(iter(read_set()), miner.mine, total=total, size=BLOCK_QUESTIONS, verb="mine")
        counts = blocks.counts()
        if not counts["examples"]:
            blocks.remove()
            summary = ", ".join(f"{name}: {count:,}" for name, count in counts.items())
            raise DataError(
                f"{questions}: no question has a positive passage in {index} ({summary})",
                hint="give gold passages or answers with the questions, or another corpus",
            )
        examples = blocks.examples()
        merged = None
        if merge is not None:
            examples = merge_examples(examples, merge)
            merged = sha256_file(merge)
        counts["written"] = write_examples(target, examples)
        report = {"counts": dict(counts), **run, "merge": merged}
        atomic_write_json(target.with_name(target.name + ".report.json"), report)
        blocks.remove()
    return report


def _selected_questions(
    questions: str | Path, limit: int | None, sample: int | None, seed: int
) -> Iterable[Question]:
    """The first questions of a set, or a sample of them."""
    first = islice(read_questions(questions), limit)
    return first if sample is None else draw_sample(first, sample, seed)


def _repeated_questions(questions: str | Path) -> tuple[int, dict[str, list[Question]]]:
    """The number of questions of a set, and those of several records that ask the same, by text."""
    counts = Counter(hash64(question.text.encode()) for question in read_questions(questions))
    repeated = defaultdict[str, list[Question]](list)
    if len(counts) < counts.total():
        for question in read_questions(questions):
            if counts[hash64(question.text.encode())] > 1:
                repeated[question.text].append(question)
    return counts.total(), repeated


class Miner:
    """Searches an index for questions and makes examples of what it finds.

    Args:
        repeated: questions of several records that ask the same, by text: what is gold for one of
            them is no negative of another.
    """

    def __init__(
        self,
        index: Index,
        settings: MiningSettings,
        *,
        encoder: str | None,
        repeated: Mapping[str, Sequence[Question]],
    ) -> None:
        self._repeated = repeated
        self._index = index
        self._passages = index.passages
        self._documents = index.documents
        self._settings = settings
        self._sources: tuple[str, ...] = (settings.source,)
        if settings.source == "both":
            self._sources = ("bm25", "dense")
        self._retrievers = {
            source: open_retriever(index, source, encoder=encoder) for source in self._sources
        }
        self._encoder: TextEncoder | None = None
        if settings.margin is not None:
            dense = self._retrievers.get("dense")
            dense = dense or open_retriever(index, "dense", encoder=encoder)
            self._encoder = dense.encoder
        search = self._retrievers[self._sources[0]].search
        self._gold = GoldLookup(index.passages, index.documents, search)

    def mine(self, questions: Sequence[Question], *, counts: Counter[str]) -> list[Example]:
        """Examples of one block; questions without a positive are left out and counted.

        Args:
            counts: the counts of the report, to be added to.
        """
        settings = self._settings
        texts = [question.text for question in questions]
        top_k = settings.rank_range[-1]
        if settings.weak_positives:
            top_k = max(top_k, _WEAK_DEPTH)
        found = {source: self._retrievers[source].search(texts, top_k) for source in self._sources}
        vectors: Iterable[Float32 | None] = [None] * len(texts)  # (D,) of each question
        if self._encoder is not None:
            vectors = self._encoder.encode_queries(list(map(Query, texts)))
        counts["questions"] += len(questions)
        examples = []
        golds = self._gold.find(questions)
        for number, (question, gold, vector) in enumerate(
            zip(questions, golds, vectors, strict=True)
        ):
            hits = {source: lists[number] for source, lists in found.items()}
            ranked = [hit.row for hit in hits[self._sources[0]]]
            if gold.how == "none" and settings.weak_positives:
                gold = self._weak_positive(gold, question, ranked[:_WEAK_DEPTH])
            counts[f"positive {gold.how}"] += 1
            counts["gold passages outside the corpus"] += len(gold.missing)
            if gold.how == "none":
                continue
            positive_rows = gold.rows
            if gold.how == "document":
                positive_rows = self._answering_passages(
                    gold.rows, ranked, answer_matcher(question)
                )
            positives = (*self._passages.get_many(positive_rows), *gold.missing)
            example = Example.labelled(question.id, question.text, question.answers, positives)
            example = replace(example, answer_profile=question.answer_profile)
            # Passages of a gold document that hold no answer are no negatives either, nor is the
            # question itself where it is in the corpus.
            itself = self._documents.rows(question.id) if question.is_left_out else ()
            of_others = self._gold.find(self._repeated.get(question.text, ()))
            also_gold = chain.from_iterable(other.rows for other in of_others)
            excluded = tuple(dict.fromkeys((*positive_rows, *gold.rows, *itself, *also_gold)))
            negatives = self._negatives(example, excluded, hits, vector, counts)
            examples.append(replace(example, candidates=(*example.candidates, *negatives)))
        return examples

    def _weak_positive(
        self, gold: GoldPassages, question: Question, rows: Sequence[int]
    ) -> GoldPassages:
        """The first of these passages that holds an answer, in place of an unknown gold one."""
        matcher = answer_matcher(question)
        for row in rows:
            if matcher.matches(self._passages[row].text):
                return GoldPassages((row,), how="weak")
        return gold

    def _answering_passages(
        self, rows: Sequence[int], ranked: Sequence[int], matcher: AnswerMatcher
    ) -> tuple[int, ...]:
        """The passages of the gold documents that contain an answer; without any, the first
        retrieved one.
        """
        ranks = {row: rank for rank, row in enumerate(ranked)}
        ordered = sorted(rows, key=lambda row: ranks.get(row, len(ranks)))
        matching = [row for row in ordered if matcher.matches(self._passages[row].text)]
        return tuple(matching or ordered[:1])

    def _negatives(
        self,
        example: Example,
        excluded_rows: tuple[int, ...],
        hits: Mapping[str, Sequence[Hit]],
        vector: Float32 | None,
        counts: Counter[str],
    ) -> list[Candidate]:
        """The best hits that are no positives; texts are read one by one, only when needed.

        Args:
            excluded_rows: rows of passages that are no negatives, the positives first.
            vector: (D,) of the question, where a margin is asked for.
        """
        settings = self._settings
        proposals = candidates_by_rank(hits, settings.rank_range)
        if settings.margin is not None and vector is not None:
            scores = self._vectors_of(example, excluded_rows, proposals) @ vector
            below = below_margin(proposals, scores[1:], float(scores[0]), settings.margin)
            counts["removed margin"] += len(proposals) - len(below)
            proposals = below
        negative_filter = NegativeFilter(example, excluded_rows)
        negatives: list[Candidate] = []
        for proposal in proposals:
            if len(negatives) == settings.per_question:
                break
            passage = self._passages[proposal.row]
            reason = negative_filter.reason(proposal.row, passage)
            if reason:
                counts[f"removed {reason}"] += 1
                continue
            counts[f"source {proposal.source}"] += 1
            score = round(proposal.score, 5)
            negatives.append(
                Candidate(passage, "hard_negative", proposal.source, proposal.rank, score)
            )
        counts["examples"] += 1
        counts["negatives"] += len(negatives)
        counts["short"] += len(negatives) < settings.per_question
        return negatives

    def _vectors_of(
        self, example: Example, positive_rows: Sequence[int], proposals: Sequence[Proposal]
    ) -> Float32:
        """The vectors (1 + n, D) of the first positive and of n proposals.

        Args:
            positive_rows: rows of the positives, the first one first; empty if all lie outside of
                the corpus.
        """
        rows = [*positive_rows[:1], *(proposal.row for proposal in proposals)]
        vectors = self._index.require_dense().embeddings.rows(np.array(rows, np.int64))
        if positive_rows:
            return vectors
        assert self._encoder is not None
        positive = example.positives[0]
        outside = self._encoder.encode_passages([positive.title], [positive.text])
        return np.concatenate([outside, vectors])


@dataclass(frozen=True, slots=True)
class Proposal:
    """A hit that may become a negative.

    Attributes:
        row: row in the corpus.
        source: "bm25" or "dense"; "bm25+dense" if both retrieved it, the one with the better rank
            first.
        rank: 1-based, in the search named first.
        score: score from the search named first.
    """

    row: int
    source: str
    rank: int
    score: float


def candidates_by_rank(
    retrieved: Mapping[str, Sequence[Hit]], ranks: Iterable[int]
) -> list[Proposal]:
    """Hits of some ranks (1-based) of every source, interleaved by rank, each passage once.

    Example:
        >>> bm25, dense = [Hit(7, "g", 9.0), Hit(3, "c", 8.0)], [Hit(3, "c", 0.5)]
        >>> [(c.row, c.source) for c in candidates_by_rank({"bm25": bm25, "dense": dense}, (1, 2))]
        [(7, 'bm25'), (3, 'dense+bm25')]
    """
    merged: dict[int, Proposal] = {}
    for rank in ranks:
        for source, hits in retrieved.items():
            for hit in hits[rank - 1 : rank]:
                if hit.row in merged:
                    earlier = merged[hit.row]
                    merged[hit.row] = replace(earlier, source=f"{earlier.source}+{source}")
                else:
                    merged[hit.row] = Proposal(hit.row, source, rank, hit.score)
    return list(merged.values())


class NegativeFilter:
    """Rejects passages that are not negatives: the positives, their copies, passages with an
    answer.

    Args:
        example: the question with its positives, of the corpus or not.
        positive_rows: rows of the positives.
    """

    def __init__(self, example: Example, positive_rows: Collection[int]) -> None:
        self._matcher = answer_matcher(example)
        self._rows = positive_rows
        self._texts = {text_key(passage.text) for passage in example.positives}

    def reason(self, row: int, passage: Passage) -> str:
        """Why the passage is no negative of this question, "gold" or "answer"; empty if it may
        be.
        """
        if row in self._rows or text_key(passage.text) in self._texts:
            return "gold"
        return "answer" if self._matcher.matches(passage.text) else ""


def below_margin(
    candidates: Sequence[Proposal], scores: np.ndarray, positive_score: float, margin: float
) -> list[Proposal]:
    """Candidates whose model score (n,) is below the positive's by a margin: s ≤ s⁺ − (1 − margin)
    · |s⁺|.

    Source: Moreira et al. 2024, "NV-Retriever: Improving text embedding models with effective
        hard-negative mining", TopK-PercPos; the form with |s⁺| is the same for positive scores and
        right for negative ones.
    """
    limit = positive_score - (1 - margin) * abs(positive_score)
    scored = zip(candidates, scores.tolist(), strict=True)
    return [candidate for candidate, score in scored if score <= limit]
