"""The extractive reader: the words of a passage that answer a question, and where they stand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rag.core.errors import ConfigError, DataError
from rag.core.types import Passage
from rag.runtime.hardware import resolve_device
from rag.runtime.precision import resolve_precision
from readers.candidates import Candidate, confidences, distinct, retrieval_prior
from readers.inference import RowScores, score_rows
from readers.layout import PairTemplate, Row, RowLayout, pair_template, rows_of_pairs
from readers.loading import load_parts
from readers.model import LogitsModel
from readers.protocols import ReadResult, SpanAnswer
from readers.settings import Calibration, ReaderSettings, with_overrides
from readers.tokens import TokenTable, tokenize_texts

__all__ = ["MAX_PASSAGE_CHARS", "MAX_QUESTION_CHARS", "ExtractiveReader"]

MAX_QUESTION_CHARS = 4_000
MAX_PASSAGE_CHARS = 200_000


class ExtractiveReader:
    """Reads answers out of passages with a span model.

    Span scores are start + end logits. A reader trained with shared normalisation makes them comparable across the
    passages of a question; a DPR reader ranks by its passage selection logit first.

    Args:
        model: network, already on its device and in its dtype.
        tokenizer: fast tokenizer (it gives character offsets).
        settings: layout, search and ranking.
        calibration: turns scores into probabilities.
        name: shown in logs and manifests.
        device: where `model` is.
        tokens_per_batch: padded tokens of one forward pass.

    Example:
        >>> reader = ExtractiveReader.load()                                        # doctest: +SKIP
        >>> passage = Passage("1", "Oslo", "Oslo is the capital of Norway.")        # doctest: +SKIP
        >>> reader.read(["What is the capital of Norway?"], [[passage]], [[1.0]])   # doctest: +SKIP
    """

    def __init__(
        self,
        model: LogitsModel,
        tokenizer: Any,
        settings: ReaderSettings,
        calibration: Calibration | None = None,
        *,
        name: str = "reader",
        device: str = "cpu",
        tokens_per_batch: int = 4096,
    ) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise ConfigError(
                f"{name}: the tokenizer {type(tokenizer).__name__} gives no character offsets",
                hint="save a fast tokenizer (tokenizer.json) beside the weights",
            )
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.settings = settings
        self.calibration = calibration or Calibration()
        self.name = name
        self.device = device
        self.tokens_per_batch = tokens_per_batch
        self.layout = _layout(settings, pair_template(tokenizer))
        self._continues = _continuations(tokenizer) if settings.whole_words else None

    @classmethod
    def load(
        cls,
        name_or_path: str | Path | None = None,
        *,
        precision: str = "auto",
        device: str = "auto",
        tokens_per_batch: int = 4096,
        **overrides: Any,
    ) -> ExtractiveReader:
        """Load a reader.

        Args:
            name_or_path: None for the weights that ship with the package; a folder of `rag train reader`; or a
                Hugging Face name or folder of any `AutoModelForQuestionAnswering` or `DPRReader` checkpoint.
            precision: "auto" (bf16 where the hardware does it), "bf16" or "fp32".
            device: "auto", "cpu" or "cuda".
            tokens_per_batch: padded tokens of one forward pass.
            overrides: fields of `ReaderSettings` to replace.

        Raises:
            ArtifactError: if there is no reader, or its files are damaged.
            ConfigError: for unknown settings or values that do not fit.
        """
        parts = load_parts(name_or_path)
        where = resolve_device(device)
        model = parts.model.to(where).to_compute(resolve_precision(precision, where))
        return cls(
            model, parts.tokenizer, with_overrides(parts.settings, overrides), parts.calibration,
            name=parts.name, device=where, tokens_per_batch=tokens_per_batch,
        )

    def read(
        self,
        questions: Sequence[str],
        passages: Sequence[Sequence[Passage]],
        scores: Sequence[Sequence[float]],
        n_best: int = 5,
    ) -> list[ReadResult]:
        """Answer each question from its own passages; all questions share the forward passes.

        Args:
            questions: B questions; tokens over `settings.question_tokens` are cut.
            passages: for each question its passages, in any order; may be empty.
            scores: for each passage its retrieval score (larger is better).
            n_best: most answers to return per question.

        Returns:
            B results. Without passages, or with empty ones only: no answers and a no-answer confidence of 1.

        Raises:
            ConfigError: if `n_best` is below 1 or the lists do not match in length.
            DataError: if a question is blank or longer than `MAX_QUESTION_CHARS`, or a passage is longer than
                `MAX_PASSAGE_CHARS`.
        """
        _check(questions, passages, scores, n_best)
        pairs, unique = _unique_passages(passages)
        asked = tokenize_texts(self.tokenizer, questions)
        titles = tokenize_texts(self.tokenizer, [passage.title for passage in unique])
        texts = tokenize_texts(self.tokenizer, [passage.text for passage in unique])
        rows = rows_of_pairs(self.layout, [(q, u) for q, _, u in pairs], asked, titles, texts)
        scored = score_rows(
            self.model, self.layout, rows, max_answer_tokens=self.settings.max_answer_tokens,
            spans_per_row=self.settings.spans_per_window, tokens_per_batch=self.tokens_per_batch,
            device=self.device,
        )
        by_question: list[list[int]] = [[] for _ in questions]
        for index, row in enumerate(rows):
            by_question[pairs[row.group][0]].append(index)
        results = []
        for question, mine in enumerate(by_question):
            chosen = np.array(mine, np.int64)
            place = np.array([pairs[rows[i].group][1] for i in mine], np.int64)  # passage of each row
            candidates = self._candidates(chosen, place, rows, scored, scores[question], pairs, unique, texts)
            null = self._null(chosen, place, scored)
            results.append(self._result(candidates, null, n_best))
        return results

    def _candidates(
        self,
        chosen: npt.NDArray[np.int64],
        place: npt.NDArray[np.int64],
        rows: Sequence[Row],
        scored: RowScores,
        retrieval: Sequence[float],
        pairs: Sequence[tuple[int, int, int]],
        unique: Sequence[Passage],
        texts: TokenTable,
    ) -> list[Candidate]:
        """Different answers of one question, best first."""
        if len(chosen) == 0:
            return []
        values = scored.spans[chosen].astype(np.float64)  # (r, K)
        if self.model.selects_passages:
            relevance = np.full(int(place.max()) + 1, -np.inf)
            np.maximum.at(relevance, place, scored.relevances[chosen].astype(np.float64))
            best = np.full_like(relevance, -np.inf)
            np.maximum.at(best, place, values[:, 0])
            values = values - best[place][:, None] + relevance[place][:, None]
        if self.settings.retrieval_weight:
            values = values + retrieval_prior(retrieval, self.settings.retrieval_weight)[place][:, None]
        row_of, rank_of = np.nonzero(np.isfinite(values))
        flat = values[row_of, rank_of]
        order = np.lexsort((rank_of, place[row_of], -flat))[: 6 * self.settings.candidates]

        def resolve(at: int, rank: int) -> Candidate:
            row = rows[int(chosen[at])]
            unique_index = pairs[row.group][2]
            offsets = texts.spans(unique_index)
            shift = row.first_token - row.text_from
            first = int(scored.starts[chosen[at], rank]) + shift
            last = int(scored.ends[chosen[at], rank]) + shift
            if self._continues is not None:
                first, last = _whole_words(texts.tokens(unique_index), first, last, self._continues)
            start, end = int(offsets[first, 0]), int(offsets[last, 1])
            return Candidate(int(place[at]), start, end, unique[unique_index].text[start:end], 0.0)

        ordered = [(float(flat[i]), int(row_of[i]), int(rank_of[i])) for i in order]
        return distinct(ordered, resolve, self.settings)

    def _null(
        self, chosen: npt.NDArray[np.int64], place: npt.NDArray[np.int64], scored: RowScores
    ) -> float | None:
        """Score of "none of these passages answers it"; None for a model that was not trained to say so."""
        if self.model.selects_passages or len(chosen) == 0:
            return None
        lowest = np.full(int(place.max()) + 1, np.inf)  # over a passage's windows the least "not here" counts
        np.minimum.at(lowest, place, scored.nulls[chosen].astype(np.float64))
        lowest = lowest[np.isfinite(lowest)]
        return float(lowest.max() if self.settings.null == "max" else lowest.mean())

    def _result(self, candidates: Sequence[Candidate], null: float | None, n_best: int) -> ReadResult:
        if not candidates:
            return ReadResult((), 1.0)
        values = np.array([candidate.score for candidate in candidates])
        probabilities, none = confidences(values, null, self.calibration)
        answers = tuple(
            SpanAnswer(c.text, c.score, float(p), c.passage_index, c.start, c.end)
            for c, p in zip(candidates[:n_best], probabilities[:n_best], strict=True)
        )
        return ReadResult(answers, none)


def _layout(settings: ReaderSettings, template: PairTemplate) -> RowLayout:
    return RowLayout(
        template, titled=settings.titled, final_separator=settings.final_separator,
        max_tokens=settings.max_tokens, stride_tokens=settings.stride_tokens,
        question_tokens=settings.question_tokens, title_tokens=settings.title_tokens,
    )


def _check(
    questions: Sequence[str],
    passages: Sequence[Sequence[Passage]],
    scores: Sequence[Sequence[float]],
    n_best: int,
) -> None:
    if n_best < 1:
        raise ConfigError(f"n_best is {n_best}, expected at least 1")
    if not len(questions) == len(passages) == len(scores):
        raise ConfigError(
            f"{len(questions)} questions, {len(passages)} lists of passages and {len(scores)} lists of scores: "
            "expected one of each per question"
        )
    for question, found, given in zip(questions, passages, scores, strict=True):
        if not question.strip():
            raise DataError("a question is blank")
        if len(question) > MAX_QUESTION_CHARS:
            raise DataError(
                f"a question has {len(question)} characters, at most {MAX_QUESTION_CHARS} are accepted"
            )
        if len(found) != len(given):
            raise ConfigError(f"{len(found)} passages but {len(given)} scores for the question {question[:60]!r}")
        for passage in found:
            if len(passage.text) > MAX_PASSAGE_CHARS:
                raise DataError(
                    f"passage {passage.id!r} has {len(passage.text)} characters, at most {MAX_PASSAGE_CHARS} "
                    "are accepted",
                    hint="split documents when indexing (`rag index --split words100`)",
                )


def _unique_passages(
    passages: Sequence[Sequence[Passage]],
) -> tuple[list[tuple[int, int, int]], list[Passage]]:
    """(question, place in its list, index of the unique passage) triples; each text is tokenised once."""
    seen: dict[tuple[str, str], int] = {}
    unique: list[Passage] = []
    pairs: list[tuple[int, int, int]] = []
    for question, found in enumerate(passages):
        for place, passage in enumerate(found):
            key = (passage.title, passage.text)
            if key not in seen:
                seen[key] = len(unique)
                unique.append(passage)
            pairs.append((question, place, seen[key]))
    return pairs, unique


def _continuations(tokenizer: Any) -> npt.NDArray[np.bool_]:
    """(V,) whether a token continues a word ("##ing")."""
    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    return np.array([str(name).startswith("##") for name in names])


def _whole_words(
    tokens: npt.NDArray[np.int32], first: int, last: int, continues: npt.NDArray[np.bool_]
) -> tuple[int, int]:
    """Extend a token span until it neither starts nor ends inside a word."""
    while first > 0 and continues[tokens[first]]:
        first -= 1
    while last + 1 < len(tokens) and continues[tokens[last + 1]]:
        last += 1
    return first, last
