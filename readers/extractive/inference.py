"""Run rows through the network in length-sorted batches under a token budget, and search their spans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rag.core.arrays import Float32, Int64
from rag.runtime.backbone import pad
from rag.runtime.fast.packing import plan_batches
from readers.extractive.layout import PairTemplate, Row
from readers.extractive.model import Logits, LogitsModel, Skim

_MAX_ROWS = 64


@dataclass(frozen=True, slots=True)
class RowScores:
    """Results for R rows, in the order the rows were given; K spans per row.

    Attributes:
        spans: (R, K) float32 start + end logit, descending, -inf where a row has fewer spans.
        starts, ends: (R, K) int64 positions in the row, ends inclusive.
        nulls: (R,) float32 start + end logit of [CLS].
        relevances: (R,) float32 passage logits, zero for a network without passage selection.
        words: (R, 2) float32 scores of "yes" and "no", comparable with `spans`; -inf for networks without
            these answers.
        skims: (R,) float32 score of the whole row by the early head; zero if it was not used.
    """

    spans: Float32
    starts: Int64
    ends: Int64
    nulls: Float32
    relevances: Float32
    words: Float32
    skims: Float32

    def take(self, numbers: Int64) -> RowScores:
        """The scores of the rows with these numbers, in this order."""
        return RowScores(*(getattr(self, name)[numbers] for name in RowScores.__slots__))

    @classmethod
    def joined(cls, parts: Sequence[RowScores]) -> RowScores:
        """Concatenate the rows of all parts."""
        return cls(*(np.concatenate([getattr(p, name) for p in parts]) for name in cls.__slots__))


def map_rows(
    model: LogitsModel,
    template: PairTemplate,
    rows: Sequence[Row],
    use: Callable[[list[int], torch.Tensor, torch.Tensor, Logits], None],
    *,
    floors: Float32 | None = None,
    device: str = "cpu",
) -> None:
    """Run all rows, longest first, in even batches of about `model.batch_tokens` tokens.

    Args:
        use: called for each batch of r rows, in any order and possibly from several threads, with the rows'
            numbers, token ids (r, L), a mask of text tokens (r, L) bool, and the logits.
        floors: (R,) lowest score by the early head; rows below it are dropped.
    """

    @torch.inference_mode()
    def run(part: list[int]) -> None:
        ids, mask, types, text = row_tensors(template, [rows[i] for i in part])
        skim = None
        if floors is not None:
            inside = text.clone()
            inside[:, template.cls_position] = True
            skim = Skim(inside, torch.from_numpy(floors[part]))
        use(part, ids, text, model.logits(ids.to(device), mask.to(device), types.to(device), skim))

    # of nearly equal size, a multiple of the workers in number: these then end at nearly the same time
    lengths = [len(row.ids) for row in rows]
    workers, run_all = (1, map) if model.pool is None else (torch.get_num_threads(), model.pool.map)
    count = max(1, workers * -(-sum(lengths) // (workers * model.batch_tokens)))
    even = sum(lengths) // count + max(lengths, default=0) // 2
    plan = plan_batches(lengths, max_rows=_MAX_ROWS, max_tokens=even)
    for _ in run_all(run, plan):
        pass


def row_tensors(
    template: PairTemplate, rows: Sequence[Row]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token ids, mask and segments (R, L) int64, and a mask of text tokens (R, L) bool."""
    ids, mask = pad([row.ids for row in rows], template.pad)
    column = torch.arange(ids.shape[1])
    places = torch.tensor([(row.types_from, row.text_from, row.text_to) for row in rows])  # (R, 3)
    second, begin, end = places.T[:, :, None]  # (R, 1) each
    low, _, high = template.types
    types = torch.where((column >= second) & mask.bool(), high, low)
    return ids, mask, types, (column >= begin) & (column < end)


def span_scores(
    start_logits: torch.Tensor,
    end_logits: torch.Tensor,
    start_allowed: torch.Tensor,
    end_allowed: torch.Tensor,
    width: int,
) -> torch.Tensor:
    """Start + end logits (…, L, width) of every span, by first token and length − 1; −inf where not allowed.

    Args:
        start_logits, end_logits, start_allowed, end_allowed: (…, L); bool where an answer may start or end.
        width: longest span in tokens.
    """
    floor = float("-inf")
    start = start_logits.masked_fill(~start_allowed, floor)
    end = end_logits.masked_fill(~end_allowed, floor)
    padded = torch.nn.functional.pad(end, (0, width - 1), value=floor)
    return start.unsqueeze(-1) + padded.unfold(-1, width, 1)


def best_spans(
    start_logits: torch.Tensor,
    end_logits: torch.Tensor,
    start_allowed: torch.Tensor,
    end_allowed: torch.Tensor,
    max_tokens: int,
    top_k: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The `top_k` spans with the highest start + end logit in every row, of at most `max_tokens` tokens.

    Returns:
        scores (R, top_k) float32, descending, -inf where a row has fewer spans; starts and ends (R, top_k)
        int64, the end inclusive.
    """
    width = min(max_tokens, start_logits.shape[1])
    scores = span_scores(start_logits, end_logits, start_allowed, end_allowed, width)
    scores = scores.flatten(1)  # (R, L·width)
    values, flat = scores.topk(min(top_k, scores.shape[1]), dim=-1)
    starts, ends = flat // width, flat // width + flat % width
    absent = (0, top_k - values.shape[1])
    starts, ends = torch.nn.functional.pad(torch.stack([starts, ends]), absent)
    return torch.nn.functional.pad(values, absent, value=float("-inf")), starts, ends
