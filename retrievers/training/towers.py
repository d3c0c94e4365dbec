"""One trainable encoder tower: token ids in, one vector per text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel, BertConfig, BertModel

from rag.core.errors import ArtifactError, ConfigError
from rag.core.files import read_json
from rag.runtime.attention import register_math_attention
from rag.runtime.dropout import use_fast_dropout
from retrievers.encoders.files import backbone_state, weight_files
from retrievers.encoders.settings import EncoderSettings, read_config

__all__ = ["TrainableTower"]

Int32 = npt.NDArray[np.int32]

_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout")
_MATH_ATTENTION = {"bert", "roberta", "electra", "xlm-roberta", "camembert", "distilbert", "albert"}


@dataclass(frozen=True, slots=True)
class _Linear:
    """A linear layer that the folder brings: weight (D, H) and bias (D) or None."""

    weight: Tensor
    bias: Tensor | None


class TrainableTower(nn.Module):
    """Encoder, pooling, perhaps a linear layer, perhaps normalisation. Made by `load`.

    Pooling and everything after it compute in fp32, whatever dtype the encoder has.

    Attributes:
        encoder: the bare transformers model, without BERT's pooler.
        projection: linear layer after pooling, or None.
        folder: the model's folder, which has the tokenizer too.
        dim: size D of the vectors.
        autocast: run the encoder under bf16 autocast (GPU); on a CPU its weights are bf16 themselves.
    """

    def __init__(
        self, encoder: nn.Module, projection: nn.Linear | None, *, folder: Path, pooling: str, normalize: bool
    ) -> None:
        super().__init__()
        self.encoder, self.projection = encoder, projection
        self.folder, self.pooling, self.normalize = folder, pooling, normalize
        self.autocast = False
        config: Any = encoder.config
        self.pad_id = int(getattr(config, "pad_token_id", 0) or 0)
        self.dim = projection.out_features if projection is not None else int(config.hidden_size)

    @classmethod
    def load(
        cls,
        settings: EncoderSettings,
        *,
        projection_dim: int = 0,
        dropout: float | None = None,
        seed: int = 0,
        device: str = "cpu",
    ) -> TrainableTower:
        """Load weights in fp32.

        Args:
            settings: what the folder says, after overrides.
            projection_dim: size of a new linear layer after pooling; 0 keeps what the folder has.
            dropout: replaces the configuration's dropout probabilities, if given.
            seed: of a new layer's weights.
            device: "cpu" or "cuda:N"; decides which attention is used.

        Raises:
            ArtifactError: the folder holds no loadable encoder.
            ConfigError: the folder's layers after pooling cannot be trained, or are not of the wanted size.
        """
        folder = settings.weights_dir
        encoder, beside = _load_encoder(folder, dropout, device)
        found = _own_projection(settings, beside)
        hidden = int(encoder.config.hidden_size)
        layer: nn.Linear | None = None
        if found is not None:
            if projection_dim not in (0, found.weight.shape[0]):
                raise ConfigError(
                    f"{folder} has a projection to {found.weight.shape[0]} numbers, projection_dim is "
                    f"{projection_dim}",
                    hint="leave projection_dim at 0 to train the projection that is there",
                )
            layer = nn.Linear(hidden, found.weight.shape[0], bias=found.bias is not None)
            with torch.no_grad():
                layer.weight.copy_(found.weight)
                if found.bias is not None:
                    layer.bias.copy_(found.bias)
        elif projection_dim:
            layer = nn.Linear(hidden, projection_dim)
            with torch.no_grad():
                drawn = torch.empty_like(layer.weight)
                drawn.normal_(0.0, hidden**-0.5, generator=torch.Generator().manual_seed(seed))
                layer.weight.copy_(drawn)
                layer.bias.zero_()
        tower = cls(encoder, layer, folder=folder, pooling=settings.pooling, normalize=settings.normalize)
        return tower.to(device)

    @property
    def config(self) -> dict[str, Any]:
        """The bare model's configuration as plain values, as in its config.json."""
        encoder: Any = self.encoder
        values: dict[str, Any] = encoder.config.to_dict()
        return values

    @property
    def is_trained(self) -> bool:
        """Whether any of its parameters takes gradients."""
        return any(parameter.requires_grad for parameter in self.parameters())

    def to_compute(self, dtype: torch.dtype) -> TrainableTower:
        """bf16: on a CPU the encoder's weights themselves, on a GPU autocast over fp32 weights."""
        if next(self.encoder.parameters()).device.type == "cpu":
            self.encoder.to(dtype)
        else:
            self.autocast = dtype == torch.bfloat16
        return self

    def forward(self, texts: Sequence[Int32]) -> Tensor:
        """Vectors (n, D) float32 of n token sequences (special tokens included), padded together."""
        device = next(self.encoder.parameters()).device
        ids, mask = _pad(texts, self.pad_id)  # (n, L)
        ids, mask = ids.to(device), mask.to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.autocast):
            hidden = self.encoder(input_ids=ids, attention_mask=mask)[0]  # (n, L, H)
        pooled = _pool(hidden, mask, self.pooling)  # (n, H)
        if self.projection is not None:
            pooled = self.projection(pooled)  # (n, D)
        return functional.normalize(pooled, dim=-1) if self.normalize else pooled

    def bare_state(self, weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """The encoder's tensors under the bare model's names.

        Args:
            weights: fp32 values by this model's parameter names, such as a fit's result; parameters that are
                not among them (frozen ones) keep their present values.
            prefix: this tower's name in those names, such as "question.".
        """
        own = {name: tensor.detach().float() for name, tensor in self.encoder.state_dict().items()}
        return {name: weights.get(f"{prefix}encoder.{name}", tensor) for name, tensor in own.items()}

    def bare_projection(
        self, weights: Mapping[str, Tensor], prefix: str
    ) -> tuple[Tensor, Tensor | None] | None:
        """Weight (D, H) and bias (D) or None of the layer after pooling; None if there is no layer."""
        if self.projection is None:
            return None
        bias = self.projection.bias
        return (
            weights.get(f"{prefix}projection.weight", self.projection.weight.detach()),
            None if bias is None else weights.get(f"{prefix}projection.bias", bias.detach()),
        )


def _pad(texts: Sequence[Int32], pad_id: int) -> tuple[Tensor, Tensor]:
    """Token ids and mask, both (n, L) int64, padded on the right."""
    lengths = np.array([len(text) for text in texts])
    filled = np.arange(lengths.max()) < lengths[:, None]  # (n, L)
    ids = np.full(filled.shape, pad_id, dtype=np.int64)
    ids[filled] = np.concatenate(texts)
    return torch.from_numpy(ids), torch.from_numpy(filled.astype(np.int64))


def _pool(hidden: Tensor, mask: Tensor, how: str) -> Tensor:
    """One fp32 vector per row of (n, L, H) with right padding. Returns (n, H)."""
    if how == "cls":
        return hidden[:, 0].float()
    if how == "lasttoken":
        return hidden[torch.arange(len(hidden), device=hidden.device), mask.sum(1) - 1].float()
    hidden = hidden.float()
    weights = mask.unsqueeze(-1).to(hidden.dtype)  # (n, L, 1)
    if how == "max":
        return hidden.masked_fill(weights == 0, float("-inf")).amax(1)
    return (hidden * weights).sum(1) / weights.sum(1)


def _load_encoder(folder: Path, dropout: float | None, device: str) -> tuple[Any, dict[str, Tensor]]:
    """The bare model in training mode, and the weights that lie beside it in a DPR folder."""
    raw = read_config(folder)
    is_dpr = raw["model_type"] == "dpr"
    kind = "bert" if is_dpr else raw["model_type"]
    math = register_math_attention() if device == "cpu" and kind in _MATH_ATTENTION else None
    beside: dict[str, Tensor] = {}
    weight_files(folder)  # refuses pickled weights with a hint, before transformers looks for them
    try:
        if is_dpr:
            config = BertConfig(**{k: v for k, v in raw.items() if k != "model_type"})
            _set_dropout(config, dropout)
            encoder = BertModel(config, add_pooling_layer=False)
            if math is not None:
                encoder.set_attn_implementation(math)
            state, beside = backbone_state(folder)
            missing = list(encoder.load_state_dict(state, strict=False).missing_keys)
        else:
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
            _set_dropout(config, dropout)
            encoder, found = AutoModel.from_pretrained(
                folder,
                config=config,
                use_safetensors=True,
                trust_remote_code=False,
                dtype=torch.float32,
                attn_implementation=math,
                output_loading_info=True,
            )
            missing = list(found["missing_keys"])
    except (OSError, ValueError, KeyError) as error:
        raise ArtifactError(f"{folder}: transformers cannot load it ({error})") from error
    if getattr(config, "is_encoder_decoder", False):
        raise ConfigError(f"{folder} is an encoder-decoder; a bi-encoder is trained from an encoder")
    missing = [name for name in missing if "pooler" not in name and "position_ids" not in name]
    if missing:
        raise ArtifactError(
            f"{folder} lacks {len(missing)} weights, the first is {missing[0]}",
            hint="copy or download it again",
        )
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None
    if device == "cpu":
        use_fast_dropout(encoder)
    return encoder.train(), beside


def _set_dropout(config: Any, dropout: float | None) -> None:
    for name in _DROPOUTS:
        if dropout is not None and hasattr(config, name):
            setattr(config, name, dropout)


def _own_projection(settings: EncoderSettings, beside: Mapping[str, Tensor]) -> _Linear | None:
    """The linear layer after pooling that the folder brings, if it does."""
    for name, weight in beside.items():
        if name.endswith("encode_proj.weight"):
            return _Linear(weight, beside.get(name.removesuffix("weight") + "bias"))
    if not settings.projections:
        return None
    folder = settings.projections[0]
    activation = str(read_json(folder / "config.json").get("activation_function", "Identity"))
    if len(settings.projections) > 1 or not activation.endswith("Identity"):
        raise ConfigError(
            f"{settings.weights_dir} has {len(settings.projections)} layers after pooling, the first with "
            f"{activation.rpartition('.')[2]}; one linear layer without activation can be trained",
            hint="start from the encoder without these layers, and set projection_dim",
        )
    state: dict[str, Tensor] = {}
    for file in weight_files(folder):
        state.update(load_file(file))
    return _Linear(state["linear.weight"], state.get("linear.bias"))
