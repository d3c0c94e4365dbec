"""One encoder tower, from token ids to the vector or vectors of each text, for training and
inference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from rag.core.arrays import Int32
from rag.core.errors import ArtifactError, ConfigError
from rag.core.optional import require
from rag.runtime.backbone import (
    load_backbone,
    load_config,
    pad,
    pool,
    run_backbone,
)
from rag.runtime.fast.fast_bert import FastBert
from rag.runtime.model_files import backbone_state, read_tensors
from retrievers.encoders.settings import (
    STATIC,
    TCT_COLBERT,
    TCT_MARKER_TOKENS,
    EncoderSettings,
    HeadLayer,
)
from retrievers.encoders.tokenization import mask_id, open_tokenizer
from retrievers.encoders.vectors import Vectors

_LAYER_TENSORS = 16  # of a layer of BERT
_LORA_SCALE = 2  # of adapters: lora_alpha over the rank


def _load_fast(folder: Path, precision: str) -> FastBert | None:
    """The network that needs no import of transformers' own, on a CPU; None if it is of another
    kind.
    """
    config = load_config(folder)
    if not FastBert.supports(config):
        return None
    state = backbone_state(folder)
    tensors = sum(name.startswith("encoder.layer.") for name in state)
    if tensors > _LAYER_TENSORS * config.num_hidden_layers:
        return None  # the slower way names what nothing reads
    try:
        return FastBert(state, config, precision=precision)
    except KeyError:
        return None  # the slower way names what is missing


class Linear(nn.Linear):
    """x → activation(x Wᵀ + b) in fp32."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, activation: str = "Identity"
    ) -> None:
        super().__init__(weight.shape[1], weight.shape[0], bias is not None)
        self.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}))
        self.activation = activation

    def forward(self, input: Tensor) -> Tensor:
        """(…, out) from (…, in)."""
        result: Tensor = getattr(nn, self.activation)()(super().forward(input))
        return result


class Head(nn.Module):
    """Token vectors → a text's vector or vectors, in fp32: pooling, layers, unit length.

    Every published retriever so far is a case of it: sentence-transformers (pooling, then linear
    layers with an activation, LayerNorm), DPR (the first token, perhaps a linear layer), ANCE (the
    first token, a linear layer and LayerNorm), a distilled reader (the same two layers on every
    token, then their mean), ColBERT (a linear layer on every token, all of which are kept).

    Args:
        settings: pooling, normalisation and layers with their weights.
        size: H of the token vectors.
        added: new layers, which follow those of the folder.
    """

    def __init__(
        self, settings: EncoderSettings, size: int, added: Iterable[Linear | nn.LayerNorm] = ()
    ) -> None:
        super().__init__()
        self.pooling = settings.pooling
        self.normalize, self.on_tokens = settings.normalize, settings.on_tokens
        self.size = self.dim = size
        self.layers = nn.ModuleList([*map(_read_layer, settings.layers), *added])
        for layer in self.layers:
            if isinstance(layer, Linear):
                if layer.in_features != self.dim:
                    raise ArtifactError(
                        f"{settings.weights_dir}: a layer takes vectors of {layer.in_features} dimensions, "
                        f"not {self.dim}",
                        hint="this head belongs to another model: copy or download the folder again",
                    )
                self.dim = layer.out_features

    def forward(self, hidden: Tensor, mask: Tensor) -> Vectors:
        """Vectors of padded texts, float32.

        Args:
            hidden: (n, L, H) token vectors.
            mask: (n, L), 1 on tokens.

        Returns:
            One vector per text; with the pooling "tokens", the vectors of all tokens.
        """
        if self.pooling == "tokens":
            tokens = Vectors.of_tokens(hidden.float(), mask.bool())
            return Vectors(self._finish(self._transform(tokens.values)), tokens.lengths)
        if self.on_tokens:
            return Vectors(self._finish(pool(self._transform(hidden.float()), mask, self.pooling)))
        return Vectors(self._finish(self._transform(pool(hidden, mask, self.pooling))))

    def _transform(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def _finish(self, x: Tensor) -> Tensor:
        return functional.normalize(x, dim=-1) if self.normalize else x


def _read_layer(layer: HeadLayer) -> Linear | nn.LayerNorm:
    begin = layer.weight.removesuffix("weight")
    tensors = {name: tensor.float() for name, tensor in read_tensors(layer.folder, begin).items()}
    if layer.weight not in tensors:
        raise ArtifactError(
            f"{layer.folder} has no {layer.weight}", hint="copy or download it again"
        )
    weight, bias = tensors[layer.weight], tensors.get(f"{begin}bias")
    if layer.kind == "linear":
        return Linear(weight, bias, layer.activation)
    norm = nn.LayerNorm(weight.shape[0], bias=bias is not None)
    norm.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}))
    return norm


