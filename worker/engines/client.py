"""EngineClient: client of any server with ComfyUI's HTTP and WebSocket API, ours or a foreign one.

The history is authoritative, the socket a hint: after a message that a prompt has ended the client reads its history
entry; while the socket is down or silent, the history is polled.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import urlencode

import structlog
from websockets.asyncio.client import connect, unix_connect
from websockets.exceptions import WebSocketException

from contract.graph.work import ModelFile
from worker.concurrency.backoff import Backoff
from worker.concurrency.off_loop import needs_thread, off_loop
from worker.engines import answers
from worker.engines.address import EngineAddress
from worker.engines.answers import invalid, reading
from worker.engines.choices import with_hints
from worker.engines.continuations import FIRST_PROMPT, HISTORY_ITEMS, continuations_in, is_unfinished, joined
from worker.engines.families import Family
from worker.engines.family_lookup import FamilyLookup
from worker.engines.graph_check import FoundProblems, find_problems, read_problems
from worker.engines.heartbeat import Heartbeat
from worker.engines.hidden_folders import prefixes_of, problems_without_folders
from worker.engines.http import MAX_ANSWER_BYTES, EngineHttp, Reply
from worker.engines.long_names import find_long_names
from worker.engines.loss import Loss, LossReason
from worker.engines.model_folders import Kinds, is_missing_model, parse_folders, parse_kinds, with_folders
from worker.engines.outcome import RunOutcome, problems_of_rejection, read_outcome
from worker.engines.preview_frames import PreviewFrame, read_frame
from worker.engines.save_names import find_name_problems
from worker.engines.stopping import RUNNING, StopRequests
from worker.errors import (
    DeliveryFailed,
    DeviceLost,
    EngineAnswerInvalid,
    EngineUnreachable,
    InputRejected,
    JobCancelled,
    JobTimedOut,
    Problem,
    RequestRejected,
)
from worker.guard.network_errors import cause_of
from worker.json.values import JsonObject
from worker.observe.tracing import trace_headers

LOOK_SECONDS = 5.0
LOOK_SECONDS_WITHOUT_SOCKET = 0.25
GIVE_UP_SECONDS = 30.0
HEARTBEAT_SECONDS = 10.0
PATIENCE_SECONDS = 2.0  # for a reply, and then for a heartbeat, before an engine of ours counts as away
UPLOAD_FOLDER = "darkroom"
LAST_LOOK_SECONDS = 2.0  # for the history of a prompt whose time is over: it may have ended just now
LOSS_SECONDS = 1.0  # until the end of an engine's process is reported after its connections broke
RECALL_LOOK_SECONDS = 0.05
UNREAD = ("status", "progress_state", "executed", "execution_success", "execution_interrupted", "execution_error")
"""Types of messages that say nothing to the front, which reads ends from the history: an engine of ours omits them."""

FEATURE_FLAGS = json.dumps(
    {
        "type": "feature_flags",
        "data": {"supports_preview_metadata": True, "darkroom_saving": True, "darkroom_unread": UNREAD},
    }
)
FAULT_SECONDS = 60.0  # for which an answer that was not valid counts, unless a valid one of its route comes
SMALL_ANSWER_BYTES = 1024 * 1024  # of routes that say little
MAX_MESSAGE_LENGTH = 1024 * 1024  # of a text on the socket that is read: a longer one is no progress report
REFUSALS = (400, 413, 422)  # statuses of a prompt or file that is not as it must be; others are the engine's own matter
PROBE = "darkroom-probe"  # id that no prompt has
ASK_SECONDS = 600.0  # reading a model from a slow disk takes minutes
SOCKET_OPEN_SECONDS = 5.0
MAX_ABANDONED = 100
SOCKET_BACKOFF = Backoff(first_seconds=0.05, longest_seconds=2.0)

log = structlog.get_logger("engine.client")

Answer = TypeVar("Answer")
OnMessage = Callable[[str, Mapping[str, Any]], None]
OnPreview = Callable[[PreviewFrame], None]


class EngineLost(EngineUnreachable):
    """Error for an engine that went away while it had a prompt of ours. `was_running`: the prompt had begun.

    `is_culprit`: the prompt caused the loss. `is_suspect`: this one or another one there did. `is_bystander`: the
    prompt had begun, and another one caused the loss.
    """

    code = "engine_lost"

    def __init__(
        self,
        message: str,
        *,
        was_running: bool = False,
        loss: Loss | None = None,
        is_culprit: bool = False,
        is_suspect: bool = False,
        is_bystander: bool = False,
    ) -> None:
        super().__init__(message, was_running=was_running)
        self.was_running = was_running
        self.loss = loss or Loss(LossReason.GONE)
        self.is_culprit = is_culprit
        self.is_suspect = is_suspect
        self.is_bystander = is_bystander


class PromptRecalled(EngineLost):
    """Error for a prompt that was recalled before it began, because it can begin sooner elsewhere."""

    code = "prompt_recalled"


@dataclass(slots=True)
class _Run:
    """Prompt that the engine has, with its progress and the event that wakes its waiting task."""

    prompt_id: str
    on_message: OnMessage
    has_events: bool = True  # on our socket; False for a prompt of the front before this one
    is_own: bool = False  # of the front itself, no job's
    on_preview: OnPreview | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    should_look: bool = False  # in the history, because it may have ended
    is_sent: bool = False
    is_recalled: bool = False
    is_past_nodes: bool = False  # its nodes have run; the rest holds nothing up
    started_at: float | None = None  # the event loop's clock
    reported_at: float | None = None  # the same: its last progress report
    longest_gap_seconds: float = 0.0  # between two of them
    lost: EngineLost | None = None
    first_id: str = ""  # of the prompt that this one continues, by way of others; empty: none

    def following(self, prompt_id: str) -> _Run:
        """Return the run of a prompt that continues this one, for the job a part of the same run."""
        return _Run(
            prompt_id,
            self.on_message,
            has_events=self.has_events,
            is_own=self.is_own,
            on_preview=self.on_preview,
            is_sent=True,
            should_look=True,
            started_at=self.started_at,
            first_id=self.first_id or self.prompt_id,
        )

    def report(self, now: float) -> None:
        if self.reported_at is not None:
            self.longest_gap_seconds = max(self.longest_gap_seconds, now - self.reported_at)
        self.reported_at = now


@dataclass(frozen=True, slots=True)
class LocalFolders:
    """Folders of an engine whose disk is on this machine."""

    input: Path
    output: Path
    temp: Path

    def of(self, kind: str) -> Path | None:
        return {"input": self.input, "output": self.output, "temp": self.temp}.get(kind)


class EngineClient:
    """Connection to one engine.

    `folders` is None when its disk is not ours; `has_check`: it has our check route. `is_supervised`: a supervisor
    calls `mark_lost` when it is gone, so that silence alone means nothing. `on_fault` is called when the engine cannot
    be used any more, `on_completed` when a prompt has succeeded, `on_stops_changed` when a prompt was asked to stop or
    has stopped.
    """

    def __init__(
        self,
        address: EngineAddress | str,
        *,
        folders: LocalFolders | None = None,
        has_check: bool = False,
        is_supervised: bool = False,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        on_fault: Callable[[LossReason], None] = lambda reason: None,
        on_completed: Callable[[], None] = lambda: None,
        on_stops_changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.address = EngineAddress.of(address)
        self.folders = folders
        # Folders of an engine of ours, which no reply may name.
        self._hidden = () if folders is None else prefixes_of((folders.input, folders.output, folders.temp))
        self.has_check = has_check
        self.client_id = uuid.uuid4().hex
        self.num_run = 0  # prompts sent since the engine's start
        self.uploaded: dict[str, str] = {}  # uploaded files, and the engine's names of them
        self.stops = StopRequests(self._withdraw, self._queue_position, on_stops_changed, self._withdraw_abandoned)
        self._on_fault = on_fault
        self._on_completed = on_completed
        self._is_supervised = is_supervised
        self._http = EngineHttp(self.address)
        self._pulse = EngineHttp(self.address, timeout_seconds=heartbeat_seconds)
        self.families = FamilyLookup(lambda path: self._http.request("GET", path))
        self._runs: dict[str, _Run] = {}
        self._abandoned: deque[str] = deque(maxlen=MAX_ABANDONED)  # prompts that were stopped, at a foreign engine
        self._faulty: str | None = None  # the prompt under which the device failed
        self._sending = asyncio.Lock()
        self._is_away = False  # does not answer at present
        self._is_silent = False  # ours: the last question had no reply, and no heartbeat was answered since
        self._object_info: Mapping[str, Any] | None = None
        self._last_object_info: Mapping[str, Any] | None = None  # also of an engine that has gone since
        self._reading = asyncio.Lock()
        self._listener: asyncio.Task[None] | None = None
        self._is_listening = False
        self._faults: dict[str, tuple[float, str]] = {}  # by route: when its answer was not valid, and why

    @property
    def answer_fault(self) -> str:
        """Reason why answers of the engine cannot be used, of late; empty for none."""
        since = time.monotonic() - FAULT_SECONDS
        return next((reason for at, reason in reversed(self._faults.values()) if at > since), "")

    @contextlib.contextmanager
    def _judging(self, route: str) -> Iterator[None]:
        """Note for `answer_fault` if the answer that is asked for and read in the block is valid."""
        try:
            yield
        except EngineAnswerInvalid as error:
            if route not in self._faults:
                log.error("engine answer invalid", url=self.url, reason=error.message)
            self._faults.pop(route, None)
            self._faults[route] = time.monotonic(), error.message
            raise
        self._faults.pop(route, None)

    @property
    def is_away(self) -> bool:
        """True while the engine does not answer, by the word of whoever watches it or by its own silence."""
        return self._is_away or self._is_silent

    @property
    def is_remembered(self) -> bool:
        """True if the engine's node classes are known, be it from before it went away."""
        return self._last_object_info is not None

    def mark_away(self, is_away: bool) -> None:
        """Note whether the engine answers at present; while it does not, what is known of it is used unasked."""
        if self._is_away and not is_away:
            self._is_silent = False
        self._is_away = is_away

    async def start(self) -> None:
        """Start to listen on the engine's socket; a lost connection is made again."""
        self._listener = asyncio.create_task(self._listen(), name="engine-socket")

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listener
        await self.stops.close()
        await self._http.close()
        await self._pulse.close()

    @property
    def url(self) -> str:
        """Name of the engine in health, metrics and logs."""
        return self.address.url

    @property
    def num_prompts(self) -> int:
        return len(self._runs)

    # requests for the state of the engine

    async def system_stats(self) -> Mapping[str, Any]:
        with self._judging("stats"):
            found = await self._get("/system_stats", SMALL_ANSWER_BYTES)
            answers.check_stats("GET /system_stats", found)
            return found

    async def probe(self) -> None:
        """Ask the routes by which a prompt is followed. Raises EngineUnreachable if their answers cannot be used."""
        await self._queue()
        await self.history_entry(PROBE)

    async def heartbeat(self) -> Heartbeat:
        """Return the heartbeat of an engine of ours. Raises EngineUnreachable, also when the reply takes long."""
        with self._judging("heartbeat"):
            reply = await self._pulse.request("GET", "/api/v1/heartbeat", max_bytes=SMALL_ANSWER_BYTES)
            if reply.status != 200:
                raise EngineUnreachable(f"The engine answered {reply.status} to its heartbeat")
            answer = await reply.json_object()
            with reading(reply.route):
                heartbeat = Heartbeat.of(answer)
        self._is_silent = False
        return heartbeat

    async def object_info(self) -> Mapping[str, Any]:
        """Return the engine's node classes, read once until `forget_object_info`."""
        if self._object_info is not None:
            return self._object_info
        async with self._reading:  # a thousand requests that come together need it once, not a thousand times
            if self._object_info is None:
                with self._judging("object_info"):
                    found = await self._get("/object_info")
                    read = await asyncio.to_thread(answers.read_object_info, "GET /object_info", found)
                self._object_info = self._last_object_info = read
            return self._object_info

    async def known_object_info(self) -> Mapping[str, Any]:
        """Return the node classes of an engine that may be restarting: those it had last. Raises EngineUnreachable."""
        if not self.is_away:
            try:
                return await self._answered(self.object_info())
            except EngineUnreachable:
                if not self.is_away:
                    raise
        if self._last_object_info is None:
            raise EngineUnreachable("The engine is starting")
        return self._last_object_info

    async def families_of(self, files: Collection[ModelFile]) -> dict[ModelFile, Family]:
        """Return the families of files, without those of no known family; of an engine that is away, the known ones.

        Raises EngineUnreachable, also when the family of a file must be asked for and the engine is away.
        """
        if not self.is_away:
            try:
                with self._judging("families"):
                    return await self._answered(self.families.of(files))
            except EngineUnreachable:
                if not self.is_away:
                    raise
        return self.families.remembered(files)

    async def known_families_of(self, files: Collection[ModelFile]) -> dict[ModelFile, Family]:
        """Return the families of files as `families_of` does; none while the engine is away and was not asked before.

        For an estimate, which a restart of the engine must not fail. Raises EngineUnreachable.
        """
        try:
            return await self.families_of(files)
        except EngineUnreachable:
            if not self.is_away:
                raise
            return {}

    async def known_families(self) -> tuple[Family, ...]:
        """Return all families of the engine, those it had last while it is away. Raises EngineUnreachable."""
        if not self.is_away:
            try:
                with self._judging("families"):
                    return await self._answered(self.families.families())
            except EngineUnreachable:
                if not self.is_away:
                    raise
        return self.families.last()

    async def _answered(self, question: Coroutine[Any, Any, Answer]) -> Answer:
        """Await a reply while the engine, if it is ours, answers heartbeats; else it is away from then on.

        Raises EngineUnreachable. A node that holds the interpreter makes the server answer nothing for as long.
        """
        if not self._is_supervised:
            return await question
        asking = asyncio.ensure_future(question)
        try:
            while not (await asyncio.wait({asking}, timeout=PATIENCE_SECONDS))[0]:
                try:
                    async with asyncio.timeout(PATIENCE_SECONDS):
                        await self.heartbeat()
                except TimeoutError:
                    raise EngineUnreachable("The engine answers nothing at present") from None
            return asking.result()
        except EngineUnreachable:
            self._is_silent = True
            raise
        finally:
            asking.cancel()

    async def ask(
        self, method: str, path: str, body: object = None, *, timeout_seconds: float = ASK_SECONDS
    ) -> tuple[int, dict[str, object]]:
        """Request a route that only our own engine has.

        Returns the status, and the body where it is a JSON object.
        """
        http = EngineHttp(self.address, timeout_seconds)
        try:
            reply = await http.request(method, path, b"" if body is None else json.dumps(body).encode())
        finally:
            await http.close()
        return reply.status, await reply.json_object() if reply.status == 200 else await _object_or_none(reply)

    async def metrics_text(self) -> str | None:
        """Return the engine's own metrics in Prometheus' text format; None from an engine that has none."""
        reply = await self._request("GET", "/metrics")
        return reply.body.decode(errors="replace") if reply.status == 200 else None

    def forget_object_info(self) -> None:
        self._object_info = None

    async def history_entry(self, prompt_id: str) -> JsonObject | None:
        with self._judging("history"):
            history = await self._get(f"/history/{prompt_id}")
            return answers.read_entry("GET /history/{prompt_id}", history, prompt_id)

    async def has_prompt(self, prompt_id: str) -> bool:
        """Return True if the prompt waits, runs, or has run to its end there."""
        if await self._queue_position(prompt_id) is not None:
            return True
        entry = await self.history_entry(prompt_id)
        return entry is not None and not self._outcome(entry).was_interrupted

    def _outcome(self, entry: JsonObject) -> RunOutcome:
        with self._judging("history"), reading("GET /history/{prompt_id}"):
            return read_outcome(entry, self._hidden)

    async def _queue(self) -> dict[str, list[list[Any]]]:
        with self._judging("queue"):
            return answers.read_queue("GET /queue", await self._get("/queue"))

    async def _queue_position(self, prompt_id: str) -> str | None:
        for place, items in (await self._queue()).items():
            if any(item[1] == prompt_id for item in items):
                return place
        return None

    # checking and running

    async def check(self, prompt: JsonObject, pending_files: Collection[str] = ()) -> None:
        """Check a prompt without GPU time. Raises RequestRejected with every problem.

        While the engine is away, what was last known of it decides.
        """
        is_large = needs_thread(prompt)
        too_long = await off_loop(is_large, find_long_names, prompt)
        if too_long:
            raise RequestRejected(too_long)
        found: FoundProblems | None = None
        kinds: Kinds = {}
        if self.has_check and not self.is_away:
            try:
                found, kinds = await self._answered(self._found_by_engine(prompt, pending_files))
            except EngineUnreachable:
                if not self.is_away:
                    raise
        if found is None and (self.has_check or self.is_away):
            found = await off_loop(is_large, find_problems, prompt, await self.known_object_info(), pending_files)
        elif found is None:
            found = await off_loop(is_large, find_problems, prompt, await self.object_info(), pending_files)
            if found.listed:  # the cached object_info may be old: a model or a node pack may be new
                self.forget_object_info()
                found = await off_loop(is_large, find_problems, prompt, await self.object_info(), pending_files)
        output_folder = None if self.folders is None else self.folders.output.absolute()
        names = await off_loop(is_large, find_name_problems, prompt, await self.known_object_info(), output_folder)
        if found.listed or names:
            hinted = await asyncio.to_thread(with_hints, [*found.listed, *names], await self.known_object_info())
            if not self.is_away and any(is_missing_model(problem, kinds) for problem in hinted):
                hinted = with_folders(hinted, kinds, await self._model_folders())
            raise RequestRejected(problems_without_folders(hinted, self._hidden), num_unlisted=found.num_unlisted)

    async def _found_by_engine(self, prompt: JsonObject, pending_files: Collection[str]) -> tuple[FoundProblems, Kinds]:
        """Return what our engine's check finds, and the kinds of the models that the prompt names."""
        is_large = needs_thread(prompt)
        body = await off_loop(is_large, _encoded, {"prompt": prompt, "pending_files": list(pending_files)})
        with self._judging("check"):
            response = await self._http.request("POST", "/api/v1/workflow", body)
            if response.status not in (200, *REFUSALS):
                raise EngineUnreachable(f"The engine answered {response.status} to a workflow")
            answer = await response.json_object()
            with reading(response.route):
                if response.status != 200:  # no prompt at all
                    return FoundProblems(tuple(self._refusal(response, answer))), {}
                found = read_problems(answer)
                return found, parse_kinds(answer.get("models")) if found.listed else {}

    def _refusal(self, response: Reply, answer: JsonObject) -> list[Problem]:
        """Return the problems of a prompt that was refused. Raises EngineAnswerInvalid for a refusal without any."""
        with reading(response.route):
            problems = problems_without_folders(problems_of_rejection(answer), self._hidden)
        if not problems:
            raise invalid(response.route, f"status {response.status} without `error` or `node_errors`")
        return problems

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
        pictures of unfinished latents, if the engine sends any. `targets` are the output nodes to run; None: all.

        Prompts that its nodes queue to go on with it are awaited, too, within the same time.
        """
        run = _Run(prompt_id, on_message, has_events=not is_there, is_own=is_own, on_preview=on_preview)
        self.stops.forget(prompt_id)
        if not self.has_check:
            extra_data = {**(extra_data or {}), FIRST_PROMPT: prompt_id}
            self._abandoned = deque((found for found in self._abandoned if found != prompt_id), MAX_ABANDONED)
        sending: asyncio.Future[None] | None = None
        if not is_there:
            submitted = self._submit(prompt, prompt_id, extra_data or {}, traceparent, targets)
            sending = asyncio.ensure_future(submitted)
        outcomes = [await self._end_of(run, timeout_seconds, sending)]
        waiting = deque(await self._continuations(run, outcomes[0], {prompt_id}, is_last=True))
        seen = {prompt_id, *waiting}
        while waiting:
            run = run.following(waiting.popleft())
            outcomes.append(await self._end_of(run, timeout_seconds))
            more = await self._continuations(run, outcomes[-1], seen, is_last=not waiting)
            seen.update(more)
            waiting.extend(more)
        return joined(outcomes)

    async def _end_of(
        self, run: _Run, timeout_seconds: float, sending: asyncio.Future[None] | None = None
    ) -> RunOutcome:
        """Return the outcome of one prompt once it is sent. Stop it when cancelled or when its time is over."""
        self._runs[run.prompt_id] = run
        if run.should_look:
            run.wake.set()
        try:
            if sending is not None:
                await self._send(run, sending)
            run.is_sent = True
            return self._without_fault(run, await self._await_end(run, timeout_seconds))
        except (asyncio.CancelledError, JobTimedOut):
            await self._stop(run, sending)
            raise
        finally:
            self._runs.pop(run.prompt_id, None)

    async def _continuations(
        self, run: _Run, outcome: RunOutcome, seen: Collection[str], *, is_last: bool
    ) -> list[str]:
        """Return the prompts that a run's nodes have queued. Raises JobCancelled if the next one was taken away.

        Of a recovered job several may be known at once: `is_last` is False while others are still to be awaited.
        """
        if self.has_check or outcome.error is not None or not is_unfinished(outcome):
            return [prompt_id for prompt_id in outcome.continued_by if prompt_id not in seen]
        try:
            found = await self._queued_for([run.first_id or run.prompt_id], seen)
        except asyncio.CancelledError:
            await self._stop(run)
            raise
        except EngineUnreachable as error:
            raise EngineLost(error.message, was_running=True) from None
        if not found and is_last:
            raise JobCancelled("The prompt that goes on with this job is not in the engine any more")
        return found

    async def _queued_for(self, first_ids: Collection[str], seen: Collection[str] = ()) -> list[str]:
        """Return the prompts in the engine that continue one of these."""
        queue = await self._queue()
        with self._judging("history"), reading("GET /history"):
            history = await self._get(f"/history?max_items={HISTORY_ITEMS}") if seen else {}
            return continuations_in(queue, history, first_ids, {*seen, *first_ids})

    async def _withdraw_abandoned(self, prompt_id: str) -> None:
        """Withdraw what goes on with stopped prompts in a foreign engine; one of ours does so by itself."""
        if self.has_check:
            return
        with contextlib.suppress(EngineUnreachable):
            while found := await self._queued_for(self._abandoned):
                for continuation in found:
                    await self._withdraw(continuation)
                await asyncio.sleep(LOOK_SECONDS_WITHOUT_SOCKET)

    async def _send(self, run: _Run, sending: asyncio.Future[None]) -> None:
        """Send a run's prompt. Raises EngineLost.

        An engine of ours is lost when its process has ended: the prompt may have begun, and be the cause.
        """
        try:
            await asyncio.shield(sending)
        except EngineLost as lost:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOSS_SECONDS if self._is_supervised else 0):
                    while run.lost is None:
                        run.wake.clear()
                        await run.wake.wait()
            raise run.lost or lost from None

    async def _stop(self, run: _Run, sending: asyncio.Future[None] | None = None) -> None:
        if not self.has_check:
            self._abandoned.append(run.first_id or run.prompt_id)
        await self.stops.stop(
            run.prompt_id,
            sending,
            is_running=not run.is_past_nodes and (run.started_at is not None or self._is_next(run)),
            is_past_nodes=run.is_past_nodes,
            longest_gap_seconds=run.longest_gap_seconds,
        )

    def _is_next(self, run: _Run) -> bool:
        """Return True if no other prompt of ours is before this one there.

        Such a prompt may have begun before the engine reported it.
        """
        first = next(iter(_sent(_at_nodes(self._runs.values()))), None)
        return first is run and not self.stops.running

    async def _withdraw(self, prompt_id: str) -> None:
        """Take a prompt out of the queue, or interrupt it when it runs. No other prompt is touched."""
        with contextlib.suppress(EngineUnreachable):
            await self._request("POST", "/queue", json_body={"delete": [prompt_id]})
            await self._request("POST", "/interrupt", json_body={"prompt_id": prompt_id})

    async def recall_waiting(self) -> None:
        """Recall every prompt that has not begun; its run ends with PromptRecalled.

        A prompt that begins meanwhile stays.
        """
        for run in [run for run in self._runs.values() if run.started_at is None]:
            while not run.is_sent and self._is_awaited(run):  # noqa: ASYNC110 - being sent has no event
                await asyncio.sleep(RECALL_LOOK_SECONDS)
            if not self._is_awaited(run):  # it has ended, and its prompt may have been sent here once more since
                continue
            with contextlib.suppress(EngineUnreachable):
                await self._request("POST", "/queue", json_body={"delete": [run.prompt_id]})
                run.is_recalled = run.should_look = True
                run.wake.set()

    def _is_awaited(self, run: _Run) -> bool:
        return self._runs.get(run.prompt_id) is run

    async def forget_unused(self) -> None:
        """Ask the engine to evict the models that no prompt holds. Raises EngineUnreachable, EngineAnswerInvalid.

        The answer is empty, as ComfyUI's is.
        """
        reply = await self._request("POST", "/free", json_body={"free_memory": True})
        if reply.status != 200:
            raise answers.invalid("POST /free", f"got status {reply.status}, expected 200")

    async def free(self) -> None:
        """Ask the engine to release all memory that it can do without, before its next prompt."""
        with contextlib.suppress(EngineUnreachable):
            await self._request("POST", "/free", json_body={"unload_models": True, "free_memory": True})

    def find_culprit(self, reason: LossReason, running: str | None = None) -> str | None:
        """Return the prompt of a job whose doing a loss of the engine is; None: the engine's own.

        `running`: the prompt that the engine itself named, as one that hangs and still answers does.
        """
        if reason is LossReason.RECYCLED:
            return None
        stopping, runs = self.stops.running, _at_nodes(self._runs.values()) or list(self._runs.values())
        begun = [run for run in runs if run.started_at is not None]
        if reason is LossReason.HUNG and running is not None:
            found: str | None = running
        elif self._faulty is not None:
            found = self._faulty
        elif stopping:
            found = stopping[0].prompt_id
        else:
            found = next((run.prompt_id for run in (*reversed(begun), *_sent(runs))), None)
        is_own = any(run.is_own for run in runs if run.prompt_id == found)
        return None if is_own else found

    def mark_lost(self, loss: Loss | None = None) -> None:
        """End every run with EngineLost: the engine's process has ended.

        Where no run is known to have begun, the first that was sent counts as begun, even while its sending was under
        way: the report of the beginning may be lost, too. The same goes for the first one behind a run whose nodes have
        all run. After a hang only the culprit counts as begun. Where the engine did not reply and another prompt was
        beside or behind the one known to run, either may be the cause; so may each of several that ran when the engine
        ended. A prompt whose sending was under way may have met an
        engine that was silent already.
        """
        loss = loss or Loss(LossReason.CRASHED)
        runs = list(self._runs.values())
        begun = [run for run in runs if run.started_at is not None]
        culprits = [run for run in runs if run.prompt_id == loss.prompt_id]
        suspects: list[_Run] = []
        if loss.reason.is_hang:
            suspects = self._suspects(culprits) if loss.reason is LossReason.UNRESPONSIVE else []
            begun = culprits
        elif not _at_nodes(begun) and (culprits or loss.prompt_id is None):
            begun += _sent(_at_nodes(runs))[:1]
        elif loss.prompt_id is not None and {loss.prompt_id} < {loss.prompt_id, *_ids(_at_nodes(begun))}:
            suspects = _at_nodes(begun)
        if loss.is_outside:
            culprits, suspects = [], []
        for run in runs:
            run.lost = EngineLost(
                loss.sentence,
                was_running=run in begun,
                loss=loss,
                is_culprit=run in culprits and not suspects,
                is_suspect=run in suspects,
                is_bystander=run.started_at is not None and run not in begun,
            )
            run.wake.set()
        self.forget_object_info()
        self.stops.clear()
        self._faulty = None
        self.num_run = 0

    def _suspects(self, culprits: Sequence[_Run]) -> list[_Run]:
        """Return the runs one of which made the engine answer nothing; none where that is the culprit for certain."""
        if not culprits or not culprits[0].is_sent or self.stops.is_any_open:
            return list(culprits)
        beside = [run for run in _at_nodes(self._runs.values()) if run.started_at is not None and run not in culprits]
        behind = [run for run in self._runs.values() if run.is_sent and run.started_at is None]
        others = [*beside, *behind[:1]]
        return [*culprits, *others] if others and culprits[0].started_at is not None else []

    def _without_fault(self, run: _Run, outcome: RunOutcome) -> RunOutcome:
        if isinstance(outcome.error, DeviceLost):
            self._faulty = None if run.is_own else run.prompt_id
            self._on_fault(LossReason.DEVICE_LOST)
            loss = Loss(LossReason.DEVICE_LOST, last_words=outcome.error.message, prompt_id=run.prompt_id)
            raise EngineLost(outcome.error.message, was_running=True, loss=loss, is_culprit=True)
        if outcome.error is None and not outcome.was_interrupted:
            self._on_completed()
        return outcome

    # files

    async def view(self, filename: str, subfolder: str, kind: str, target: Path, max_bytes: int | None = None) -> None:
        """Copy one of the engine's files to `target`, up to `max_bytes`.

        Raises DeliveryFailed when it cannot be written there.
        """
        query = urlencode({"filename": filename, "subfolder": subfolder, "type": kind})
        with _opened(target) as file:
            async with self._http.stream(f"/view?{query}") as (status, pieces):
                if 400 <= status < 500:
                    raise DeliveryFailed(f"The engine does not have {filename} ({status})")
                if status != 200:
                    raise EngineUnreachable(f"The engine did not return {filename} ({status})")
                num_bytes = 0
                async for piece in pieces:
                    await asyncio.to_thread(_append, file, piece)
                    num_bytes += len(piece)
                    if max_bytes is not None and num_bytes > max_bytes:
                        break

    async def upload_image(self, path: Path, name: str) -> str:
        """Upload a file to the engine's input folder. Return the name that a prompt uses for it."""
        content = await asyncio.to_thread(path.read_bytes)
        body, content_type = multipart({"subfolder": UPLOAD_FOLDER, "overwrite": "true"}, "image", name, content)
        with self._judging("upload"):
            response = await self._http.request(
                "POST", "/upload/image", body, content_type, max_bytes=SMALL_ANSWER_BYTES
            )
            if response.status in (*REFUSALS, 415):
                raise InputRejected(f"The engine rejected {name} ({response.status})", size_bytes=len(content))
            if response.status != 200:
                raise EngineUnreachable(f"The engine rejected {name} ({response.status})")
            answer = await response.json_object()
            subfolder, stored = answer.get("subfolder") or "", answer.get("name", name)
            if not isinstance(subfolder, str) or not isinstance(stored, str) or not stored:
                raise invalid(response.route, "expected `name` and `subfolder` to be texts")
            return f"{subfolder}/{stored}" if subfolder else stored

    # inside

    async def _submit(
        self,
        prompt: JsonObject,
        prompt_id: str,
        extra_data: JsonObject,
        traceparent: str,
        targets: Sequence[str] | None,
    ) -> None:
        body: dict[str, object] = {"prompt": prompt, "prompt_id": prompt_id, "client_id": self.client_id}
        if targets is not None:
            body["partial_execution_targets"] = list(targets)
        if extra_data:
            body["extra_data"] = dict(extra_data)
        content = await off_loop(needs_thread(prompt), _encoded, body)
        try:
            with self._judging("prompt"):
                async with self._sending:  # two at once might overtake each other
                    response = await self._http.request("POST", "/prompt", content, headers=trace_headers(traceparent))
                problems = await self._problems_of(response)
        except EngineAnswerInvalid:
            await self._withdraw(prompt_id)  # it may have taken it
            raise
        except EngineUnreachable as error:
            raise EngineLost(error.message, was_running=False) from None
        self.num_run += 1
        if response.status >= 400 or problems:
            run = self._runs.get(prompt_id)  # None: it is being stopped already
            if response.status < 400 and run is not None:
                await self._stop(run)  # it took the good part of a partly good prompt
            raise RequestRejected(problems)

    async def _problems_of(self, response: Reply) -> list[Problem]:
        """Return the problems in the answer to a prompt, none where it was taken. Raises EngineAnswerInvalid."""
        if response.status not in (200, *REFUSALS):
            raise invalid(response.route, f"status {response.status}")
        answer = await response.json_object()
        if response.status != 200:
            return self._refusal(response, answer)
        if not isinstance(answer.get("prompt_id"), str):
            raise invalid(response.route, "expected an object with `prompt_id`")
        with reading(response.route):
            return problems_without_folders(problems_of_rejection(answer), self._hidden)

    async def _await_end(self, run: _Run, timeout_seconds: float) -> RunOutcome:
        clock = asyncio.get_running_loop().time
        silent_since: float | None = None
        while True:
            is_receiving = self._is_listening and run.has_events
            pause = LOOK_SECONDS if is_receiving else LOOK_SECONDS_WITHOUT_SOCKET
            if run.started_at is not None:
                pause = min(pause, max(0.0, run.started_at + timeout_seconds - clock()))
            was_woken = await _wait(run.wake, pause)
            run.wake.clear()
            if run.lost is not None:
                raise run.lost
            if was_woken and not run.should_look:
                continue  # it has only started: the time limit counts from now
            run.should_look = False
            asked_at = clock()
            counted_from = self._counted_from(run, silent_since or asked_at)
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
            began = self._counted_from(run, silent_since)
            is_unread = run.is_past_nodes and silent_since is not None  # another prompt silences the engine
            if began is not None and clock() >= began + timeout_seconds and not is_unread:
                raise JobTimedOut(f"The job ran longer than {timeout_seconds:g} s", limit_seconds=timeout_seconds)
            if silent_since is not None:
                if not self._is_supervised and clock() - silent_since > GIVE_UP_SECONDS:
                    message = "The engine answers nothing any more"
                    raise EngineLost(message, was_running=run.started_at is not None)
                await asyncio.sleep(LOOK_SECONDS_WITHOUT_SOCKET)

    def _counted_from(self, run: _Run, silent_since: float | None) -> float | None:
        """Return the start of a run's time limit; None: not yet.

        An engine that does not reply does not report the beginning of a prompt either: its silence then counts.
        """
        if run.started_at is not None:
            return run.started_at
        return silent_since if self._is_next(run) else None

    async def _look(self, run: _Run) -> RunOutcome | None:
        """Look a run's end up in the history. Raises EngineLost when the engine does not have the prompt."""
        entry = await self.history_entry(run.prompt_id)
        if entry is None:
            place = await self._queue_position(run.prompt_id)
            if place == RUNNING and run.started_at is None:
                self._on_message("execution_start", {"prompt_id": run.prompt_id})
            if place is not None:
                return None
            entry = await self.history_entry(run.prompt_id)  # it may have ended between the two questions
        if entry is None:
            raise EngineLost("The engine no longer has the prompt")
        return self._outcome(entry)

    async def _listen(self) -> None:
        num_losses = 0
        while True:
            try:
                async with self._socket() as socket:
                    await socket.send(FEATURE_FLAGS)
                    self._is_listening, num_losses = True, 0
                    self._poll_all()
                    async for message in socket:
                        if isinstance(message, str):
                            self._on_text(message)
                        else:
                            self._on_binary(message)
            except (OSError, TimeoutError, WebSocketException, ValueError) as error:
                log.debug("engine socket lost", reason=cause_of(error))
            self._is_listening = False
            self._poll_all()
            num_losses += 1
            await asyncio.sleep(SOCKET_BACKOFF.seconds(num_losses))

    def _socket(self) -> connect:
        """Return the engine's WebSocket as a context manager."""
        uri = f"ws{self.address.http_url.removeprefix('http')}/ws?clientId={self.client_id}"
        options: dict[str, Any] = {
            "max_size": MAX_ANSWER_BYTES,
            "compression": None,
            "proxy": None,
            "open_timeout": SOCKET_OPEN_SECONDS,
            "additional_headers": self.address.headers,
        }
        unix = self.address.socket
        return connect(uri, **options) if unix is None else unix_connect(str(unix.path), uri, **options)

    def _poll_all(self) -> None:
        for run in self._runs.values():
            run.should_look = True
            run.wake.set()

    def _on_text(self, text: str) -> None:
        try:
            message = answers.parse("WebSocket", text.encode()) if len(text) <= MAX_MESSAGE_LENGTH else None
        except EngineAnswerInvalid as error:  # a hint that says nothing
            log.warning("engine message invalid", reason=error.message)
            return
        if not isinstance(message, Mapping):
            return
        data = message.get("data")
        if isinstance(data, Mapping):
            self._on_message(str(message.get("type", "")), data)

    def _on_binary(self, message: bytes) -> None:
        """Pass a preview on to its run. One that names no prompt belongs to the only one that has begun."""
        frame = read_frame(message)
        if frame is None:
            return
        begun = [run for run in self._runs.values() if run.started_at is not None and not run.is_past_nodes]
        run = self._runs.get(frame.prompt_id) if frame.prompt_id else begun[0] if len(begun) == 1 else None
        if run is not None and run.on_preview is not None:
            run.on_preview(frame)

    def _on_message(self, kind: str, data: JsonObject) -> None:
        run = self._runs.get(str(data.get("prompt_id")))
        if run is None:
            return
        run.report(asyncio.get_running_loop().time())
        if kind == "execution_start" and run.started_at is None:
            run.started_at = asyncio.get_running_loop().time()
            run.wake.set()
        if kind == "darkroom_saving":
            run.is_past_nodes = True
            return
        if kind == "executing" and data.get("node") is None:
            run.is_past_nodes = run.should_look = True
            run.wake.set()
        try:
            run.on_message(kind, data)
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ):  # a hint, from a node that may send anything
            log.warning("engine message invalid", kind=kind, prompt_id=run.prompt_id)

    async def _model_folders(self) -> dict[str, list[str]]:
        """Return the folders of each kind of model; empty for an engine that does not report them."""
        reply = await self._request("GET", "/experiment/models")
        return parse_folders(await reply.json_value()) if reply.status == 200 else {}

    async def _get(self, path: str, max_bytes: int | None = None) -> dict[str, Any]:
        response = await self._http.request("GET", path, max_bytes=max_bytes)
        if response.status != 200:
            raise EngineUnreachable(f"The engine answered {response.status} to {path}")
        return await response.json_object()

    async def _request(self, method: str, path: str, *, json_body: object = None) -> Reply:
        return await self._http.request(method, path, b"" if json_body is None else _encoded(json_body))


