"""Retriever and reader as one model, whose parameter names begin with the name of their part."""

from collections.abc import Mapping

from torch import Tensor


def part(weights: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The weights of one part, under their names without the prefix.

    Example:
        >>> import torch
        >>> part({"reader.head.bias": torch.zeros(2), "retriever.head.bias": torch.ones(2)}, "reader")
        {'head.bias': tensor([0., 0.])}
    """
    begin = f"{name}."
    return {n.removeprefix(begin): tensor for n, tensor in weights.items() if n.startswith(begin)}
