"""Retriever and reader as one model: parameters are named `retriever.…` and by what the reader is."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from rag.training.precision import MasterWeights
from retrievers.training.model import BiEncoderModel


def paired(
    retriever: BiEncoderModel,
    own: MasterWeights,
    reader: nn.Module,
    full: Mapping[str, Tensor],
    *,
    name: str = "reader",
) -> tuple[nn.Module, MasterWeights]:
    """Both networks as one, and fp32 copies of what is trained of them.

    Args:
        retriever: with its fp32 copies, `own`.
        reader: with its fp32 weights, `full`.
        name: of the reader's part.
    """
    module = nn.ModuleDict({"retriever": retriever, name: reader})
    weights = {f"retriever.{n}": tensor for n, tensor in own.state().items()}
    return module, MasterWeights(module, weights | {f"{name}.{n}": tensor for n, tensor in full.items()})


def part(weights: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The weights of one part, by the part's own names.

    Example:
        >>> import torch
        >>> part({"reader.head.bias": torch.zeros(2), "retriever.head.bias": torch.ones(2)}, "reader")
        {'head.bias': tensor([0., 0.])}
    """
    begin = f"{name}."
    return {n.removeprefix(begin): tensor for n, tensor in weights.items() if n.startswith(begin)}
