"""One encoder tower: tokens in, vectors out; fast path on CPU, transformers everywhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rag.runtime.backbone import load_backbone, pad, refuse_missing, segments_of, token_vectors
from rag.runtime.fast.fast_bert import FastBert
from rag.runtime.fast.packing import pack
from rag.runtime.model_files import backbone_state, read_config
from retrievers.encoders.head import build_head
from retrievers.encoders.settings import EncoderSettings
from retrievers.encoders.tokenization import separator_id, token_rules
from retrievers.encoders.vectors import Vectors

__all__ = ["Tower"]

_CONFIG_DEFAULTS = {  # transformers' BertConfig; files may leave them out
    "hidden_act": "gelu",
    "hidden_size": 768,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
}
_FAMILY_DEFAULTS = {
    "roberta": {"pad_token_id": 1},
    "xlm-roberta": {"pad_token_id": 1},
    "camembert": {"pad_token_id": 1},
}


class Tower:
    """A loaded tower.

    Args:
        settings: what its folder says, after overrides.
        device: "cpu", "cuda" or "cuda:0".
        precision: "fp32" or "bf16".
        fast: use `FastBert` where the model allows it; False forces transformers.

    Attributes:
        dim: vector size D.
        is_fast: whether the fast path is in use.
    """

    def __init__(
        self, settings: EncoderSettings, *, device: str = "cpu", precision: str = "fp32", fast: bool = True
    ) -> None:
        self.settings, self.device, self.precision = settings, device, precision
        raw = read_config(settings.weights_dir)
        family = _FAMILY_DEFAULTS.get(raw["model_type"], {})
        config = SimpleNamespace(**{**_CONFIG_DEFAULTS, **family, **raw})
        self.is_fast = fast and device == "cpu" and FastBert.supports(config)
        self._fast: FastBert | None = None
        self._model: Any = None
        if self.is_fast:
            try:
                self._fast = FastBert(backbone_state(settings.weights_dir), config, precision=precision)
            except KeyError as error:
                refuse_missing(settings.weights_dir, [str(error.args[0])])
        else:
            self._model = load_backbone(settings.weights_dir).to(device)
        # transformers knows every family's own name for the padding token
        known = config if self._model is None else self._model.config
        self.pad_id = int(known.pad_token_id or 0)
        self._separator = separator_id(settings.weights_dir) if settings.segments else None
        self._rules = token_rules(settings)
        self._head = build_head(settings, known.hidden_size).to(device).requires_grad_(False)
        self.dim = self._head.dim

    @torch.inference_mode()
    def run(self, sequences: Sequence[Sequence[int]], *, question: bool = False) -> Vectors:
        """Vectors, float32 on the CPU, of token sequences of passages or questions; sort them by length."""
        if self._fast is not None:
            return self._run_fast(sequences, question)
        ids, mask = (tensor.to(self.device) for tensor in pad(sequences, self.pad_id))  # (B, L)
        seen = kept = mask
        if self._rules is not None:
            seen, kept = (rule(ids, mask, question=question) for rule in (self._rules.seen, self._rules.kept))
        types = None if self._separator is None else segments_of(ids, mask, self._separator)
        kind = torch.device(self.device).type
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=self.precision == "bf16"):
            hidden = token_vectors(self._model, ids, seen, types).float()  # (B, L, H)
        found = self._head(hidden, kept)
        return Vectors(found.values.cpu(), None if found.lengths is None else found.lengths.cpu())

    def _run_fast(self, sequences: Sequence[Sequence[int]], question: bool) -> Vectors:
        assert self._fast is not None
        head, types = self._head, None
        if self._separator is not None:
            types = [_types(sequence, self._separator) for sequence in sequences]
        tokens = pack(sequences, types)
        kept = torch.ones_like(tokens.token_ids)
        if self._rules is not None:
            seen = self._rules.seen(tokens.token_ids, kept, question=question)
            tokens = tokens if seen is kept else replace(tokens, seen=seen.bool())
            kept = self._rules.kept(tokens.token_ids, kept, question=question)
        first = head.pooling == "cls"
        x: Tensor = self._fast.forward(tokens, first_token_only=first)  # (B, H) or (T, H)
        if head.pooling == "tokens":
            lengths = torch.tensor([int(part.sum()) for part in kept.split(tokens.lengths)])
            return Vectors(head.finish(head.transform(x[kept.bool()])), lengths)
        if head.on_tokens:
            x = head.transform(x)
        if not first:
            x = self._fast.pool(x, tokens, head.pooling)
        return Vectors(head.finish(x if head.on_tokens else head.transform(x)))


def _types(sequence: Sequence[int], separator: int) -> list[int]:
    """Segments: 1 behind the first separator."""
    ids = np.asarray(sequence)
    found: list[int] = ((ids == separator).cumsum() - (ids == separator) > 0).astype(int).tolist()
    return found
