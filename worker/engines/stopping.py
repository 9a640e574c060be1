"""StopRequests: the prompts of one engine that were asked to stop and may still run there.

A request to stop has no reply: a node that does not check for it goes on. So the engine's queue is polled until the
prompt is gone, and meanwhile the engine counts as busy. A job ends when its prompt was asked to stop, not when that has
stopped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from darkroom.worker.concurrency.backoff import Backoff
from darkroom.worker.errors import EngineUnreachable

ASK_SECONDS = 2.0  # an engine that answers nothing must not hold up the end of its job
LOOK_BACKOFF = Backoff(first_seconds=0.05, longest_seconds=0.25)
ASK_AGAIN_SECONDS = 1.0  # the first time may have been lost on its way
RUNNING = "queue_running"


@dataclass(slots=True, eq=False)
class StopRequest:
    """Prompt that was asked to stop. `asked_at` is monotonic seconds.

    `is_running` is False while the prompt is only known to wait. `longest_gap_seconds` is the longest time between two
    of its progress reports before the request.
    """

    prompt_id: str
    longest_gap_seconds: float
    is_running: bool
    asked_at: float


class StopRequests:
    """Requests to stop prompts of one engine, each repeated until its prompt is gone.

    `ask` sends a request, `place_of` returns a prompt's place in the engine's queue (None: nowhere). `on_change` is
    called whenever `running` may have changed, `on_gone` when a prompt has left the engine.
    """

    def __init__(
        self,
        ask: Callable[[str], Awaitable[None]],
        place_of: Callable[[str], Awaitable[str | None]],
        on_change: Callable[[], None] = lambda: None,
        on_gone: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self._on_change = on_change
        self._on_gone = on_gone
        self._ask = ask
        self._place_of = place_of
        self._requests: dict[str, StopRequest] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> list[StopRequest]:
        """Requests for prompts that occupy the engine, as far as is known, the oldest first."""
        return [request for request in self._requests.values() if request.is_running]

    @property
    def is_any_open(self) -> bool:
        return bool(self._requests)

    def is_open(self, request: StopRequest) -> bool:
        """Return True while the prompt is not known to have stopped."""
        return self._requests.get(request.prompt_id) is request

    async def stop(
        self,
        prompt_id: str,
        sending: asyncio.Future[None] | None,
        *,
        is_running: bool,
        longest_gap_seconds: float,
        is_past_nodes: bool = False,
    ) -> None:
        """Ask a prompt to stop once `sending` it is over: a request that overtakes the prompt finds nothing.

        Returns when the engine has received the request, or after a time without a reply. The request is repeated until
        the prompt is gone, unless it `is_past_nodes`, which holds nothing up.
        """
        request = StopRequest(prompt_id, longest_gap_seconds, is_running, time.monotonic())
        self._requests[prompt_id] = request
        was_asked = asyncio.Event()
        task = asyncio.create_task(
            self._until_gone(request, sending, was_asked, is_past_nodes), name=f"stop-{prompt_id}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._on_change()
        try:
            async with asyncio.timeout(ASK_SECONDS):
                await was_asked.wait()
        except TimeoutError:
            return

    def forget(self, prompt_id: str) -> None:
        """Drop the request for a prompt that is sent once more: the present one is not the one to stop."""
        if self._requests.pop(prompt_id, None) is not None:
            self._on_change()

    def clear(self) -> None:
        """Drop every request: the engine's process has ended, and every prompt with it."""
        self._requests.clear()
        self._on_change()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _until_gone(
        self,
        request: StopRequest,
        sending: asyncio.Future[None] | None,
        was_asked: asyncio.Event,
        is_past_nodes: bool,
    ) -> None:
        try:
            if sending is not None:
                await asyncio.wait({sending})
                sending.exception()  # whatever it was, the prompt is to stop
            await self._ask(request.prompt_id)
            was_asked.set()
            if not is_past_nodes:
                await self._poll_until_gone(request)
            if self._on_gone is not None and self.is_open(request):
                await self._on_gone(request.prompt_id)
        finally:
            was_asked.set()
            if self.is_open(request):
                del self._requests[request.prompt_id]
                self._on_change()

    async def _poll_until_gone(self, request: StopRequest) -> None:
        num_looks, asked_at = 0, time.monotonic()
        while self.is_open(request):
            try:
                place = await self._place_of(request.prompt_id)
                if place is None:
                    return
                if place == RUNNING and not request.is_running:  # it began in the moment in which it was asked
                    request.is_running, request.asked_at = True, time.monotonic()
                    self._on_change()
                if time.monotonic() - asked_at >= ASK_AGAIN_SECONDS:
                    await self._ask(request.prompt_id)
                    asked_at = time.monotonic()
            except EngineUnreachable:
                pass
            num_looks += 1
            await asyncio.sleep(LOOK_BACKOFF.seconds(num_looks))


def stop_limit_seconds(grace_seconds: float, longest_gap_seconds: float) -> float:
    """Return the seconds that a prompt may run after a stop request: one that reports seldom checks seldom."""
    return max(grace_seconds, 3.0 * longest_gap_seconds)
