"""The extractive reader: answers are spans of the passages."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rag.core.arrays import Float32
from rag.core.types import AnswerSet, Passage
from rag.runtime.hardware import resolve_device, resolve_precision
from readers.confidence import likelihoods
from readers.extractive.files import load_parts
from readers.extractive.inference import RowScores, score_rows
from readers.extractive.layout import Row, continuations, pair_template, rows_of_pairs, tokenize_texts
from readers.extractive.model import FastSpanModel, LogitsModel
from readers.extractive.settings import ReaderSettings
from readers.extractive.waves import read_waves
from readers.manifest import Calibration, with_overrides
from readers.paths import PATH_WEIGHT
from readers.protocols import PassageLists, ScoreLists, check_request
from readers.ranking import Pair, PassageRows


class ExtractiveReader:
    """Reads answers out of passages with a span model.

    Span scores are start + end logits. A reader trained with shared normalisation makes them comparable
    across the passages of a question; a DPR reader ranks by its passage selection logit first.

    Args:
        model: network, already on its device and in its dtype.
        tokenizer: fast tokenizer (it gives character offsets).
        calibration: turns scores into probabilities.
    """

    reads_paths = True  # `read` knows `from_paths`

    def __init__(
        self,
        model: LogitsModel,
        tokenizer: Any,
        settings: ReaderSettings,
        calibration: Calibration | None = None,
        *,
        name: str = "reader",
        device: str = "cpu",
    ) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.settings = settings
        self.calibration = calibration or Calibration()
        self.name = name
        self.device = device
        template = pair_template(tokenizer)
        self.template = template if settings.final_separator else replace(template, after=())
        self._continues = continuations(tokenizer)

    @classmethod
    def load(
        cls,
        name_or_path: str | Path | None = None,
        *,
        precision: str = "auto",
        device: str = "auto",
        **overrides: Any,
    ) -> ExtractiveReader:
        """Load a reader; see `open_reader`.

        Args:
            name_or_path: None for the weights that ship with the package; a folder of `rag train reader`;
                or a Hugging Face name or folder of any `AutoModelForQuestionAnswering` or `DPRReader`
                checkpoint.
            precision: "fp32"; "bf16"; "int8" (linear layers in int8, for readers that come with ranges of
                their activations, on CPUs); or "auto", the fastest of these that the reader and the hardware
                allow.
            overrides: fields of `ReaderSettings` to replace.
        """
        parts = load_parts(name_or_path)
        where = resolve_device(device)
        if where == "cpu" and FastSpanModel.supports(parts.loaded):
            model: LogitsModel = FastSpanModel(parts.loaded, precision, parts.ranges)
        else:
            model = parts.model.to(where).to_compute(resolve_precision(precision, where))
        stated, settings = parts.manifest, with_overrides(parts.manifest.settings, overrides)
        return cls(model, parts.tokenizer, settings, stated.calibration, name=stated.name, device=where)

    def read(
        self,
        questions: Sequence[str],
        passages: PassageLists,
        scores: ScoreLists,
        n_best: int = 5,
        *,
        from_paths: bool = False,
    ) -> list[AnswerSet]:
        """Answer each question from its passages; see `Reader.read`. All questions share the forward passes.

        With `from_paths` the scores are `readers.paths.hop_scores`.
        """
        check_request(questions, passages, scores, n_best)
        settings = self.settings
        if from_paths:
            settings = settings.model_copy(update={"retrieval_weight": PATH_WEIGHT, "effort": "full"})
        most = sum(settings.reading.waves) or None  # further passages are never read
        best = [np.argsort(-np.asarray(own, float), kind="stable")[:most].tolist() for own in scores]
        rows = self.rows(questions, passages, best)
        ranked = read_waves(rows, scores, settings, self.calibration, self.score_rows, depth=self.model.depth)
        return [
            each.result(question, texts, ranks, likelihoods(each, self.calibration), n_best)
            for each, question, texts, ranks in zip(ranked, questions, passages, scores, strict=True)
        ]

    def score(self, questions: Sequence[str], passages: PassageLists) -> tuple[PassageRows, RowScores]:
        """Run the network over all windows of all passages; `QuestionRanker` makes answers of the result.

        The early head, if there is one, computes its scores too, but drops nothing.
        """
        everything = self.rows(questions, passages)
        floors = np.full(len(everything.rows), -np.inf, np.float32) if self.model.skim_layer else None
        return everything, self.score_rows(everything.rows, floors)

    def rows(
        self,
        questions: Sequence[str],
        passages: PassageLists,
        places: Sequence[Collection[int]] | None = None,
    ) -> PassageRows:
        """All windows of all passages of each question, or of those at these places of its list."""
        numbers: dict[tuple[str, str], int] = {}  # each text is tokenised once
        unique: list[Passage] = []
        pairs: list[Pair] = []
        for question, own in enumerate(passages):
            for place, passage in enumerate(own):
                if places is None or place in places[question]:
                    number = numbers.setdefault((passage.title, passage.text), len(unique))
                    unique += [passage] * (number == len(unique))
                    pairs.append((question, place, number))
        tokenized = tokenize_texts(self.tokenizer, questions)
        titles = tokenize_texts(self.tokenizer, [passage.title for passage in unique])
        texts = tokenize_texts(self.tokenizer, [passage.text for passage in unique])
        numbered = [(question, number) for question, _, number in pairs]
        rows = rows_of_pairs(self.template, self.settings, numbered, tokenized, titles, texts)
        return PassageRows(questions, pairs, unique, texts, rows)

    def score_rows(self, rows: Sequence[Row], floors: Float32 | None) -> RowScores:
        """Scores of rows; rows that the early head scores below their floor are dropped."""
        fixed = (self.model, self.template, self.settings, rows, self._continues)
        return score_rows(*fixed, floors=floors, device=self.device)

    def close(self) -> None:
        """Stop the network's worker threads; the next `read` starts them again."""
        if self.model.pool is not None:
            self.model.pool.close()
