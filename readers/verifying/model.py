"""The network behind a verifier: any encoder over claim and evidence, with three outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rag.core.errors import ArtifactError
from rag.core.types import VERDICT_LABELS
from rag.runtime.backbone import attention_for, pad, run_backbone, run_by_length
from rag.runtime.fast.fast_bert import FastBert

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_BATCH_LIMITS = (64, 4096)  # rows and tokens per forward pass


class VerdictModel(nn.Module):
    """An encoder and one linear layer on [CLS], whose outputs are the logits of `VERDICT_LABELS`.

    Args:
        encoder: computes (R, L, D) hidden states, a network of transformers, maybe in bf16, or a
            `FastBert`.
        head: D → 3, in fp32.
        tokenizer: a fast tokenizer of transformers.
        max_tokens: tokens after which a row is cut, the evidence before the claim.
    """

    def __init__(self, encoder: Any, head: nn.Linear, tokenizer: Any, max_tokens: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens

    def logits(
        self,
        claims: Sequence[str],
        evidence: Sequence[str],
        map_batches: Callable[..., Iterable[Tensor]] = map,
    ) -> tuple[Tensor, int]:
        """Logits (R, 3) float32 of row i, claim i beside text i, R > 0; and the tokens read.

        Args:
            map_batches: applies a function to batches, such as the `map` of a pool of threads.
        """
        encoded = self.tokenizer(
            list(claims),
            list(evidence),
            truncation="longest_first",
            max_length=self.max_tokens,
            padding=False,
            return_token_type_ids=True,
        )

        def run(rows: list[int]) -> Tensor:
            ids, mask = pad([encoded["input_ids"][row] for row in rows], 0)
            types, _ = pad([encoded["token_type_ids"][row] for row in rows], 0)
            if isinstance(self.encoder, FastBert):
                hidden = self.encoder.padded(ids, mask, types)
            else:
                device = self.head.weight.device
                hidden = run_backbone(
                    self.encoder, ids.to(device), mask.to(device), types.to(device)
                )
            return self.head(hidden[:, 0].float())

        lengths = list(map(len, encoded["input_ids"]))
        parts, order = run_by_length(run, lengths, _BATCH_LIMITS, map_batches=map_batches)
        return torch.cat(parts)[order], sum(lengths)

    def to_compute(self, dtype: torch.dtype) -> VerdictModel:
        """Move the encoder to `dtype`; the head stays fp32. Returns self."""
        self.encoder.to(dtype)
        return self


def new_head(width: int, seed: int) -> nn.Linear:
    """A head with random weights."""
    head = nn.Linear(width, len(VERDICT_LABELS))
    nn.init.normal_(head.weight, std=0.02, generator=torch.Generator().manual_seed(seed))
    nn.init.zeros_(head.bias)
    return head


def build_encoder(config: PreTrainedConfig, state: Mapping[str, Tensor]) -> PreTrainedModel:
    """An encoder with these weights, ready to be trained, without BERT's pooler.

    Raises:
        ArtifactError: tensors are missing, unknown, or of another shape.
    """
    from transformers import AutoModel

    encoder = AutoModel.from_config(config, attn_implementation=attention_for(config))
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None
    try:
        encoder.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise ArtifactError(f"the weights do not fit the configuration: {error}") from error
    return encoder
