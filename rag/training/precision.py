"""Training in bf16 with fp32 master weights.

The model itself holds bf16 weights, so forward and backward run wholly in bf16 kernels without
casting weights at every step; the optimiser works on fp32 copies and writes them back rounded.
Small updates are thus never lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import torch

from rag.core.errors import ConfigError
from rag.runtime.hardware import resolve_precision


class MasterWeights:
    """fp32 copies of a model's trainable parameters; the model may hold another dtype.

    A parameter that is fp32 itself needs no copy: it is its own master.

    Args:
        model: a module.
        precision: number type that the model is turned to: "auto", "bf16" or "fp32". A module with
            a method `to_compute`, wherever in the model it is, decides itself which of its parts
            compute in it.

    Attributes:
        frozen: fp32 values of parameters that are not trained, on the CPU.
    """

    def __init__(self, model: torch.nn.Module, precision: str) -> None:
        dtype = resolve_precision(precision, str(next(model.parameters()).device))
        full = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        _to_compute(model, dtype)
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.names = list(trained)
        self.master: list[torch.Tensor] = [
            p if p.dtype == torch.float32 else full[name].float().requires_grad_()
            for name, p in trained.items()
        ]
        pairs = zip(self.master, trained.values(), strict=True)
        self._rounded = [(master, p) for master, p in pairs if master is not p]
        self.frozen = {name: tensor.cpu() for name, tensor in full.items() if name not in trained}

    @torch.no_grad()
    def gather_gradients(self) -> None:
        """Add the model's gradients to those of the fp32 copies and free them.

        Called after every backward pass, so that sums of many passes are made in fp32.
        """
        for master, parameter in self._rounded:
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
        for master, parameter in self._rounded:
            parameter.copy_(master)
        for master in self.master:
            master.grad = None

    @torch.no_grad()
    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Replace the fp32 copies, by those of a checkpoint, and round them into the model."""
        for name, master in zip(self.names, self.master, strict=True):
            master.copy_(tensors[name])
        self.write_back()

    def groups(
        self, rate: float, weight_decay: float = 0.0, rates: Mapping[str, float] = {}
    ) -> list[dict[str, object]]:
        """Optimiser groups with their peak rates: decay on matrices, none on biases and norms (1-d
        tensors).

        Args:
            rates: other peaks for parameters whose names begin with these words; the longest match
                counts.

        Raises:
            ConfigError: no trained parameter has a name that begins with such words.

        Example:
            >>> model = torch.nn.ModuleDict({name: torch.nn.Linear(2, 1) for name in ("reader", "retriever")})
            >>> master = MasterWeights(model, "fp32")
            >>> groups = master.groups(1e-3, rates={"retriever": 1e-5, "retriever.bias": 0.1})
            >>> [(group["peak"], len(group["params"])) for group in groups]
            [(0.001, 2), (1e-05, 1), (0.1, 1)]
        """
        members = defaultdict[tuple[float, float], list[torch.Tensor]](list)
        unused = set(rates)
        for name, tensor in zip(self.names, self.master, strict=True):
            matching = [prefix for prefix in rates if f"{name}.".startswith(f"{prefix}.")]
            unused.difference_update(matching)
            peak = rates.get(max(matching, key=len, default=""), rate)
            members[peak, weight_decay * (tensor.ndim > 1)].append(tensor)
        if unused:
            parts = sorted({name.partition(".")[0] for name in self.names})
            raise ConfigError(
                f"a learning rate is given for {', '.join(sorted(unused))}, but no trained parameter "
                "has such a name",
                hint=f"they begin with {', '.join(parts)}",
            )
        return [
            {"params": tensors, "weight_decay": decay, "peak": peak}
            for (peak, decay), tensors in members.items()
        ]

    def state(self) -> dict[str, torch.Tensor]:
        """Name → fp32 copy."""
        return {name: master.detach() for name, master in zip(self.names, self.master, strict=True)}

    def copy(self) -> dict[str, torch.Tensor]:
        """The state as it is now, whatever training changes after that."""
        return {name: tensor.clone() for name, tensor in self.state().items()}


def _to_compute(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """Turn a module to the number type that it computes in."""
    to_compute = getattr(module, "to_compute", None)
    if to_compute is not None:
        to_compute(dtype)
        return
    if not any(hasattr(inner, "to_compute") for inner in module.modules()):
        module.to(dtype)
        return
    for child in module.children():
        _to_compute(child, dtype)
    for parameter in module.parameters(recurse=False):
        parameter.data = parameter.data.to(dtype)


def part(weights: Mapping[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    """The weights of one part of a model whose parameter names begin with their part's, without
    that prefix.

    Example:
        >>> part({"reader.head.bias": torch.zeros(2), "retriever.head.bias": torch.ones(2)}, "reader")
        {'head.bias': tensor([0., 0.])}
    """
    begin = f"{name}."
    return {n.removeprefix(begin): tensor for n, tensor in weights.items() if n.startswith(begin)}
