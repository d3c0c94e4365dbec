"""Functions run in several processes that talk over gloo, as torchrun would start them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rag.runtime.distributed import World


def run_world(size: int, folder: Path, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`function(world, *arguments)` in each of `size` forked processes; their results by rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    folder.mkdir(parents=True, exist_ok=True)
    processes = [
        context.Process(target=_main, args=(rank, size, port, folder, function, arguments))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        if process.is_alive():
            process.kill()
    assert [process.exitcode for process in processes] == [0] * size
    return [pickle.loads((folder / f"rank-{rank}").read_bytes()) for rank in range(size)]


def _main(
    rank: int, size: int, port: int, folder: Path, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()}, MASTER_ADDR="127.0.0.1")
    with World.from_environment("cpu") as world:
        result = function(world, *arguments)
    (folder / f"rank-{rank}").write_bytes(pickle.dumps(result))
