"""PromptRunner: runs prompts at one engine, each from its submission to its end.

The history is authoritative, the socket a hint: after a message that a prompt has ended its history entry is read;
while the socket is down or silent, the history is polled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from darkroom.worker.concurrency.off_loop import needs_thread, off_loop
from darkroom.worker.engines.client.calls import encoded
from darkroom.worker.engines.client.continuations import Continuations
from darkroom.worker.engines.client.lost import EngineLost, PromptRecalled
from darkroom.worker.engines.client.presence import EnginePresence
from darkroom.worker.engines.client.prompt_calls import PromptCalls
from darkroom.worker.engines.client.run import OnMessage, OnPreview, Run
from darkroom.worker.engines.client.runs import Runs
from darkroom.worker.engines.client.socket import EngineSocket
from darkroom.worker.engines.continuations import joined
from darkroom.worker.engines.loss import Loss, LossReason
from darkroom.worker.engines.outcome import RunOutcome
from darkroom.worker.engines.stopping import RUNNING
from darkroom.worker.errors import DeviceLost, EngineAnswerInvalid, EngineUnreachable, JobTimedOut, RequestRejected
from darkroom.worker.json.values import JsonObject

LOOK_SECONDS = 5.0
LOOK_SECONDS_WITHOUT_SOCKET = 0.25
GIVE_UP_SECONDS = 30.0
LAST_LOOK_SECONDS = 2.0  # for the history of a prompt whose time is over: it may have ended just now
LOSS_SECONDS = 1.0  # until the end of an engine's process is reported after its connections broke
RECALL_LOOK_SECONDS = 0.05


class PromptRunner:
    """Way of each prompt of `runs`: its submission, its end, and its stop when its job or its time is over.

    `on_fault` is called when the engine cannot be used any more, `on_completed` when a prompt has succeeded.
    """

    def __init__(
        self,
        prompts: PromptCalls,
        runs: Runs,
        socket: EngineSocket,
        presence: EnginePresence,
        continuations: Continuations,
        *,
        on_fault: Callable[[LossReason], None],
        on_completed: Callable[[], None],
    ) -> None:
        self._prompts = prompts
        self._runs = runs
        self._socket = socket
        self._presence = presence
        self._continuations = continuations
        self._on_fault = on_fault
        self._on_completed = on_completed

    async def run(
        self,
        prompt: JsonObject,
        prompt_id: str,
        on_message: OnMessage,
        *,
        timeout_seconds: float,
        extra_data: Mapping[str, object] | None = None,
        is_there: bool = False,
        is_own: bool = False,
        traceparent: str = "",
        on_preview: OnPreview | None = None,
        targets: Sequence[str] | None = None,
    ) -> RunOutcome:
        """Run a prompt to its end. `timeout_seconds` counts from its start in the engine.

        Raises RequestRejected (the engine's 400), EngineLost (also when its device failed), EngineUnreachable,
        JobTimedOut. When cancelled, the prompt is taken from the engine's queue or interrupted; `stops` has it until it
        has stopped. `is_there`: it was sent before, only await it. `is_own`: it is the front's own, and an engine that
        is lost meanwhile is lost by itself. `traceparent` goes to the engine in the prompt's request. `on_preview` gets
        images of unfinished latents, if the engine sends any. `targets` are the output nodes to run; None: all.

        Prompts that its nodes queue to go on with it are awaited, too, within the same time.
        """
        prompt_id = self._prompts.id_there(prompt_id)
        run = Run(prompt_id, on_message, has_events=not is_there, is_own=is_own, on_preview=on_preview)
        self._runs.stops.forget(prompt_id)
        extra_data = self._continuations.begin(prompt_id, extra_data or {})
        sending: asyncio.Future[None] | None = None
        if not is_there:
            sending = asyncio.ensure_future(self._submit(prompt, prompt_id, extra_data, traceparent, targets))
        outcomes = [await self._end_of(run, timeout_seconds, sending)]
        waiting = deque(await self._following(run, outcomes[0], {prompt_id}, is_last=True))
        seen = {prompt_id, *waiting}
        while waiting:
            run = run.following(waiting.popleft())
            outcomes.append(await self._end_of(run, timeout_seconds))
            more = await self._following(run, outcomes[-1], seen, is_last=not waiting)
            seen.update(more)
            waiting.extend(more)
        return joined(outcomes)

    async def recall_waiting(self) -> None:
        """Recall every prompt that has not begun; its run ends with PromptRecalled.

        A prompt that begins meanwhile stays.
        """
        for run in self._runs.waiting:
            while not run.is_sent and self._runs.is_awaited(run):  # noqa: ASYNC110 - being sent has no event
                await asyncio.sleep(RECALL_LOOK_SECONDS)
            if not self._runs.is_awaited(run):  # it has ended, and its prompt may have been sent here once more since
                continue
            with contextlib.suppress(EngineUnreachable):
                await self._prompts.delete(run.prompt_id)
                run.is_recalled = True
                run.look()

    async def _end_of(
        self, run: Run, timeout_seconds: float, sending: asyncio.Future[None] | None = None
    ) -> RunOutcome:
        """Return the outcome of one prompt once it is sent. Stop it when cancelled or when its time is over."""
        self._runs.add(run)
        if run.should_look:
            run.wake.set()
        try:
            if sending is not None:
                await self._send(run, sending)
            run.is_sent = True
            return self._without_fault(run, await self.await_end(run, timeout_seconds))
        except (asyncio.CancelledError, JobTimedOut):
            await self._stop(run, sending)
            raise
        finally:
            self._runs.remove(run.prompt_id)

    async def _following(self, run: Run, outcome: RunOutcome, seen: set[str], *, is_last: bool) -> list[str]:
        try:
            return await self._continuations.following(run, outcome, seen, is_last=is_last)
        except asyncio.CancelledError:
            await self._stop(run)
            raise

    async def _submit(
        self,
        prompt: JsonObject,
        prompt_id: str,
        extra_data: Mapping[str, object],
        traceparent: str,
        targets: Sequence[str] | None,
    ) -> None:
        """Submit a prompt. Raises RequestRejected, EngineAnswerInvalid, EngineLost."""
        body: dict[str, object] = {"prompt": prompt, "prompt_id": prompt_id, "client_id": self._socket.client_id}
        if targets is not None:
            body["partial_execution_targets"] = list(targets)
        if extra_data:
            body["extra_data"] = dict(extra_data)
        content = await off_loop(needs_thread(prompt), encoded, body)
        try:
            problems, was_taken = await self._prompts.submit(content, traceparent)
        except EngineAnswerInvalid:
            await self._prompts.withdraw(prompt_id)  # it may have taken it
            raise
        except EngineUnreachable as error:
            raise EngineLost(error.message, was_running=False) from None
        self._runs.count_sent()
        if problems:
            run = self._runs.get(prompt_id)  # None: it is being stopped already
            if was_taken and run is not None:
                await self._stop(run)  # it took the good part of a partly good prompt
            raise RequestRejected(problems)

    async def _send(self, run: Run, sending: asyncio.Future[None]) -> None:
        """Await the submission of a run's prompt. Raises EngineLost.

        An engine of ours is lost when its process has ended: the prompt may have begun, and be the cause.
        """
        try:
            await asyncio.shield(sending)
        except EngineLost as lost:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOSS_SECONDS if self._presence.is_supervised else 0):
                    while run.lost is None:
                        run.wake.clear()
                        await run.wake.wait()
            raise run.lost or lost from None

    async def await_end(self, run: Run, timeout_seconds: float) -> RunOutcome:
        """Return the outcome of a prompt that the engine has. Raises EngineLost, PromptRecalled, JobTimedOut."""
        clock = asyncio.get_running_loop().time
        silent_since: float | None = None
        while True:
            is_receiving = self._socket.is_open and run.has_events
            pause = LOOK_SECONDS if is_receiving else LOOK_SECONDS_WITHOUT_SOCKET
            if run.started_at is not None:
                pause = min(pause, max(0.0, run.started_at + timeout_seconds - clock()))
            was_woken = await run.wait(pause)
            if run.lost is not None:
                raise run.lost
            if was_woken and not run.should_look:
                continue  # it has only started: the time limit counts from now
            run.should_look = False
            asked_at = clock()
            counted_from = self._runs.counted_from(run, silent_since or asked_at)
            look_until = None if counted_from is None else max(asked_at, counted_from + timeout_seconds)
            try:
                async with asyncio.timeout_at(None if look_until is None else look_until + LAST_LOOK_SECONDS):
                    outcome = await self._look(run)
                silent_since = None
                if outcome is not None:
                    return outcome
            except EngineLost as error:
                if run.is_recalled and run.started_at is None:
                    raise PromptRecalled("The prompt was recalled before it began") from None
                raise EngineLost(error.message, was_running=run.started_at is not None) from None
            except (EngineUnreachable, TimeoutError) as error:
                silent_since = silent_since or asked_at
                if run.lost is not None:
                    raise run.lost from None
                if isinstance(error, EngineAnswerInvalid) and clock() - silent_since > GIVE_UP_SECONDS:
                    await self._stop(run)
                    raise
            began = self._runs.counted_from(run, silent_since)
            is_unread = run.is_past_nodes and silent_since is not None  # another prompt silences the engine
            if began is not None and clock() >= began + timeout_seconds and not is_unread:
                raise JobTimedOut(f"The job ran longer than {timeout_seconds:g} s", limit_seconds=timeout_seconds)
            if silent_since is not None:
                if not self._presence.is_supervised and clock() - silent_since > GIVE_UP_SECONDS:
                    message = "The engine answers nothing any more"
                    raise EngineLost(message, was_running=run.started_at is not None)
                await asyncio.sleep(LOOK_SECONDS_WITHOUT_SOCKET)

    async def _look(self, run: Run) -> RunOutcome | None:
        """Look a run's end up in the history. Raises EngineLost when the engine does not have the prompt."""
        entry = await self._prompts.history_entry(run.prompt_id)
        if entry is None:
            part = await self._prompts.queue_position(run.prompt_id)
            if part == RUNNING and run.started_at is None:
                self._runs.on_message("execution_start", {"prompt_id": run.prompt_id})
            if part is not None:
                return None
            entry = await self._prompts.history_entry(run.prompt_id)  # it may have ended between the two questions
        if entry is None:
            raise EngineLost("The engine no longer has the prompt")
        return self._prompts.outcome(entry)

    async def _stop(self, run: Run, sending: asyncio.Future[None] | None = None) -> None:
        self._continuations.abandon(run)
        await self._runs.stops.stop(
            run.prompt_id,
            sending,
            is_running=not run.is_past_nodes and (run.started_at is not None or self._runs.is_next(run)),
            is_past_nodes=run.is_past_nodes,
            longest_gap_seconds=run.longest_gap_seconds,
        )

    def _without_fault(self, run: Run, outcome: RunOutcome) -> RunOutcome:
        """Return the outcome of a prompt. Raises EngineLost when the device failed under it."""
        if isinstance(outcome.error, DeviceLost):
            self._runs.mark_faulty(run)
            self._on_fault(LossReason.DEVICE_LOST)
            loss = Loss(LossReason.DEVICE_LOST, last_words=outcome.error.message, prompt_id=run.prompt_id)
            raise EngineLost(outcome.error.message, was_running=True, loss=loss, is_culprit=True)
        if outcome.error is None and not outcome.was_interrupted:
            self._on_completed()
        return outcome
