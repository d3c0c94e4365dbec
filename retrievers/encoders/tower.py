"""One encoder tower, from token ids to the vector or vectors of each text, for training and inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rag.core.arrays import Int32
from rag.core.errors import ConfigError
from rag.runtime.backbone import load_backbone, load_config, pad, refuse_missing, segments_of, token_vectors
from rag.runtime.fast.fast_bert import FastBert
from rag.runtime.fast.packing import pack
from rag.runtime.model_files import backbone_state
from retrievers.encoders.head import Head, Linear, build_head, linear_of
from retrievers.encoders.interaction import TokenRules
from retrievers.encoders.settings import EncoderSettings
from retrievers.encoders.tokenization import separator_id, token_rules
from retrievers.encoders.vectors import Vectors


class TowerModel(nn.Module):
    """Encoder and head (pooling, perhaps layers, perhaps normalisation). Made by `load`.

    The head computes in fp32, whatever dtype the encoder has. Parameters are named `encoder.…`, as the bare
    transformers model names them, and `head.layers.0.weight`, …

    Attributes:
        encoder: the bare transformers model, without BERT's pooler.
        head: pooling and layers that follow the token vectors.
        folder: the model's folder, which has the tokenizer too.
        dim: size D of the vectors.
        separator: the token behind which segment 1 begins; None: all token types are 0.
        rules: which tokens are seen and kept where every token has a vector.
        autocast: run the encoder under bf16 autocast (GPU); on a CPU its weights are bf16 themselves.
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: Head,
        *,
        folder: Path,
        separator: int | None = None,
        rules: TokenRules | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head
        self.folder, self.separator, self.rules = folder, separator, rules
        self.autocast = False
        config: Any = encoder.config
        self.pad_id = int(getattr(config, "pad_token_id", 0) or 0)
        self.dim = head.dim

    @classmethod
    def load(
        cls,
        settings: EncoderSettings,
        *,
        projection_dim: int = 0,
        projection_norm: bool = False,
        dropout: float | None = None,
        seed: int = 0,
        device: str = "cpu",
        train: bool = True,
    ) -> TowerModel:
        """Load weights in fp32.

        Args:
            settings: settings of the folder, after overrides.
            projection_dim: size of a new linear layer at the end of the head; 0 adds none.
            projection_norm: add a LayerNorm after it.
            dropout: replaces the configuration's dropout probabilities, if given.
            device: "cpu" or "cuda:N"; decides which attention is used.
            train: in training mode, with attention and dropout that have fast backward passes.

        Raises:
            ArtifactError: the folder holds no loadable encoder.
            ConfigError: the folder's head makes vectors of another size than the wanted one.
        """
        folder = settings.weights_dir
        encoder = load_backbone(folder, train=train, dropout=dropout, device=device)
        hidden = int(encoder.config.hidden_size)
        added: list[Linear | nn.LayerNorm] = []
        if settings.layers and settings.pooling != "pooler":
            if projection_dim not in (0, settings.dim):
                raise ConfigError(
                    f"{folder} has a projection to {settings.dim} dimensions, "
                    f"but projection_dim is {projection_dim}",
                    hint="leave projection_dim at 0 to train the projection that is there",
                )
        elif projection_dim:
            added.append(_drawn(hidden, projection_dim, seed, bias=settings.interaction is None))
            added += [nn.LayerNorm(projection_dim)] if projection_norm else []
        head = build_head(settings, hidden, added)
        separator = separator_id(folder) if settings.segments else None
        rules = token_rules(settings)
        return cls(encoder, head, folder=folder, separator=separator, rules=rules).to(device)

    @property
    def is_trained(self) -> bool:
        """Whether any of its parameters takes gradients."""
        return any(parameter.requires_grad for parameter in self.parameters())

    def to_compute(self, dtype: torch.dtype) -> TowerModel:
        """Compute in `dtype`; bf16 converts the weights on a CPU, and means autocast on a GPU."""
        if next(self.encoder.parameters()).device.type == "cpu":
            self.encoder.to(dtype)
        else:
            self.autocast = dtype == torch.bfloat16
        return self

    def forward(self, texts: Sequence[Int32 | Sequence[int]], *, question: bool = False) -> Vectors:
        """Vectors, float32, of n token sequences (special tokens included), padded together."""
        device = next(self.encoder.parameters()).device
        ids, mask = pad(texts, self.pad_id)  # (n, L)
        types = None if self.separator is None else segments_of(ids, mask, self.separator).to(device)
        seen = kept = mask
        if self.rules is not None:
            seen, kept = (rule(ids, mask, question=question) for rule in (self.rules.seen, self.rules.kept))
        ids, seen, kept = ids.to(device), seen.to(device), kept.to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.autocast):
            hidden = token_vectors(self.encoder, ids, seen, types)  # (n, L, H)
        found: Vectors = self.head(hidden, kept)
        return found

    def bare(
        self, part: Literal["encoder", "head"], weights: Mapping[str, Tensor], prefix: str
    ) -> dict[str, Tensor]:
        """The tensors of a part under its own names, in fp32.

        Args:
            part: the bare encoder, or the head (`layers.0.weight`, …).
            weights: fp32 values by the model's parameter names, such as a fit's result; parameters that are
                not among them (frozen ones) keep their present values.
            prefix: this tower's name in those names, such as "question.".
        """
        own = getattr(self, part).state_dict()
        return {
            name: weights.get(f"{prefix}{part}.{name}", tensor.detach().float())
            for name, tensor in own.items()
        }


class Tower:
    """A loaded tower for inference: fast path on CPU, `TowerModel` everywhere else.

    Args:
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
        config = load_config(settings.weights_dir)
        self.is_fast = fast and device == "cpu" and FastBert.supports(config)
        self._fast: FastBert | None = None
        if self.is_fast:
            try:
                self._fast = FastBert(backbone_state(settings.weights_dir), config, precision=precision)
            except KeyError as error:
                refuse_missing(settings.weights_dir, [str(error.args[0])])
            self._separator = separator_id(settings.weights_dir) if settings.segments else None
            self._rules = token_rules(settings)
            self._head = build_head(settings, config.hidden_size).requires_grad_(False)
        else:
            self._model = TowerModel.load(settings, device=device, train=False)
            self._model.autocast = precision == "bf16"
        self.dim = self._head.dim if self.is_fast else self._model.dim

    @torch.inference_mode()
    def run(self, sequences: Sequence[Sequence[int]], *, question: bool = False) -> Vectors:
        """Vectors, float32 on the CPU, of token sequences of passages or questions; sort them by length."""
        if self._fast is not None:
            return self._run_fast(sequences, question)
        found = self._model(sequences, question=question)
        return Vectors(found.values.cpu(), None if found.lengths is None else found.lengths.cpu())

    def _run_fast(self, sequences: Sequence[Sequence[int]], question: bool) -> Vectors:
        assert self._fast is not None
        head, types = self._head, None
        if self._separator is not None:
            types = [segments_of(*pad([ids], 0), self._separator)[0].tolist() for ids in sequences]
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


def _drawn(size: int, dim: int, seed: int, *, bias: bool) -> Linear:
    drawn = torch.empty(dim, size).normal_(0.0, size**-0.5, generator=torch.Generator().manual_seed(seed))
    return linear_of(drawn, torch.zeros(dim) if bias else None)
