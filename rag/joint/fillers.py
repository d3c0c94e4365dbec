"""Networks that fill in the masked words of a sentence beside a passage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rag.core.errors import ConfigError
from rag.core.log import get_logger
from rag.joint.sentences import MaskedSentence
from rag.runtime.backbone import (
    attention_for,
    load_network,
    loading,
    run_backbone,
    set_dropout,
    transformers_config,
)
from rag.runtime.model_files import (
    model_folder,
    position_limit,
    save_tokenizer,
    transformers_tokenizer,
)
from readers.extractive.layout import Row, pair_template, row_tensors

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

log = get_logger(__name__)

TokenLists = Sequence[Sequence[Sequence[int]]]
"""For each of B sentences the token ids of K passages; an empty list is the null document."""


class Filled(NamedTuple):
    """Log-likelihood of the T masked tokens of B sentences given each of K passages.

    Attributes:
        logp: (B, K, T) log p(y_t | x, z), 0 after a sentence's last mask.
        objective: (B, K, T) the quantity that the reader maximises.
    """

    logp: Tensor
    objective: Tensor


class Filler(nn.Module, ABC):
    """A network that fills in a sentence's masked words beside a passage; both have at most
    `max_tokens` together, and passages are truncated.

    Raises:
        ConfigError: the tokenizer has no mask token.
    """

    def __init__(
        self, model: nn.Module, tokenizer: PreTrainedTokenizerBase, *, max_tokens: int
    ) -> None:
        if tokenizer.mask_token_id is None:
            raise ConfigError(
                f"{type(tokenizer).__name__} has no mask token",
                hint="use a BERT-like reader or encoder",
            )
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._template = pair_template(tokenizer)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of passages, as `read` takes them."""
        # They are truncated when they are read.
        encoded = self.tokenizer(list(texts), add_special_tokens=False, verbose=False)
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def forward(self, sentences: Sequence[MaskedSentence], passages: TokenLists) -> Tensor:
        """`Filled.logp` alone."""
        return self.read(sentences, passages, learning=False).logp

    @abstractmethod
    def read(
        self, sentences: Sequence[MaskedSentence], passages: TokenLists, *, learning: bool = True
    ) -> Filled:
        """The likelihood of the masked words, and what training raises.

        Args:
            learning: whether the objective is needed.
        """

    @abstractmethod
    def save(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """Write a folder that `rag train realm` starts from; `weights` are fp32, by parameter
        name.
        """

    def _row(self, sentence: MaskedSentence, passage: Sequence[int]) -> Row:
        room = max(0, self._max_tokens - self._template.size(sentence.ids))
        return self._template.row(sentence.ids, None, passage[:room])


class MaskedReader(Filler):
    """A masked language model of transformers that reads a sentence and a passage together."""

    model: PreTrainedModel

    @classmethod
    def load(
        cls,
        name_or_path: str | Path,
        *,
        max_tokens: int,
        dropout: float | None = None,
        device: str = "cpu",
        fresh: bool = False,
    ) -> MaskedReader:
        """Load an encoder; one without a masked language modelling head gets a new head, with a
        warning unless that is expected (`fresh`).

        Raises:
            ArtifactError: there is no such encoder.
            ConfigError: it does not fill in masks, or reads fewer than `max_tokens`.
        """
        from transformers import AutoModelForMaskedLM

        folder = model_folder(name_or_path)
        config = transformers_config(folder)
        set_dropout(config, dropout)
        with loading(f"{name_or_path}: no masked language model there"):
            model, new = load_network(
                AutoModelForMaskedLM,
                folder,
                config,
                headless=True,
                dtype=torch.float32,
                attn_implementation=attention_for(config, device),
            )
        if _head_of(model) is None:
            raise ConfigError(
                f"{type(model).__name__} has no masked language modelling head",
                hint="use a BERT-like or RoBERTa-like encoder",
            )
        tokenizer = transformers_tokenizer(folder)
        limit = position_limit(config.to_dict())
        if max_tokens > limit:
            raise ConfigError(
                f"rows have {max_tokens} tokens, {name_or_path} reads at most {limit}",
                hint="lower joint_tokens",
            )
        if not fresh and any(name.endswith("dense.weight") for name in new):
            log.warning(
                "%s has no masked language modelling head, and gets a new one: until it is trained, passages "
                "do not help and the retriever learns noise (watch utility); give a masked language model, "
                "or train one with `rag train mlm`",
                name_or_path,
            )
        return cls(model.to(device).train(), tokenizer, max_tokens=max_tokens)

    def save(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """See `Filler`; transformers opens the folder with `AutoModelForMaskedLM`."""
        self.float().load_state_dict(dict(weights), strict=False)
        self.model.save_pretrained(folder)
        save_tokenizer(self.tokenizer, folder)

    def read(
        self, sentences: Sequence[MaskedSentence], passages: TokenLists, *, learning: bool = True
    ) -> Filled:
        """See `Filler`; the likelihood is also what training raises."""
        device = self.device
        rows = []
        for sentence, of_sentence in zip(sentences, passages, strict=True):
            rows += [self._row(sentence, passage) for passage in of_sentence]
        ids, mask, types, _ = row_tensors(self._template, rows)
        base = getattr(self.model, self.model.base_model_prefix)
        hidden = run_backbone(base, ids.to(device), mask.to(device), types.to(device))
        hidden = hidden.unflatten(0, (len(sentences), -1))  # (B, K, L, H)

        # N masks: the sentence of each, its number there, its place in a row, the right token
        counts = torch.tensor([len(sentence.places) for sentence in sentences])
        is_mask = torch.arange(int(counts.max())) < counts[:, None]  # (B, T)
        owner, number = is_mask.to(device).nonzero(as_tuple=True)
        places = np.concatenate([sentence.places for sentence in sentences])
        targets = np.concatenate([sentence.targets for sentence in sentences])
        mask_positions = torch.from_numpy(places + len(self._template.before)).to(device)
        target = torch.from_numpy(targets).to(device)

        at_masks = hidden[owner, :, mask_positions]  # (N, K, H)
        fill_in = _head_of(self.model)
        assert fill_in is not None  # checked when it was loaded
        logp = fill_in(at_masks).float().log_softmax(-1)  # (N, K, V)
        values = logp[torch.arange(len(target)), :, target]  # (N, K)
        by_sentence = values.new_zeros(*is_mask.shape, values.shape[1])  # (B, T, K)
        likelihoods = by_sentence.index_put((owner, number), values).transpose(1, 2)
        return Filled(likelihoods, likelihoods)


def _head_of(model: PreTrainedModel) -> nn.Module | None:
    """What turns hidden states into logits of words: `cls` of BERT, `lm_head` of RoBERTa."""
    return getattr(model, "cls", None) or getattr(model, "lm_head", None)
