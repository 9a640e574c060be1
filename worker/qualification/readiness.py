"""Readiness: brings the worker to ready and keeps that state correct.

Each round holds the engines' other prompts back, loads models, benchmarks and warms up, and then opens or closes the
gate. A bad result is tried again after a growing pause; a good one clears the error. Of several engines a bad one is
left out while the others serve. A round also begins on request, and after an engine was started anew because its device
was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Literal, Protocol

import structlog

from darkroom.worker.concurrency.backoff import Backoff
from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.pool import EnginePool
from darkroom.worker.errors import NotReady
from darkroom.worker.jobs.admission import Gate
from darkroom.worker.qualification.phases import Phase, StartUpPhases
from darkroom.worker.qualification.qualifier import Qualified, Qualifier, now
from darkroom.worker.qualification.state import Qualification, report_of
from darkroom.worker.qualification.verdict import Verdict, failed
from darkroom.worker.qualification.warm_up import WarmUp

EXIT_UNQUALIFIED = 3
ROUND_BACKOFF = Backoff(first_seconds=1.0, longest_seconds=300.0, factor=3.0)
TRIES_BEFORE_EXIT = 3
LATE_SECONDS = 2.0
LOOK_SECONDS = 0.05
AWAY_SECONDS = 30.0
"""Time that a round waits for engines that are down, when there are others or a benchmark is requested."""

log = structlog.get_logger("readiness")


class Action(StrEnum):
    OPEN = "open"
    STAY_CLOSED = "stay closed"
    EXIT = "exit"


def action_for(verdict: Verdict, on_fail: Literal["error", "serve", "exit"], num_bad: int) -> Action:
    """Return the action for a verdict; `num_bad` counts the bad ones in a row, this one included. Pure.

    `failed` has no figure, so with it no worker serves: it would be ready at speed zero. A fault that may be temporary
    gets three tries before the worker exits.
    """
    if verdict.is_good:
        return Action.OPEN
    if on_fail == "serve" and verdict is not Verdict.FAILED:
        return Action.OPEN
    is_for_good = verdict in (Verdict.SLOW, Verdict.FAULTY) or num_bad >= TRIES_BEFORE_EXIT
    return Action.EXIT if on_fail == "exit" and is_for_good else Action.STAY_CLOSED


def pause_after(num_bad: int) -> float:
    """Return the seconds until the next try: 1, 3, 9, 27, ... 300."""
    return ROUND_BACKOFF.seconds(num_bad)


class Announcer(Protocol):
    """Receiver of the rounds' results."""

    def ready(self, *, was_closed: bool) -> None:
        """Announce that the worker serves, after every good round: the speed may have changed."""
        ...

    def not_ready(self, reason: str, *, is_new: bool) -> None:
        """Announce that the worker does not serve.

        A benchmark that could not run is announced only at the third time in a row.
        """
        ...

    def unqualified(self, exit_code: int) -> None:
        """End the worker."""
        ...


