"""Functions run in processes of their own: to be killed, or to talk over gloo as torchrun would
start them.

The processes are forked from a server that has computed nothing yet. A fork of the test process
itself may
hang: the threads of OpenMP, which it believes it has, do not exist in it.
"""

import itertools
import multiprocessing
import os
import pickle
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dill
import torch

from rag.training.card import Card
from rag.training.distributed import World
from rag.training.fit import Loss, Method
from rag.training.precision import MasterWeights

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.worlds"])


def start_process(
    function: Callable[..., Any], *arguments: Any
) -> multiprocessing.process.BaseProcess:
    """`function(*arguments)` in a new process, which has been started; local functions work too."""
    process = _CONTEXT.Process(target=_call, args=(dill.dumps((function, arguments)),))
    process.start()
    return process


def _call(payload: bytes) -> None:
    function, arguments = dill.loads(payload)
    function(*arguments)


def killed_at(
    owner: Any,
    name: str,
    call: int,
    function: Callable[..., Any],
    *arguments: Any,
    limit_s: float = 300.0,
) -> None:
    """Run `function(*arguments)` in a process that is killed when it calls `owner.name` for the
    `call`th time (from 0), and wait for that."""
    process = start_process(_dying, owner, name, call, function, arguments)
    process.join(limit_s)
    assert process.exitcode == -signal.SIGKILL


def _dying(
    owner: Any, name: str, call: int, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    plain = getattr(owner, name)
    calls = itertools.count()

    def deadly(*arguments: Any, **named: Any) -> Any:
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*arguments, **named)

    setattr(owner, name, deadly)
    function(*arguments)


def run_world(size: int, folder: Path, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`function(world, *arguments)` in each of `size` processes; their results by rank."""
    return torchrun(size, folder, _in_world, function, arguments)


def _in_world(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    with World.joined("cpu") as world:
        result = function(world, *arguments)
    assert not any("gloo" in file.read_text() for file in Path("/proc/self/task").glob("*/comm"))
    return result


def torchrun(size: int, folder: Path, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`function(*arguments)` in each of `size` processes, which find torchrun's variables; their
    results by rank.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir(parents=True, exist_ok=True)
    processes = [
        start_process(_main, rank, size, port, folder, function, arguments) for rank in range(size)
    ]
    for process in processes:
        process.join(120)
        if process.is_alive():
            process.kill()
    assert [process.exitcode for process in processes] == [0] * size
    return [pickle.loads((folder / f"rank-{rank}").read_bytes()) for rank in range(size)]


def _main(
    rank: int,
    size: int,
    port: int,
    folder: Path,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()}, MASTER_ADDR="127.0.0.1")
    result = function(*arguments)
    (folder / f"rank-{rank}").write_bytes(pickle.dumps(result))


def toy_method(
    model: torch.nn.Module, batches: Any, loss: Callable[[Any], Loss], *more: Any, **named: Any
) -> Method:
    """What `fit` needs of a recipe that exports nothing; `more` are evaluation and hooks,
    `named` other parts of a `Method`.
    """
    master = MasterWeights(model, "fp32")
    card = Card("rag.training", "card.md")
    return Method(model, master, batches, loss, lambda weights: None, card, *more, **named)