async def _object_or_none(reply: Reply) -> dict[str, Any]:
    """Return the object in the body of an error, empty for another body."""
    try:
        return await reply.json_object()
    except EngineAnswerInvalid:
        return {}


def _encoded(body: object) -> bytes:
    return json.dumps(body).encode()


def multipart(fields: Mapping[str, str], file_field: str, file_name: str, content: bytes) -> tuple[bytes, str]:
    """Return a multipart/form-data body and its content type."""
    boundary = uuid.uuid4().hex
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    plain_name = file_name.replace('"', "_").replace("\r", "_").replace("\n", "_")
    parts.append(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{file_field}"; filename="{plain_name}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    body = "".join(parts).encode() + content + f"\r\n--{boundary}--\r\n".encode()
    return body, f"multipart/form-data; boundary={boundary}"


def _at_nodes(runs: Iterable[_Run]) -> list[_Run]:
    """Return the runs that have nodes left to execute, as far as is known."""
    return [run for run in runs if not run.is_past_nodes]


def _ids(runs: Iterable[_Run]) -> list[str]:
    return [run.prompt_id for run in runs]


def _sent(runs: Sequence[_Run]) -> list[_Run]:
    """Return the runs whose prompt the engine has; where none is known to be there, all that are being sent."""
    return [run for run in runs if run.is_sent] or list(runs)


async def _wait(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event. Return False when it did not come within the time."""
    if event.is_set():
        return True
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _opened(target: Path) -> BinaryIO:
    try:
        return target.open("wb")
    except OSError as error:
        raise DeliveryFailed(f"An output cannot be stored: {error.strerror or error}") from None


def _append(file: BinaryIO, piece: bytes) -> None:
    """Append a piece to a file. Raises DeliveryFailed: a full disk is no fault of the engine's connection."""
    try:
        file.write(piece)
        file.flush()
    except OSError as error:
        raise DeliveryFailed(f"An output cannot be stored: {error.strerror or error}") from None
