"""Answers whose words are sent while a language model still writes them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from starlette.requests import Request

from serve.engine import Engine, Job


class Speech:
    """The words of an answer as they come, and then the answer.

    Args:
        job: asks one question.
    """

    def __init__(self, engine: Engine, request: Request, job: Job, question: str) -> None:
        loop = asyncio.get_running_loop()
        self._pieces = asyncio.Queue[str | None]()

        def on_text(text: str) -> None:
            loop.call_soon_threadsafe(self._pieces.put_nowait, text)

        spoken = replace(job, on_text=on_text)
        self._answer = asyncio.create_task(engine.run(request, spoken, [question]))
        self._answer.add_done_callback(lambda _: self._pieces.put_nowait(None))

    async def next_piece(self) -> str | None:
        """The next words; None once the answer is there, or has failed."""
        return await self._pieces.get()

    async def result(self) -> dict[str, Any]:
        """The answer as JSON values.

        Raises:
            ApiError: see `Engine.run`.
        """
        (result,) = await self._answer
        return result

    def stop(self) -> None:
        """Wait for the answer no longer."""
        self._answer.cancel()
