"""One encoder tower: tokens in, one vector per text out; fast path on CPU, transformers everywhere else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from indexers.protocols import FloatArray
from rag.core.errors import ArtifactError
from rag.core.files import read_json
from rag.runtime.fast.fast_bert import FastBert
from rag.runtime.fast.packing import pack
from retrievers.encoders.files import backbone_state, weight_files
from retrievers.encoders.settings import EncoderSettings, read_config

__all__ = ["Tower", "output_dim"]

_ACTIVATIONS = {"Identity": nn.Identity, "Tanh": nn.Tanh, "ReLU": nn.ReLU, "GELU": nn.GELU}
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
        state: dict[str, Tensor] = {}
        beside: dict[str, Tensor] = {}
        if self.is_fast or raw["model_type"] == "dpr":
            state, beside = backbone_state(settings.weights_dir)
        if self.is_fast:
            try:
                self._fast = FastBert(state, config, precision=precision)
            except KeyError as error:
                _refuse_missing(settings.weights_dir, [str(error.args[0])])
        else:
            self._model = _transformers_model(settings.weights_dir, raw, state).to(device).eval()
        # transformers knows every family's own name for the padding token
        known = config if self._model is None else self._model.config
        self.pad_id = int(known.pad_token_id or 0)
        self._projections = [layer.to(device) for layer in _projections(settings, beside)]
        self.dim = output_dim(settings)

    @torch.inference_mode()
    def run(self, sequences: Sequence[Sequence[int]]) -> FloatArray:
        """Vectors (B, D) float32 of token sequences; sort them by length first."""
        pooled = self._run_fast(sequences) if self._fast is not None else self._run_transformers(sequences)
        for projection in self._projections:
            pooled = projection(pooled)
        if self.settings.normalize:
            pooled = functional.normalize(pooled, dim=-1)
        return np.asarray(pooled.float().cpu().numpy(), dtype=np.float32)

    def _run_fast(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        assert self._fast is not None
        tokens = pack(sequences)
        if self.settings.pooling == "cls":
            return self._fast.forward(tokens, first_token_only=True)
        return self._fast.pool(self._fast.forward(tokens), tokens, self.settings.pooling)

    def _run_transformers(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        assert self._model is not None
        longest = max(len(sequence) for sequence in sequences)
        ids = torch.full((len(sequences), longest), self.pad_id)  # (B, L)
        mask = torch.zeros((len(sequences), longest), dtype=torch.int64)
        for row, sequence in enumerate(sequences):
            ids[row, : len(sequence)] = torch.as_tensor(sequence)
            mask[row, : len(sequence)] = 1
        ids, mask = ids.to(self.device), mask.to(self.device)
        kind = torch.device(self.device).type
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=self.precision == "bf16"):
            hidden = self._model(input_ids=ids, attention_mask=mask).last_hidden_state.float()  # (B, L, H)
        return _pool_padded(hidden, mask, self.settings.pooling)


def output_dim(settings: EncoderSettings) -> int:
    """Vector size D, from configuration files alone."""
    if settings.projections:
        return int(read_json(settings.projections[-1] / "config.json")["out_features"])
    raw = read_config(settings.weights_dir)
    size = int(raw.get("projection_dim") or 0) if raw["model_type"] == "dpr" else 0
    size = size or int(raw.get("hidden_size") or 0)
    if size:
        return size
    from transformers import AutoConfig  # knows every family's own name for the hidden size

    return int(AutoConfig.from_pretrained(settings.weights_dir).hidden_size)


def _pool_padded(hidden: Tensor, mask: Tensor, how: str) -> Tensor:
    """One vector per row of (B, L, H) with right padding. Returns (B, H)."""
    if how == "cls":
        return hidden[:, 0]
    if how == "lasttoken":
        return hidden[torch.arange(len(hidden), device=hidden.device), mask.sum(1) - 1]
    weights = mask.unsqueeze(-1).to(hidden.dtype)  # (B, L, 1)
    if how == "max":
        return hidden.masked_fill(weights == 0, float("-inf")).amax(1)
    return (hidden * weights).sum(1) / weights.sum(1)


def _transformers_model(folder: Path, raw: dict[str, Any], state: dict[str, Tensor]) -> Any:
    """Any model of transformers, in fp32; DPR's towers are BERT models under another name."""
    from transformers import AutoModel, BertConfig, BertModel

    if raw["model_type"] == "dpr":
        inner = BertModel(
            BertConfig(**{k: v for k, v in raw.items() if k != "model_type"}), add_pooling_layer=False
        )
        problems = inner.load_state_dict(state, strict=False)
        _refuse_missing(folder, problems.missing_keys)
        return inner
    weight_files(folder)  # refuses pickled weights with a hint, before transformers looks for them
    try:
        model, found = AutoModel.from_pretrained(
            folder,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float32,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError) as error:
        raise ArtifactError(f"{folder}: transformers cannot load it ({error})") from error
    _refuse_missing(folder, found["missing_keys"])
    return model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model


def _refuse_missing(folder: Path, names: Iterable[str]) -> None:
    """Weights that are not in the file would be random numbers; only BERT's unused pooler may be absent."""
    missing = sorted(name for name in names if "pooler" not in name and "position_ids" not in name)
    if missing:
        raise ArtifactError(
            f"{folder} lacks {len(missing)} weights, the first is {missing[0]}",
            hint="copy or download it again",
        )


def _projections(settings: EncoderSettings, beside: dict[str, Tensor]) -> list[nn.Module]:
    """Dense layers after pooling: DPR's `encode_proj`, sentence-transformers' Dense modules."""
    layers: list[nn.Module] = []
    weight = next((tensor for name, tensor in beside.items() if name.endswith("encode_proj.weight")), None)
    if weight is not None:
        bias = next(tensor for name, tensor in beside.items() if name.endswith("encode_proj.bias"))
        layers.append(_linear(weight, bias))
    for folder in settings.projections:
        config = read_json(folder / "config.json")
        kind = str(config.get("activation_function", "Identity")).rpartition(".")[2]
        if kind not in _ACTIVATIONS or config.get("use_residual"):
            raise ArtifactError(
                f"{folder}: activation {kind!r}, residual {bool(config.get('use_residual'))} is not known",
                hint=f"known: {', '.join(_ACTIVATIONS)}, without residual",
            )
        state: dict[str, Tensor] = {}
        for file in weight_files(folder):
            state.update(load_file(file))
        layers.append(
            nn.Sequential(_linear(state["linear.weight"], state.get("linear.bias")), _ACTIVATIONS[kind]())
        )
    return layers


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
    return layer.requires_grad_(False)