class TowerModel(nn.Module):
    """Encoder and head (pooling, perhaps layers, perhaps normalisation). Made by `load`.

    The head computes in fp32, whatever dtype the encoder has. Parameters are named `encoder.…`, as
    the bare transformers model names them, and `head.layers.0.weight`, …

    Attributes:
        encoder: the bare transformers model, without BERT's pooler; for inference on a CPU a
            `FastBert` where it covers the model.
        head: pooling and layers that follow the token vectors.
        settings: how it reads texts, with the folder of the model.
        dim: size D of the vectors.
        unseen, skipped: in late interaction, the mask token of questions that others do not attend
            to, and the tokens of passages whose vectors do not count.
        autocast: run the encoder under bf16 autocast (GPU); on a CPU its weights are bf16
            themselves.
    """

    def __init__(self, encoder: Any, head: Head, settings: EncoderSettings) -> None:
        super().__init__()
        self.encoder, self.head, self.settings = encoder, head, settings
        self.autocast = False
        self.unseen: int | None = None
        self.skipped = torch.zeros(0, dtype=torch.int64)
        if (how := settings.interaction) is not None:
            tokenizer = open_tokenizer(settings.weights_dir)
            if how.expanded and not how.attended:
                self.unseen = mask_id(tokenizer)
            ids = [id for text in how.skipped if (id := tokenizer.token_to_id(text)) is not None]
            self.skipped = torch.tensor(sorted(ids), dtype=torch.int64)
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
        lora: int = 0,
        seed: int = 0,
        device: str = "cpu",
        train: bool = True,
        precision: str = "fp32",
    ) -> TowerModel:
        """Load weights, in fp32 to be trained.

        Args:
            settings: settings of the folder, after overrides.
            projection_dim: size of a new linear layer at the end of the head; 0 adds none.
            projection_norm: add a LayerNorm after it.
            dropout: replaces the configuration's dropout probabilities, if given.
            lora: rank of low-rank adapters on all linear layers of the encoder, whose own weights
                then stay.
            device: "cpu" or "cuda:N"; decides which attention is used.
            train: in training mode, with attention and dropout that have fast backward passes.
            precision: "fp32" or "bf16" for inference.

        Raises:
            ArtifactError: the folder holds no loadable encoder.
            ConfigError: the folder's head makes vectors of another size than the wanted one.
        """
        folder = settings.weights_dir
        if settings.pooling == STATIC:
            raise ConfigError(
                f"{folder} is a static encoder: no network runs", hint="rag train static"
            )
        if train and settings.pooling == TCT_COLBERT:
            raise ConfigError(
                f"{folder} is read as TCT-ColBERT, whose form a trained encoder cannot have",
                hint="train from its weights with another: --pooling mean",
            )
        encoder: Any = None if train or device != "cpu" else _load_fast(folder, precision)
        is_fast = encoder is not None
        if not is_fast:
            encoder = load_backbone(folder, train=train, dropout=dropout, device=device)
        if lora:
            peft = require("peft", extra="lora")
            encoder.requires_grad_(False)
            adapters = peft.LoraConfig(
                r=lora, lora_alpha=_LORA_SCALE * lora, target_modules="all-linear"
            )
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                peft.inject_adapter_in_model(adapters, encoder)
        hidden = int(encoder.config.hidden_size)
        added: list[Linear | nn.LayerNorm] = []
        if settings.layers:
            if projection_dim not in (0, settings.dim):
                raise ConfigError(
                    f"{folder} has a projection to {settings.dim} dimensions, "
                    f"but projection_dim is {projection_dim}",
                    hint="leave projection_dim at 0 to train the projection that is there",
                )
        elif projection_dim:
            drawn = torch.empty(projection_dim, hidden)
            drawn.normal_(0.0, hidden**-0.5, generator=torch.Generator().manual_seed(seed))
            has_bias = settings.interaction is None
            added.append(Linear(drawn, torch.zeros(projection_dim) if has_bias else None))
            added += [nn.LayerNorm(projection_dim)] if projection_norm else []
        tower = cls(encoder, Head(settings, hidden, added), settings).to(device)
        is_bf16 = precision == "bf16" and not is_fast
        return tower.to_compute(torch.bfloat16) if is_bf16 else tower

    def to_compute(self, dtype: torch.dtype) -> TowerModel:
        """Compute in `dtype`: bf16 converts the weights on a CPU, on a GPU it is autocast. Returns
        self.
        """
        if next(self.encoder.parameters()).device.type == "cpu":
            self.encoder.to(dtype)
        else:
            self.autocast = dtype == torch.bfloat16
        return self

    def forward(self, texts: Sequence[Int32 | Sequence[int]], *, question: bool = False) -> Vectors:
        """Vectors, float32, of n token sequences (special tokens included), padded together."""
        ids, mask = pad(texts, self.pad_id)  # (n, L)
        seen = scored = mask
        if question and self.unseen is not None:
            seen = mask * (ids != self.unseen)
        if not question and len(self.skipped):
            scored = mask * ~torch.isin(ids, self.skipped)
        if self.settings.pooling == TCT_COLBERT:
            scored = mask.clone()
            scored[:, :TCT_MARKER_TOKENS] = 0
        if isinstance(self.encoder, FastBert):
            hidden = self.encoder.padded(
                ids, mask, seen=None if seen is mask else seen
            )  # (n, L, H)
        else:
            device = next(self.encoder.parameters()).device
            ids, seen, scored = ids.to(device), seen.to(device), scored.to(device)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.autocast):
                hidden = run_backbone(self.encoder, ids, seen)[0]  # (n, L, H)
        vectors: Vectors = self.head(hidden, scored)
        return vectors

    def bare(
        self, part: Literal["encoder", "head"], weights: Mapping[str, Tensor], prefix: str
    ) -> dict[str, Tensor]:
        """The tensors of a part under its own names, in fp32, with adapters merged into the
        weights.

        Args:
            part: the bare encoder, or the head (`layers.0.weight`, …).
            weights: fp32 values by the model's parameter names, such as a fit's result; parameters
                that are not among them (frozen ones) keep their present values.
            prefix: this tower's name in those names, such as "question.".
        """
        own = getattr(self, part).state_dict()
        state = {
            name: weights.get(f"{prefix}{part}.{name}", tensor.detach().float())
            for name, tensor in own.items()
        }
        merged = {}
        for name, tensor in state.items():
            layer = name.removesuffix(".base_layer.weight")
            if layer != name:
                down, up = (state[f"{layer}.lora_{side}.default.weight"] for side in "AB")
                tensor = tensor + _LORA_SCALE * up @ down
            if ".lora_" not in name:
                merged[name.replace(".base_layer.", ".")] = tensor
        return merged
