"""Sequence-to-sequence models over passages: encode separately, fuse, decode by transformers'
classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from rag.core.errors import ConfigError
from rag.runtime.backbone import pad, plan_batches
from rag.runtime.model_files import position_limit


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of the decoder for each of B rows: the encoded tokens of its passages, concatenated.

    Attributes:
        states: (B, S, D) encoder states, 0 at padding.
        mask: (B, S) int64, 1 at tokens.
        owner: (B, S) int64, number of the passage each token belongs to; −1 at padding.
        counts: passages of each row.
    """

    states: Tensor
    mask: Tensor
    owner: Tensor
    counts: tuple[int, ...]

    @classmethod
    def of(cls, states: Sequence[Tensor], counts: Sequence[int]) -> Memory:
        """The memory of rows with so many passages each, from the states (L, D) of every passage in
        turn.
        """
        left = iter(states)
        rows = [list(islice(left, count)) for count in counts]
        none = states[0].new_zeros(0, states[0].shape[1])  # a row may have no passage
        owners = [
            torch.arange(len(row)).repeat_interleave(
                torch.tensor(list(map(len, row)), dtype=torch.long)
            )
            for row in rows
        ]
        owner = pad_sequence(owners, batch_first=True, padding_value=-1).to(none.device)
        joined = pad_sequence([torch.cat([none, *row]) for row in rows], batch_first=True)
        return cls(joined, (owner >= 0).long(), owner, tuple(counts))

    def __len__(self) -> int:
        return len(self.counts)

    def rows(self, chosen: Sequence[int]) -> Memory:
        """The rows with these numbers, which may repeat, without columns that are padding in all of
        them.
        """
        index = torch.tensor(list(chosen), dtype=torch.long, device=self.mask.device)
        width = max(1, int(self.mask[index].sum(1).max()))
        states, mask, owner = (part[index, :width] for part in (self.states, self.mask, self.owner))
        return Memory(states, mask, owner, tuple(self.counts[i] for i in chosen))

    def apart(self) -> Memory:
        """One row per passage."""
        states = [
            self.states[row][self.owner[row] == passage]
            for row, count in enumerate(self.counts)
            for passage in range(count)
        ]
        return Memory.of(states, [1] * len(states))