class Readiness:
    """Owner of the gate: runs benchmark and warm-up, opens and closes it, and updates `qualification`."""

    def __init__(
        self,
        qualifier: Qualifier,
        warm_up: WarmUp,
        pool: EnginePool,
        gate: Gate,
        qualification: Qualification,
        phases: StartUpPhases,
        on_fail: Literal["error", "serve", "exit"],
        announcer: Announcer,
    ) -> None:
        self._qualifier = qualifier
        self._warm_up = warm_up
        self._pool = pool
        self._gate = gate
        self._qualification = qualification
        self._phases = phases
        self._on_fail = on_fail
        self._announcer = announcer
        self._asked = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []  # for the next round
        self._sharing: list[asyncio.Future[None]] | None = None  # for the one that runs, where it was asked for
        self._found: dict[EngineClient, Qualified] = {}
        self._warm: set[EngineClient] = set()  # which have run the warm-up's workflows
        self._warms_well: set[EngineClient] = set()  # where none of them failed, so they do not end an engine
        self._suspect: set[EngineClient] = set()  # whose device was lost: no earlier result will do
        self._num_bad = 0  # rounds in a row that left the worker closed
        self._num_partial = 0  # rounds in a row that left engines out
        self._has_given_up = False  # announced as not ready; the next `ready` revokes it
        self._news = asyncio.Event()
        self._share_out()

    async def run_forever(self, has_been_up: asyncio.Event) -> None:
        """Run rounds from the first engine's start on; recovered jobs wait until the first round is over."""
        self._phases.front_is_up()
        is_forced, clients = False, self._pool.clients
        while True:
            async with contextlib.AsyncExitStack() as held:
                self._qualification.begin_round()
                self._asked.clear()
                waiting, self._waiting = self._waiting, []
                self._sharing = waiting if is_forced else None
                try:
                    if not self._gate.is_open:
                        self._gate.close("The start-up benchmark is running")
                    for client in clients:
                        await held.enter_async_context(self._pool.hold(client))
                    with self._phases.phase(Phase.ENGINE):
                        await has_been_up.wait()
                        up = await self._clients_up(clients)
                        self._forget(set(clients) - set(up))
                    action = await self._round(up, is_forced) if up else None
                finally:
                    self._qualification.end_round()
                    self._sharing = None
                    for future in waiting:
                        if not future.done():
                            future.set_result(None)
            if action is None and not self._gate.is_open:  # its engines are down: a round with the others
                is_forced, clients = is_forced or self._asked.is_set(), self._pool.clients
                continue
            if action is Action.EXIT:
                self._announcer.unqualified(EXIT_UNQUALIFIED)
                return
            num_bad = self._num_partial if self._gate.is_open else self._num_bad
            due = await self._wait(pause_after(num_bad) if num_bad else None)
            is_forced = due is None or (is_forced and action is Action.STAY_CLOSED)
            clients = self._pool.clients if due is None else due

    def device_was_lost(self, client: EngineClient) -> None:
        """Suspect an engine that restarts because of its device: it takes no job before the next benchmark."""
        self._suspect.add(client)
        made = self._found.pop(client, None)
        if made is not None:
            self._qualifier.forget(made)
        self._share_out()
        if not self._fit():
            self._gate.close("The device was lost; the benchmark decides when the worker is ready again")
        self._news.set()

    def engine_failed(self, client: EngineClient) -> None:
        """Leave out an engine that does not come back. Where no other is fit, the worker closes."""
        self._found.pop(client, None)
        self._share_out()
        if self._gate.is_open and not self._fit():
            self._close("The engines that were fit do not come back", Verdict.FAULTY)
        self._news.set()

    async def prepare(self, client: EngineClient) -> None:
        """Preload the models of an engine that was started anew, and warm it up if it was warm."""
        if client.has_check:
            await self._warm_up.preload(client)
        if client.has_check and client in self._warms_well:
            self._warms_well.discard(client)
            if not any("error" in entry for entry in await self._warm_up.run_workflows(client)):
                self._warms_well.add(client)

    async def benchmark_now(self) -> None:
        """Run a round for all engines, or wait for the requested one under way. Raises NotReady."""
        if not self._pool.clients_up:
            raise NotReady("No engine is up")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._sharing is not None:
            self._sharing.append(future)
        else:
            self._waiting.append(future)
            self._asked.set()
            self._news.set()
        await future

    async def _clients_up(self, clients: Sequence[EngineClient]) -> list[EngineClient]:
        """Wait for one of the engines, and a moment for the others; later ones get a round of their own.

        Returns none where they stay away, or a benchmark is requested meanwhile, and other engines are up.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        deadline: float | None = None
        while True:
            up = [client for client in clients if client in self._pool.clients_free]
            if up and deadline is None:
                deadline = clock() + LATE_SECONDS
            if len(up) == len(clients) or (deadline is not None and clock() >= deadline):
                return up
            is_away = not up and clock() - began >= AWAY_SECONDS
            if not up and self._pool.clients_free and (is_away or self._asked.is_set()):
                return []
            if is_away:
                self._fail_waiting_requests(NotReady(f"No engine has come up within {AWAY_SECONDS:g} s"))
            await asyncio.sleep(LOOK_SECONDS)

    def _forget(self, away: set[EngineClient]) -> None:
        """Forget the results of engines that are down; they are examined when they are back."""
        for client in away:
            self._found.pop(client, None)

    def _fail_waiting_requests(self, error: NotReady) -> None:
        """Fail the requests for a round that goes on waiting without them."""
        for future in (*self._waiting, *(self._sharing or ())):
            if not future.done():
                future.set_exception(error)

    def _is_fit(self, client: EngineClient) -> bool:
        made = self._found.get(client)
        return made is not None and action_for(made.report.verdict, self._on_fail, 0) is Action.OPEN

    def _fit(self) -> list[EngineClient]:
        return [client for client in self._pool.clients if self._is_fit(client)]

    def _share_out(self) -> None:
        """Give jobs to the fit engines only. Where none is fit, the examined ones finish the accepted jobs."""
        counted = self._fit() or list(self._found)
        for client in self._pool.clients:
            self._pool.set_fit(client, client in counted)

    def _due(self) -> list[EngineClient]:
        """Return the engines to examine.

        While the worker serves, those that are up and left out. While it is closed, all that are not fit, or simply all
        where every one is fit, as after a warm-up that failed.
        """
        if self._gate.is_open:
            return [client for client in self._pool.clients_up if not self._is_fit(client)]
        return [client for client in self._pool.clients if not self._is_fit(client)] or self._pool.clients

    async def _wait(self, pause_seconds: float | None) -> list[EngineClient] | None:
        """Return the engines of the next round, None for all where a benchmark is requested.

        Waits until the pause is over for those with a bad result, or one is to be examined for the first time, be it
        after the loss of its device.
        """
        self._qualification.wait(pause_seconds)
        clock = asyncio.get_running_loop().time
        end = math.inf if pause_seconds is None else clock() + pause_seconds
        try:
            while not self._asked.is_set():
                due = self._due() if clock() >= end else [c for c in self._due() if c not in self._found]
                if due and (self._suspect.issuperset(due) or any(c in self._pool.clients_up for c in due)):
                    return due
                self._news.clear()
                with contextlib.suppress(TimeoutError):
                    left = end - clock()
                    async with asyncio.timeout(min(LATE_SECONDS, left) if left > 0 else LATE_SECONDS):
                        await self._news.wait()
        finally:
            self._qualification.wait(None)
        return None

    async def _round(self, up: Sequence[EngineClient], is_forced: bool) -> Action:
        """Preload, benchmark and warm up the engines that are up; open or close the gate."""
        self._qualification.begin_try()
        with self._phases.phase(Phase.MODELS):
            preloaded = [await self._warm_up.preload(client) for client in up]
        with self._phases.phase(Phase.BENCHMARK):
            found = await asyncio.gather(
                *(
                    self._qualifier.qualify(
                        client,
                        is_forced=is_forced or client in self._suspect,
                        is_retuned=is_forced,
                        preloaded=models,
                    )
                    for client, models in zip(up, preloaded, strict=True)
                )
            )
            tuned = [made.report.tuning["seconds"] for made in found if made.report.tuning is not None]
            if tuned:
                self._phases.add(Phase.TUNING, max(tuned))  # engines are tuned side by side
            for client, made in zip(up, found, strict=True):
                if made.has_emptied_memory:
                    await self._warm_up.preload(client)
        self._found.update(zip(up, found, strict=True))
        self._suspect -= {client for client, made in zip(up, found, strict=True) if made.is_good}
        self._share_out()
        self._note([entry for entries in preloaded for entry in entries])
        verdict = self._qualification.verdict
        action = action_for(verdict, self._on_fail, self._num_bad + 1)
        if action is not Action.OPEN:
            self._close(f"The benchmark's verdict is {verdict.value}: {self._qualification.report['reason']}", verdict)
            return action
        return await self._warm_and_open(
            {client: entries for client, entries in zip(up, preloaded, strict=True) if self._is_fit(client)}
        )

    async def _warm_and_open(self, preloaded: Mapping[EngineClient, list[dict[str, object]]]) -> Action:
        """Warm the engines up and open the gate.

        Where the warm-up must succeed and does not, the engine is left out if others serve, and else the worker stays
        closed. `preloaded` has the entries of each engine's models.
        """
        report = self._qualification.report
        with self._phases.phase(Phase.WARM_UP):
            ran = {
                client: await self._warm_up.run_workflows(client) for client in preloaded if client not in self._warm
            }
        if ran:
            report["warm_up"] = [entry for entries in ran.values() for entry in entries]
        cold = {client: [*preloaded[client], *entries] for client, entries in ran.items()}
        errors = {client: entry["error"] for client, entries in cold.items() for entry in entries if "error" in entry}
        stay_cold = set(errors) if self._warm_up.must_succeed else set()
        self._warm.update(cold.keys() - stay_cold)
        self._warms_well.update(client for client, entries in ran.items() if not any("error" in e for e in entries))
        if stay_cold and not self._warm.intersection(self._fit()):
            self._close(f"The warm-up failed: {errors[next(iter(errors))]}", Verdict.FAILED)
            return Action.STAY_CLOSED
        for client in stay_cold:
            self._found[client] = now(failed(f"The warm-up failed: {errors[client]}"))
        if stay_cold:
            self._share_out()
            self._note(report["preloaded"])
        self._open()
        return Action.OPEN

    def _note(self, preloaded: list[dict[str, object]]) -> None:
        ran = self._qualification.report.get("warm_up", [])
        found = {client.url: self._found[client] for client in self._pool.clients if client in self._found}
        report = report_of(found, {client.url for client in self._fit()})
        self._qualification.found({**report, "preloaded": preloaded, "warm_up": ran}, self._phases.as_json())

    def _open(self) -> None:
        self._num_bad = 0
        left_out = {c.url: made.report for c, made in self._found.items() if not self._is_fit(c)}
        self._num_partial = self._num_partial + 1 if left_out else 0
        for url, found in left_out.items():
            log.error("engine left out", url=url, verdict=found.verdict.value, reason=found.reason)
        is_first = self._phases.ready()
        self._qualification.opened(self._phases.as_json())
        if is_first:
            log.info("ready", **{f"{name}_seconds": seconds for name, seconds in self._phases.as_json().items()})
        was_closed = not self._gate.is_open
        self._gate.open()
        self._has_given_up = False
        self._announcer.ready(was_closed=was_closed)

    def _close(self, reason: str, verdict: Verdict) -> None:
        """Close the gate and announce it.

        A benchmark that could not run gets three tries before it is announced.
        """
        self._num_bad += 1
        log.error("not ready", reason=reason, retry_in_seconds=pause_after(self._num_bad))
        self._qualification.closed(reason)
        self._gate.close(reason)
        is_over = verdict is not Verdict.FAILED or self._num_bad >= TRIES_BEFORE_EXIT
        if is_over:
            self._announcer.not_ready(reason, is_new=not self._has_given_up)
            self._has_given_up = True
