"""Training in bf16 with fp32 master weights.

The model itself holds bf16 weights, so forward and backward run wholly in bf16 kernels without casting
weights at every step; the optimiser works on fp32 copies and writes them back rounded. Small updates are
thus never lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from rag.core.errors import ConfigError
from rag.runtime.hardware import has_fast_bf16

__all__ = ["MasterWeights", "resolve_precision"]


def resolve_precision(precision: str, device: str = "cpu") -> torch.dtype:
    """ "auto" is bf16 where the hardware does it, else fp32.

    Raises:
        ConfigError: for an unknown name.
    """
    if precision == "auto":
        return torch.bfloat16 if has_fast_bf16(device) else torch.float32
    known = {"fp32": torch.float32, "bf16": torch.bfloat16}
    if precision not in known:
        raise ConfigError(f"unknown precision {precision!r}", hint="use auto, bf16 or fp32")
    return known[precision]


class MasterWeights:
    """fp32 copies of a model's trainable parameters; the model may hold another dtype.

    Args:
        model: module already in its compute dtype.
        full: optional fp32 state dict to start from (otherwise the model's own weights, widened).
    """

    def __init__(self, model: torch.nn.Module, full: dict[str, torch.Tensor] | None = None) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in named]
        self.parameters = [p for _, p in named]
        self.master: list[torch.Tensor] = []
        for name, parameter in named:
            source = parameter if full is None else full[name]
            self.master.append(
                source.detach().to(parameter.device, torch.float32, copy=True).requires_grad_()
            )

    def gather_gradients(self) -> None:
        """Add the model's gradients to those of the fp32 copies and free them.

        Called after every backward pass, so that sums of many passes are made in fp32.
        """
        for master, parameter in zip(self.master, self.parameters, strict=True):
            if parameter.grad is None:
                continue
            if master.grad is None:
                master.grad = parameter.grad.float()
            else:
                master.grad += parameter.grad
            parameter.grad = None

    @torch.no_grad()
    def write_back(self) -> None:
        """Round the fp32 copies into the model; their gradients are used up."""
        for master, parameter in zip(self.master, self.parameters, strict=True):
            parameter.copy_(master)
            master.grad = None

    @torch.no_grad()
    def show(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Round other values (an average, a checkpoint's) into the model; `write_back` undoes it."""
        for name, parameter in zip(self.names, self.parameters, strict=True):
            parameter.copy_(tensors[name])

    @torch.no_grad()
    def load(self, tensors: dict[str, torch.Tensor]) -> None:
        """Replace the fp32 copies (a checkpoint's) and round them into the model."""
        for name, master in zip(self.names, self.master, strict=True):
            master.copy_(tensors[name])
        self.write_back()

    def groups(self, weight_decay: float) -> Iterable[dict[str, object]]:
        """Optimiser groups: decay on matrices, none on biases and norms (1-d tensors)."""
        yield {"params": [p for p in self.master if p.ndim > 1], "weight_decay": weight_decay}
        yield {"params": [p for p in self.master if p.ndim <= 1], "weight_decay": 0.0}

    def state(self) -> dict[str, torch.Tensor]:
        """Name → fp32 copy."""
        return {name: master.detach() for name, master in zip(self.names, self.master, strict=True)}