class _BeamCache(EncoderDecoderCache):
    """Beams of a question read the same passages: keys and values of those stay where they are.

    Moving them is half the time of a beam search over 20 passages.
    """

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Reorder the cache by beam."""
        self.self_attention_cache.reorder_cache(beam_idx)


class Seq2Seq:
    """An encoder–decoder checkpoint that reads passages.

    Args:
        model: any `AutoModelForSeq2SeqLM`, in its compute dtype and on its device. Its generation
            settings are replaced: a checkpoint's lengths, penalties, beams and forbidden words were
            chosen for another task. Only a forced first token is kept, because the model was
            trained with it.

    Raises:
        ConfigError: the tokenizer and the configuration do not define start, end and padding
            tokens.
    """

    max_rows = 256  # passages that are encoded at a time

    def __init__(self, model: PreTrainedModel, tokenizer: Any) -> None:
        self.model: Any = model
        self.tokenizer = tokenizer
        config: Any = model.config
        begins = getattr(config, "bos_token_id", None)  # T5 has none
        start = first_token(config.decoder_start_token_id, begins, tokenizer.bos_token_id)
        end = first_token(tokenizer.eos_token_id, config.eos_token_id, tokenizer.sep_token_id)
        pad = first_token(tokenizer.pad_token_id, config.pad_token_id)
        if start is None or end is None or pad is None:
            raise ConfigError(
                f"{type(tokenizer).__name__} and the model's configuration name start {start}, end {end} and "
                f"padding {pad} of an answer; expected three token ids",
                hint="set decoder_start_token_id, eos_token_id and pad_token_id in config.json",
            )
        self.start, self.end, self.pad = start, end, pad
        self.prefix, self._most = _prefix(model), answer_limit(model)
        self._silent = {pad, start, *self.prefix}
        self.model.generation_config = GenerationConfig(
            decoder_start_token_id=start,
            eos_token_id=end,
            pad_token_id=pad,
            forced_bos_token_id=next(iter(self.prefix), None),
        )

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    def encode(self, rows: Sequence[Sequence[Sequence[int]]], batch_tokens: int = 8192) -> Memory:
        """Read every passage separately and concatenate the states of each question's passages.

        Args:
            rows: for each question the token ids of each of its passages.
            batch_tokens: tokens that are encoded at a time.
        """
        flat = [self._input_row(ids) for passages in rows for ids in passages]
        states = [torch.empty(0)] * len(flat)
        for part in plan_batches(
            list(map(len, flat)), max_rows=self.max_rows, max_tokens=batch_tokens
        ):
            hidden = self._states(*self.pad_rows([flat[i] for i in part]))
            for i, own in zip(part, hidden, strict=True):
                states[i] = own[: len(flat[i])]
        return Memory.of(states, list(map(len, rows)))

    def _input_row(self, ids: Sequence[int]) -> Sequence[int]:
        return ids

    def _states(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(R, L, D) of (R, L) token ids."""
        hidden: Tensor = self.model.get_encoder()(input_ids=ids, attention_mask=mask)[0]
        return hidden

    def pad_rows(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """(R, L) ids and mask, padded on the right."""
        ids, mask = pad(rows, self.pad)
        return ids.to(self.device), mask.to(self.device)

    def generate(
        self, memory: Memory, *, answer_tokens: int, beams: int = 1
    ) -> list[list[list[int]]]:
        """Token ids of `beams` answers per row, best first, without special tokens."""
        answers = self.search(memory, answer_tokens=answer_tokens, beams=beams)
        return [
            [[token for token in ids if token not in self._silent] for ids in mine]
            for mine in answers
        ]

    @torch.inference_mode()
    def search(
        self, memory: Memory, *, answer_tokens: int, beams: int, **search: Any
    ) -> list[list[list[int]]]:
        """Token ids of `beams` answers per row, best first, without start and end tokens.

        Args:
            search: further arguments of transformers' `generate`, which decodes greedily, or by
                beam search.
        """
        begin = 1 + len(self.prefix)
        search |= {
            "num_beams": beams,
            "num_return_sequences": beams,
            "max_new_tokens": begin + answer_tokens,
        }
        rows = self.model.generate(**self._inputs(memory, beams), **search)
        answers = [
            row[begin : [*row, self.end].index(self.end, 1)][:answer_tokens]
            for row in rows.tolist()
        ]
        return [answers[b * beams : (b + 1) * beams] for b in range(len(memory))]

    def _inputs(self, memory: Memory, beams: int) -> dict[str, Any]:
        """What `generate` of the model starts from."""
        cache = _BeamCache(DynamicCache(), DynamicCache())
        return {**_encoded(memory), "past_key_values": cache}

    def targets(self, answers: Sequence[Sequence[int]]) -> Tensor:
        """(R, T) labels: each answer with its start and end tokens; −100 at padding."""
        ids, mask = self.pad_rows([[*self.prefix, *answer, self.end] for answer in answers])
        return ids.masked_fill(mask == 0, -100)

    def decoder_inputs(self, labels: Tensor) -> Tensor:
        """(R, T) labels shifted one to the right, after the start token."""
        moved = labels.roll(1, 1).masked_fill(labels.roll(1, 1) == -100, self.pad)
        moved[:, 0] = self.start
        return moved

    def token_log_probs(self, memory: Memory, labels: Tensor) -> Tensor:
        """(R, T) log p(y_t | y_<t, passages) of the labels of `targets`, 0 at padding; teacher
        forcing.
        """
        # rows of the vocabulary end to end: strided ones take a third of a denoising step longer
        logits, flat = self.logits(memory, labels).flatten(0, 1), labels.flatten()
        return -functional.cross_entropy(logits, flat, ignore_index=-100, reduction="none").view(
            labels.shape
        )

    def logits(self, memory: Memory, labels: Tensor) -> Tensor:
        """Logits (R, T, V) for each label, float32 at least; teacher forcing, see
        `token_log_probs`.
        """
        logits = self.model(**self._forced(memory, self.decoder_inputs(labels))).logits
        return logits if logits.dtype == torch.float64 else logits.float()

    def _forced(self, memory: Memory, inputs: Tensor) -> dict[str, Any]:
        """Arguments of the model that reads these tokens (R, T) after the passages."""
        return {**_encoded(memory), "decoder_input_ids": inputs, "use_cache": False}

    def words(self, ids: Sequence[int]) -> str:
        """The text of an answer."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True)).strip()

    def answer_ids(self, text: str) -> list[int]:
        """Token ids of an answer, without special tokens, truncated to the decoder's positions."""
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])[
            : self._most
        ]


def _encoded(memory: Memory) -> dict[str, Any]:
    encoded = BaseModelOutput(last_hidden_state=memory.states)
    return {"encoder_outputs": encoded, "attention_mask": memory.mask}


def longest_row(model: Any) -> int | None:
    """Number of positions of encoder and decoder; None if they are relative, as in T5."""
    is_relative = model.config.model_type in ("t5", "mt5", "umt5", "longt5")
    return None if is_relative else position_limit(model.config.to_dict())


def answer_limit(model: Any) -> int | None:
    """Maximum tokens of an answer after its start tokens, by the decoder's positions; None: no
    limit.
    """
    longest = longest_row(model)
    return None if longest is None else longest - len(_prefix(model)) - 1


def _prefix(model: Any) -> list[int]:
    """Tokens that follow the start token in every answer: BART's <s>."""
    forced = getattr(getattr(model, "generation_config", None), "forced_bos_token_id", None)
    return [] if forced is None else [int(forced)]


def first_token(*values: Any) -> int | None:
    """The first token id among the values; of a list of ends its first."""
    ids = (value[0] if isinstance(value, list | tuple) and value else value for value in values)
    return next((value for value in ids if isinstance(value, int)), None)
