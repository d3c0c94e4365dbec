"""Fill in a masked run of words by copying it from a passage: an extractive reader in the place of
a masked language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rag.core.arrays import Bool, Int64
from rag.joint.config import MaskedTrainConfig
from rag.joint.fillers import Filled, Filler, MaskedReader, TokenLists
from rag.joint.sentences import MaskedSentence
from rag.runtime.model_files import embedded_encoder_dir
from readers.extractive.files import SHIPPED_READER, start_model
from readers.extractive.layout import Row, continuations, row_tensors
from readers.extractive.model import SpanModel
from readers.extractive.training.finish import export_trained

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class SpanFiller(Filler):
    r"""Copies the masked words of a sentence out of a passage.

        p(y | x, z) = (1 − ε) Σ_{(s,e): z[s..e] = y} P_start(s) · P_end(e) + ε

    Both softmaxes run over the passage's tokens and its [CLS], "not here". ε is what a passage
    without the words is worth, and what the null document is: no passage can do harm, and only
    those that hold the words are read.

    Args:
        model: span model; the sentence takes the question's place.
        guess: ε.

    Source:
        Guu et al. 2020, "REALM" (the objective); Lee et al. 2019, "ORQA", section 4 (spans in the
        place of words); Clark and Gardner 2018 (the probabilities).
    """

    model: SpanModel

    def __init__(
        self, model: SpanModel, tokenizer: PreTrainedTokenizerBase, *, max_tokens: int, guess: float
    ) -> None:
        super().__init__(model, tokenizer, max_tokens=max_tokens)
        self._log_guess = float(np.log(guess))
        self._log_copy = float(np.log1p(-guess))
        self._continues = continuations(tokenizer)

    @classmethod
    def load(
        cls,
        reader: str | None,
        *,
        max_tokens: int,
        guess: float,
        dropout: float = 0.0,
        device: str = "cpu",
    ) -> SpanFiller:
        """Load a reader (`shipped` is that of the package), or an encoder, which gets a fresh span
        head.

        Raises:
            ArtifactError: nothing there can be trained.
        """
        folder = str(SHIPPED_READER) if reader == "shipped" else reader
        model, tokenizer = start_model(folder, longest=max_tokens, seed=0, dropout=dropout)
        return cls(model, tokenizer, max_tokens=max_tokens, guess=guess).to(device).train()

    def to_compute(self, dtype: torch.dtype) -> SpanFiller:
        """Move the encoder to `dtype`; the heads stay fp32. Returns self."""
        self.model.to_compute(dtype)
        return self

    def save(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """See `Filler`; transformers opens the folder with `AutoModelForQuestionAnswering`."""
        self.float().load_state_dict(dict(weights), strict=False)
        export_trained(folder, self.model, self.model.state_dict(), self.tokenizer)

    def read(
        self, sentences: Sequence[MaskedSentence], passages: TokenLists, *, learning: bool = True
    ) -> Filled:
        """See `Filler`. The values stand at a sentence's first mask, where the words are filled in
        together. The objective is log Σ P_start · P_end where the passage holds the words, and the
        log-probability of "not here" where it does not; without it only the former are read.
        """
        pairs: list[tuple[MaskedSentence, Sequence[int]]] = []
        for sentence, of_sentence in zip(sentences, passages, strict=True):
            pairs += [(sentence, passage) for passage in of_sentence]
        rows: list[Row] = []
        # Numbers of the pairs that are read; and of each right span the row, first and last token.
        numbers: list[int] = []
        spans: list[tuple[int, int, int]] = []
        for number, (sentence, passage) in enumerate(pairs):
            row = self._row(sentence, passage)
            text = row.ids[row.text_from : row.text_to]
            starts = _occurrences(text, sentence.targets, self._continues) + row.text_from
            if len(starts) or (learning and len(text)):
                for first in starts.tolist():
                    spans.append((len(rows), first, first + len(sentence.targets) - 1))
                rows.append(row)
                numbers.append(number)
        device = self.device
        copied = torch.full((len(pairs),), -torch.inf, device=device)
        objective = torch.zeros(len(pairs), device=device)
        if rows:
            right, absent = self._log_probabilities(rows, spans)
            read = torch.tensor(numbers, device=device)
            copied = copied.index_put((read,), right)
            objective = objective.index_put((read,), torch.where(right.isfinite(), right, absent))
        logp = torch.logaddexp(copied + self._log_copy, torch.full_like(copied, self._log_guess))
        longest = max(len(sentence.places) for sentence in sentences)
        both = torch.stack([logp, objective]).view(2, len(sentences), -1, 1)
        # The values stand at the first of T masks, 0 at the others.
        return Filled(*functional.pad(both, (0, longest - 1)))

    def _log_probabilities(
        self, rows: Sequence[Row], spans: Sequence[tuple[int, int, int]]
    ) -> tuple[Tensor, Tensor]:
        """(R,) log-probability of the right spans, −inf where there are none, and of "not here".

        Args:
            spans: row, first and last token of each right span.
        """
        device = self.device
        ids, mask, types, text = row_tensors(self._template, rows)
        text[:, 0] = True  # [CLS]
        outside = ~text.to(device)
        logits = self.model(ids.to(device), mask.to(device), types.to(device))
        start = logits.start.float().masked_fill(outside, -torch.inf).log_softmax(-1)
        end = logits.end.float().masked_fill(outside, -torch.inf).log_softmax(-1)
        owner, first, last = torch.tensor(spans, device=device).view(-1, 3).long().T
        is_right = torch.zeros(len(rows), dtype=torch.bool, device=device)
        is_right[owner] = True
        share = (start[owner, first] + end[owner, last]).exp()
        right = share.new_zeros(len(rows)).index_add(0, owner, share).clamp_min(1e-30).log()
        right = right.masked_fill(~is_right, -torch.inf)
        return right, start[:, 0] + end[:, 0]


def _occurrences(tokens: Int64, span: Int64, continues: Bool) -> Int64:
    """Where `span` begins in `tokens`, as whole words.

    Example:
        >>> _occurrences(np.array([5, 7, 8, 7, 8, 9]), np.array([7, 8]), np.arange(10) == 9)
        array([1])
    """
    count = len(tokens) - len(span) + 1
    if count < 1:
        return np.zeros(0, np.int64)
    is_same = np.lib.stride_tricks.sliding_window_view(tokens, len(span)) == span
    after = np.append(tokens, -1)[len(span) :][:count]
    ends_word = (after < 0) | ~continues[after]
    return np.flatnonzero(is_same.all(1) & ends_word)


def open_filler(config: MaskedTrainConfig, device: str = "cpu", *, fresh: bool = False) -> Filler:
    """What fills in masked words, as `config.fills` says; for `fresh` see `MaskedReader.load`."""
    tokens = config.joint_tokens
    dropout = config.mlm_dropout
    if config.fills == "span":
        return SpanFiller.load(
            config.reader,
            max_tokens=tokens,
            guess=config.guess,
            dropout=dropout or 0.0,
            device=device,
        )
    folder = config.reader or embedded_encoder_dir()
    return MaskedReader.load(folder, max_tokens=tokens, dropout=dropout, device=device, fresh=fresh)
