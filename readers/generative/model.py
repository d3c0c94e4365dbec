"""Sequence-to-sequence models over passages: encode separately, fuse, decode by transformers'
classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from rag.core.errors import ConfigError
from rag.runtime.backbone import pad, run_by_length
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
        # A row may have no passage.
        nothing = states[0].new_zeros(0, states[0].shape[1])
        joined = []
        owners = []
        begin = 0
        for count in counts:
            passages = states[begin : begin + count]
            lengths = torch.tensor(list(map(len, passages)), dtype=torch.long)
            joined.append(torch.cat([nothing, *passages]))
            owners.append(torch.arange(count).repeat_interleave(lengths))
            begin += count
        owner = pad_sequence(owners, batch_first=True, padding_value=-1).to(nothing.device)
        padded = pad_sequence(joined, batch_first=True)
        return cls(padded, (owner >= 0).long(), owner, tuple(counts))

    def __len__(self) -> int:
        return len(self.counts)

    def rows(self, numbers: Sequence[int]) -> Memory:
        """The rows with these numbers, which may repeat, without columns that are padding in all of
        them.
        """
        index = torch.tensor(list(numbers), dtype=torch.long, device=self.mask.device)
        width = max(1, int(self.mask[index].sum(1).max()))
        return Memory(
            self.states[index, :width],
            self.mask[index, :width],
            self.owner[index, :width],
            tuple(self.counts[number] for number in numbers),
        )

    def apart(self) -> Memory:
        """One row per passage."""
        states = []
        for row, count in enumerate(self.counts):
            for passage in range(count):
                states.append(self.states[row][self.owner[row] == passage])
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
        self.start = start
        self.end = end
        self.pad = pad
        self.prefix = _prefix(model)
        self._max_answer_tokens = answer_limit(model)
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
        inputs = [self._input_row(ids) for ids in chain.from_iterable(rows)]
        lengths = list(map(len, inputs))

        def run(batch: list[int]) -> list[Tensor]:
            ids, mask = self.pad_rows([inputs[number] for number in batch])
            hidden = self._states(ids, mask)
            return [hidden[row, : lengths[number]] for row, number in enumerate(batch)]

        parts, positions = run_by_length(run, lengths, (self.max_rows, batch_tokens))
        encoded = list(chain.from_iterable(parts))
        states = [encoded[position] for position in positions]
        return Memory.of(states, list(map(len, rows)))

    def _input_row(self, ids: Sequence[int]) -> Sequence[int]:
        return ids

    def _states(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(R, L, D) of (R, L) token ids."""
        return self.model.get_encoder()(input_ids=ids, attention_mask=mask)[0]

    def pad_rows(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """(R, L) ids and mask, padded on the right."""
        ids, mask = pad(rows, self.pad)
        return ids.to(self.device), mask.to(self.device)

    def generate(
        self, memory: Memory, *, answer_tokens: int, beams: int = 1
    ) -> list[list[list[int]]]:
        """Token ids of `beams` answers per row, best first, without special tokens."""
        results = self.search(memory, answer_tokens=answer_tokens, beams=beams)
        for answers in results:
            for ids in answers:
                ids[:] = [token for token in ids if token not in self._silent]
        return results

    @torch.inference_mode()
    def search(
        self, memory: Memory, *, answer_tokens: int, beams: int, **search: object
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
        answers = []
        for row in self.model.generate(**self._inputs(memory, beams), **search).tolist():
            end = [*row, self.end].index(self.end, 1)
            answers.append(row[begin:end][:answer_tokens])
        return [answers[first : first + beams] for first in range(0, len(answers), beams)]

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
        moved = labels.roll(1, 1)
        moved = moved.masked_fill(moved == -100, self.pad)
        moved[:, 0] = self.start
        return moved

    def token_log_probs(self, memory: Memory, labels: Tensor) -> Tensor:
        """(R, T) log p(y_t | y_<t, passages) of the labels of `targets`, 0 at padding; teacher
        forcing.
        """
        # Rows of the vocabulary end to end: strided ones take a third of a denoising step longer.
        logits = self.logits(memory, labels).flatten(0, 1)
        loss = functional.cross_entropy(
            logits, labels.flatten(), ignore_index=-100, reduction="none"
        )
        return -loss.view(labels.shape)

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
        ids = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return list(ids)[: self._max_answer_tokens]


def _encoded(memory: Memory) -> dict[str, Any]:
    encoded = BaseModelOutput(last_hidden_state=memory.states)
    return {"encoder_outputs": encoded, "attention_mask": memory.mask}


def longest_row(model: PreTrainedModel) -> int | None:
    """Number of positions of encoder and decoder; None if they are relative, as in T5."""
    is_relative = model.config.model_type in ("t5", "mt5", "umt5", "longt5")
    return None if is_relative else position_limit(model.config.to_dict())


def answer_limit(model: PreTrainedModel) -> int | None:
    """Maximum tokens of an answer after its start tokens, by the decoder's positions; None: no
    limit.
    """
    longest = longest_row(model)
    return None if longest is None else longest - len(_prefix(model)) - 1


def _prefix(model: Any) -> list[int]:
    """Tokens that follow the start token in every answer: BART's <s>."""
    forced = getattr(getattr(model, "generation_config", None), "forced_bos_token_id", None)
    return [] if forced is None else [int(forced)]


def first_token(*values: object) -> int | None:
    """The first token id among the values; of a list of ends its first."""
    for value in values:
        first = value[0] if isinstance(value, list | tuple) and value else value
        if isinstance(first, int):
            return first
    return None
