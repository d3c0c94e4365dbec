"""A span head on any Hugging Face encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModel

from rag.core.errors import ArtifactError
from rag.runtime.attention import register_math_attention

__all__ = ["SpanModel"]


class SpanModel(nn.Module):
    """Encoder plus two linear units per token: the logits of "the answer starts here" and "ends here".

    The head always computes in fp32, whatever dtype the encoder has: span scores are sums of two logits and are
    compared across passages, where bf16's three decimal digits would make ties.
    """

    def __init__(self, encoder: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.encoder = encoder
        self.qa_outputs = head

    @classmethod
    def from_encoder(
        cls, folder: str | Path, *, seed: int = 0, dropout: float | None = None, attention: str | None = None
    ) -> SpanModel:
        """Load an encoder (`AutoModel`) and add a freshly drawn head.

        Args:
            folder: Hugging Face name or local folder.
            seed: of the head's weights.
            dropout: replaces the configuration's dropout probabilities, if given.
            attention: transformers' `attn_implementation`; by default the math attention of `rag.runtime`.

        Raises:
            ArtifactError: if the folder holds no loadable encoder.
        """
        overrides: dict[str, Any] = {}
        try:
            config = AutoConfig.from_pretrained(folder)
            for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"):
                if dropout is not None and hasattr(config, name):
                    setattr(config, name, dropout)
            if "bert" in config.model_type:
                overrides["add_pooling_layer"] = config.model_type == "distilbert" and None
                overrides = {k: v for k, v in overrides.items() if v is not None}
            encoder = AutoModel.from_pretrained(
                folder,
                config=config,
                attn_implementation=attention or register_math_attention(),
                dtype=torch.float32,
                **overrides,
            )
        except (OSError, ValueError) as error:
            raise ArtifactError(
                f"{folder}: no encoder could be loaded ({error})",
                hint="give a Hugging Face name or a folder with config.json and model.safetensors",
            ) from error
        head = nn.Linear(config.hidden_size, 2)
        with torch.no_grad():
            weight = torch.empty_like(head.weight)
            head.weight.copy_(weight.normal_(0.0, 0.02, generator=torch.Generator().manual_seed(seed)))
            head.bias.zero_()
        return cls(encoder, head)

    def to_compute(self, dtype: torch.dtype) -> SpanModel:
        """Move the encoder to `dtype`; the head stays fp32. Returns self."""
        self.encoder.to(dtype)
        return self

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Start and end logits, each (R, L) float32, of R rows of L tokens."""
        inputs: dict[str, torch.Tensor] = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        hidden = self.encoder(**inputs)[0]  # (R, L, D)
        logits = self.qa_outputs(hidden.float())  # (R, L, 2)
        return logits[..., 0], logits[..., 1]
