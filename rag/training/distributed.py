"""The processes of one training run and what they exchange, through accelerate.

There is no wrapper around the model: every process computes its share of the gradient, and the
shares are added in fp32 once per step, however many backward passes the step took. Shares are
summed, not averaged, so the sum is the gradient of the loss over the whole batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from rag.core.errors import ConfigError, ResourceError
from rag.runtime.hardware import resolve_device

# The others wait while one process validates.
_TIMEOUT = timedelta(hours=12)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class World:
    """The processes of a run, as one of them sees it.

    Attributes:
        rank: number of this process, from 0.
        device: what this process computes on, "cpu" or "cuda:N".
    """

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @classmethod
    @contextmanager
    def joined(cls, device: str = "auto") -> Iterator[World]:
        """Join the processes that `torchrun` started, and leave them at the end; else be one on its
        own.

        Processes talk over gloo on CPUs and over NCCL on GPUs, one GPU per process.

        Raises:
            ResourceError: there are fewer GPUs than processes, the others cannot be reached, or
                only some of torchrun's variables are set.
        """
        size = os.environ.get("WORLD_SIZE", "1")
        if size == "1":
            yield cls(device=resolve_device(device))
            return
        from accelerate import PartialState

        # Its functions take the present group as a default: if a library imports it later, they
        # keep that group, and its threads, to the end of the program, which may then end by an
        # abort.
        import_module("torch.distributed.nn")
        where = resolve_device(device)
        try:
            os.environ.setdefault("LOCAL_RANK", os.environ["RANK"])
            state = PartialState(cpu=where == "cpu", timeout=_TIMEOUT)
        except (KeyError, RuntimeError, ValueError) as error:
            raise ResourceError(
                f"one of {size} processes has no GPU, or cannot reach the others ({error})",
                hint="start all with torchrun --nproc-per-node N -m rag.cli.main train ..., and give each "
                "process of a machine a GPU",
            ) from error
        # Accelerate calls the CPU "cpu:0".
        device = where if where == "cpu" else str(state.device)
        yield cls(state.process_index, state.num_processes, device)
        # Not after an error, when the others may be inside a collective.
        state.destroy_process_group()

    def share(self, count: int) -> slice:
        """The part of a batch's `count` texts that this process computes: consecutive, about
        equally many.

        Raises:
            ConfigError: there are fewer texts than processes, so that some would have nothing to
                do.
        """
        if count < self.size:
            raise ConfigError(
                f"a batch of {count} texts cannot be shared by {self.size} processes",
                hint="raise batch_size, or start fewer processes",
            )
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    @property
    def is_main(self) -> bool:
        """Whether this is the process that logs, validates and writes files."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            dist.barrier()

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Concatenate the processes' tensors in order of rank; gradients do not flow back.

        Args:
            tensor: (n, …) on this world's device; n may differ between processes, the rest may not.

        Returns:
            (sum of n, …), the same bits in every process.
        """
        tensor = tensor.detach()
        if self.size == 1:
            return tensor
        from accelerate.utils import gather, pad_across_processes

        counts = gather(torch.tensor([len(tensor)], device=tensor.device)).tolist()
        parts = gather(pad_across_processes(tensor)).split(max(counts))
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @torch.no_grad()
    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the processes, which agree in number, shapes and
        dtypes.
        """
        for tensor in tensors if self.size > 1 else ():
            whole = tensor.contiguous()
            dist.all_reduce(whole)
            tensor.copy_(whole)

    def total(self, number: float) -> float:
        """The sum of a number over the processes."""
        value = torch.tensor([number], dtype=torch.float64, device=self.device)
        self.sum_([value])
        return float(value)

    @torch.no_grad()
    def broadcast_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its value in the main process."""
        for tensor in tensors if self.size > 1 else ():
            dist.broadcast(tensor, src=0)

    def broadcast_object(self, value: T) -> T:
        """The main process's `value` in every process."""
        from accelerate.utils import broadcast_object_list

        return value if self.size == 1 else broadcast_object_list([value])[0]
