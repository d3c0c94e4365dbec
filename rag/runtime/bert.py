"""BERT-like encoders for inference in torch alone, equal to transformers' in evaluation mode.

Importing transformers' networks takes longer than answering a question. Here the usual ones (BERT, RoBERTa,
XLM-R, DPR's towers) need nothing but their weights, which are read from a memory map and not copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

FAMILIES = frozenset({"bert", "dpr", "roberta", "xlm-roberta", "camembert"})
_ROBERTA = FAMILIES - {"bert", "dpr"}  # their positions start behind the padding index
_ACTIVATIONS: Mapping[str, Any] = {
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}


class Bert(nn.Module):
    """Last hidden states of padded token ids; called as transformers' `BertModel` is.

    Matrix products compute in the dtype of the weights (`compute_in`), the residual stream and LayerNorm in
    fp32.

    Args:
        state: weights under the names of transformers' `BertModel`.
        config: its configuration.

    Raises:
        KeyError: a weight is missing; its argument is the name.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        ...                     intermediate_size=16)
        >>> model = Bert(BertModel(config, add_pooling_layer=False).state_dict(), config)
        >>> model(torch.tensor([[1, 2, 3]]), torch.tensor([[1, 1, 1]]))[0].shape
        torch.Size([1, 3, 8])
    """

    def __init__(self, state: Mapping[str, Tensor], config: Any) -> None:
        super().__init__()
        self.config, self.dtype = config, torch.float32
        parts = ("word_embeddings.weight", "position_embeddings.weight", "token_type_embeddings.weight")
        names = [f"embeddings.{part}" for part in (*parts, "LayerNorm.weight", "LayerNorm.bias")]
        for number in range(config.num_hidden_layers):
            layer = f"encoder.layer.{number}"
            names += [f"{layer}.{part}.{kind}" for part in _PARTS for kind in ("weight", "bias")]
        self.weights = {name: state[name] for name in names}

    @staticmethod
    def supports(config: Any) -> bool:
        """Whether this class computes what the network of `config` does."""
        return (
            getattr(config, "model_type", "") in FAMILIES
            and getattr(config, "hidden_act", "") in _ACTIVATIONS
            and (getattr(config, "position_embedding_type", None) or "absolute") == "absolute"
            and not getattr(config, "is_decoder", False)
        )

    def compute_in(self, dtype: torch.dtype) -> Bert:
        """Convert the matrices of the layers to `dtype`. Returns self."""
        self.dtype = dtype
        for name, tensor in self.weights.items():
            if name.startswith("encoder.") and "LayerNorm" not in name:
                self.weights[name] = tensor.to(dtype)
        return self

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor]:
        """Hidden states (n, L, H) float32, in a tuple.

        Args:
            input_ids: (n, L) int64.
            attention_mask: (n, L), 1 on the tokens that others attend to.
            token_type_ids: (n, L) int64; None: all 0.
        """
        w, n, length = self.weights, *input_ids.shape
        positions = torch.arange(length)[None]
        if self.config.model_type in _ROBERTA:
            padding = int(self.config.pad_token_id)
            real = (input_ids != padding).long()
            positions = real.cumsum(1) * real + padding
        x = functional.embedding(input_ids, w["embeddings.word_embeddings.weight"])
        x = x + functional.embedding(positions, w["embeddings.position_embeddings.weight"])
        types = w["embeddings.token_type_embeddings.weight"]
        x = x + (types[0] if token_type_ids is None else functional.embedding(token_type_ids, types))
        x = self._norm(x, "embeddings.LayerNorm")
        seen = None if bool(attention_mask.all()) else attention_mask.bool()[:, None, None]
        heads, act = self.config.num_attention_heads, _ACTIVATIONS[self.config.hidden_act]
        for number in range(self.config.num_hidden_layers):
            layer = f"encoder.layer.{number}."
            q, k, v = (
                self._linear(x, f"{layer}attention.self.{part}").view(n, length, heads, -1).transpose(1, 2)
                for part in ("query", "key", "value")
            )
            context = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
            out = self._linear(context.transpose(1, 2).flatten(2), f"{layer}attention.output.dense")
            x = self._norm(x + out, f"{layer}attention.output.LayerNorm")
            inner = act(self._linear(x, f"{layer}intermediate.dense"))
            x = self._norm(x + self._linear(inner, f"{layer}output.dense"), f"{layer}output.LayerNorm")
        return (x,)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return functional.linear(
            x.to(self.dtype), self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        )

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return functional.layer_norm(x, weight.shape, weight, bias, self.config.layer_norm_eps)


_PARTS = (
    *("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"),
    *("attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"),
)
