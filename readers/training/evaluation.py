"""Exact match and F1 by the official SQuAD v1.1 rules, and a quick look at a model in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from rag.data.text import exact_match, f1
from readers.model import SpanModel
from readers.spans import best_spans
from readers.tokens import tokenize_texts
from readers.training.data import SquadQuestion

__all__ = ["gold_paragraph_scores", "squad_scores"]


def squad_scores(predictions: Mapping[str, str], answers: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """{"em", "f1"} in percent over all questions of `answers`; a missing prediction counts as wrong.

    Example:
        >>> squad_scores({"1": "The red house"}, {"1": ["red house"], "2": ["blue"]})
        {'em': 50.0, 'f1': 50.0}
    """
    total = max(1, len(answers))
    em = sum(float(exact_match(predictions.get(key, ""), value)) for key, value in answers.items())
    overlap = sum(f1(predictions.get(key, ""), value) for key, value in answers.items())
    return {"em": 100.0 * em / total, "f1": 100.0 * overlap / total}


@torch.inference_mode()
def gold_paragraph_scores(
    model: SpanModel,
    tokenizer: Any,
    questions: Sequence[SquadQuestion],
    *,
    max_tokens: int = 384,
    max_answer_tokens: int = 30,
    tokens_per_batch: int = 8192,
) -> dict[str, float]:
    """EM and F1 in percent with the gold paragraph given, one window per paragraph (a longer one is cut)."""
    model.eval()
    asked = tokenize_texts(tokenizer, [q.question for q in questions])
    titles = tokenize_texts(tokenizer, [q.title for q in questions])
    texts = tokenize_texts(tokenizer, [q.context for q in questions])
    cls, sep, pad = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id
    rows, heads = [], []
    for i in range(len(questions)):
        q, t = asked.tokens(i)[:64], titles.tokens(i)[:16]
        head = len(q) + len(t) + 3
        text = texts.tokens(i)[: max_tokens - head - 1]
        rows.append(np.concatenate([[cls], q, [sep], t, [sep], text, [sep]]).astype(np.int64))
        heads.append((head, len(q) + 2))
    order = np.argsort([-len(row) for row in rows], kind="stable")
    predictions: dict[str, str] = {}
    begin = 0
    while begin < len(order):
        longest = len(rows[order[begin]])
        part = order[begin : begin + max(1, tokens_per_batch // longest)]
        begin += len(part)
        ids = torch.full((len(part), longest), pad, dtype=torch.int64)
        for r, i in enumerate(part):
            ids[r, : len(rows[i])] = torch.from_numpy(rows[i])
        lengths = torch.tensor([len(rows[i]) for i in part])[:, None]
        first = torch.tensor([heads[i][0] for i in part])[:, None]
        segment = torch.tensor([heads[i][1] for i in part])[:, None]
        column = torch.arange(longest)[None, :]
        mask = column < lengths
        start, end = model(ids, mask.long(), ((column >= segment) & mask).long())
        inside = (column >= first) & (column < lengths - 1)
        _, starts, ends = best_spans(start, end, inside, max_answer_tokens, 1)
        for r, i in enumerate(part):
            offsets = texts.spans(int(i))
            a, b = int(starts[r, 0]) - heads[i][0], int(ends[r, 0]) - heads[i][0]
            predictions[questions[i].id] = questions[i].context[offsets[a, 0] : offsets[b, 1]]
    return squad_scores(predictions, {q.id: q.answers for q in questions})
