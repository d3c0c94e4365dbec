"""Fill in a masked run of words by copying it from a passage: an extractive reader in the place of
a masked language model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rag.core.arrays import Int64
from rag.core.errors import ConfigError
from rag.joint.config import MaskedTrainConfig
from rag.joint.masked import Filled, Filler, MaskedReader, MaskedSentence, TokenLists
from rag.runtime.model_files import embedded_encoder_dir
from readers.extractive.files import SHIPPED_READER, start_model
from readers.extractive.layout import Row, continuations, row_tensors
from readers.extractive.model import SpanModel
from readers.extractive.training.finish import export_trained


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

    def __init__(self, model: SpanModel, tokenizer: Any, *, max_tokens: int, guess: float) -> None:
        if tokenizer.mask_token_id is None:
            raise ConfigError(
                f"{type(tokenizer).__name__} has no mask token",
                hint="use a BERT-like reader or encoder",
            )
        super().__init__(model, tokenizer, max_tokens=max_tokens)
        self._log_guess, self._log_copy = float(np.log(guess)), float(np.log1p(-guess))
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

    def forward(self, sentences: Sequence[MaskedSentence], passages: TokenLists) -> Tensor:
        """(B, K, T) log p(y | x, z) at a sentence's first mask, where the words are filled in
        together.
        """
        return self.read(sentences, passages, learning=False).logp

    def read(
        self, sentences: Sequence[MaskedSentence], passages: TokenLists, *, learning: bool = True
    ) -> Filled:
        """See `Filler.read`; the objective is log Σ P_start · P_end where the passage holds the
        words, and the log-probability of "not here" where it does not.

        Args:
            learning: read the passages without the words too, for the objective.
        """
        readings = list(self._readings(sentences, passages, learning))
        device, shape = next(self.parameters()).device, (len(sentences), len(passages[0]))
        longest = max(len(sentence.places) for sentence in sentences)
        copied = torch.full(shape, -torch.inf, device=device)
        objective = torch.zeros(shape, device=device)
        if readings:
            b = torch.tensor([reading.sentence for reading in readings], device=device)
            k = torch.tensor([reading.passage for reading in readings], device=device)
            holds = torch.tensor([len(reading.first) > 0 for reading in readings], device=device)
            right, absent = self._spans(readings)
            copied = copied.index_put((b, k), torch.where(holds, right, -torch.inf))
            objective = objective.index_put((b, k), torch.where(holds, right, absent))
        logp = torch.logaddexp(copied + self._log_copy, torch.full_like(copied, self._log_guess))
        pad = (0, longest - 1)  # the values stand at the first of T places
        return Filled(*(nn.functional.pad(values[..., None], pad) for values in (logp, objective)))

    def _readings(
        self, sentences: Sequence[MaskedSentence], passages: TokenLists, learning: bool
    ) -> Iterator[_Reading]:
        for b, (sentence, listed) in enumerate(zip(sentences, passages, strict=True)):
            room = max(0, self._max_tokens - self._mark.size(sentence.ids))
            for k, passage in enumerate(listed):
                tokens = np.array(passage[:room], np.int64)
                starts = _places(tokens, sentence.targets, self._continues)
                if len(starts) or (learning and len(tokens)):
                    row = self._mark.row(sentence.ids, None, tokens)
                    first = starts + row.text_from
                    yield _Reading(b, k, row, first, first + len(sentence.targets) - 1)

    def _spans(self, readings: Sequence[_Reading]) -> tuple[Tensor, Tensor]:
        """(R,) log-probability of the right spans, of no use where there are none, and of "not
        here".
        """
        device = next(self.parameters()).device
        ids, mask, types, text = row_tensors(self._mark, [reading.row for reading in readings])
        text[:, self._mark.cls_position] = True
        logits = self.model(ids.to(device), mask.to(device), types.to(device))
        outside = ~text.to(device)
        start, end = (
            values.float().masked_fill(outside, -torch.inf).log_softmax(-1)
            for values in (logits.start, logits.end)
        )
        owners = np.repeat(np.arange(len(readings)), [len(reading.first) for reading in readings])
        places = (
            owners,
            np.concatenate([r.first for r in readings]),
            np.concatenate([r.last for r in readings]),
        )
        owner, first, last = (torch.from_numpy(part).to(device) for part in places)
        span = (start[owner, first] + end[owner, last]).exp()
        right = span.new_zeros(len(readings)).index_add(0, owner, span).clamp_min(1e-30).log()
        cls = self._mark.cls_position
        return right, start[:, cls] + end[:, cls]


class _Reading(NamedTuple):
    """A row to read, the numbers of its sentence and its passage, and where the words stand in the
    row.
    """

    sentence: int
    passage: int
    row: Row
    first: Int64
    last: Int64


def _places(tokens: Int64, span: Int64, continues: Any) -> Int64:
    """Where `span` begins in `tokens`, as whole words.

    Example:
        >>> _places(np.array([5, 7, 8, 7, 8, 9]), np.array([7, 8]), np.arange(10) == 9)
        array([1])
    """
    count = len(tokens) - len(span) + 1
    if count < 1:
        return np.zeros(0, np.int64)
    same = np.lib.stride_tricks.sliding_window_view(tokens, len(span)) == span
    after = np.append(tokens, -1)[len(span) :][:count]
    whole = (after < 0) | ~continues[after]
    return np.flatnonzero(same.all(1) & whole)


def open_filler(config: MaskedTrainConfig, device: str = "cpu", *, fresh: bool = False) -> Filler:
    """What fills in masked words, as `config.fills` says; for `fresh` see `MaskedReader.load`."""
    tokens, dropout = config.joint_tokens, config.mlm_dropout
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
