"""Weights averaged with those of other readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from rag.core.errors import ConfigError
from readers.extractive.files import load_parts

Other = tuple[float, Mapping[str, torch.Tensor]]
"""A reader's share, and its weights by name."""


def other_readers(shares: Mapping[str, float], weights: Mapping[str, torch.Tensor]) -> list[Other]:
    """Load the readers that `weights` are to be averaged with.

    Args:
        shares: folder or name → share.
        weights: of the network that is trained.

    Raises:
        ArtifactError: there is no reader.
        ConfigError: a reader has another network.
    """
    found: list[Other] = []
    for source, share in shares.items():
        other = load_parts(source).model.state_dict()
        odd = [name for name in other.keys() & weights.keys() if other[name].shape != weights[name].shape]
        if odd or not other.keys() & weights.keys():
            raise ConfigError(
                f"average: {source} is another network ({', '.join(odd[:3]) or 'no weight in common'})",
                hint="weights can be averaged of readers that went on from the same one",
            )
        found.append((share, other))
    return found


def averaged(weights: Mapping[str, torch.Tensor], others: Sequence[Other]) -> dict[str, torch.Tensor]:
    """Each weight averaged over the readers that have it, in proportion to their shares.

    Example:
        >>> one = {"w": torch.tensor([1.0]), "new": torch.tensor([5.0])}
        >>> averaged(one, [(0.4, {"w": torch.tensor([2.0])})])
        {'w': tensor([1.4000]), 'new': tensor([5.])}

    Source: Wortsman et al. 2022, "Model soups" and "Robust fine-tuning of zero-shot models".
    """
    rest = 1.0 - sum(share for share, _ in others)
    mixed = dict(weights)
    for name, own in weights.items():
        having = [(rest, own), *((share, found[name]) for share, found in others if name in found)]
        if own.is_floating_point() and len(having) > 1:
            total = sum(share for share, _ in having)
            mixed[name] = torch.stack([share / total * one.float() for share, one in having]).sum(0)
    return mixed
