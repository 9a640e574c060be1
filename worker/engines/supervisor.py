"""EngineProcess: the engine as a child process of the front: started, restarted, replaced, stopped.

Each process is an `EngineChild`. Start-up waits as long as the process lives and ends at once when it dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum

import structlog
from pydantic import SecretStr

from darkroom.worker.engines.address import NO_TOKEN, EngineAddress
from darkroom.worker.engines.child import STOP_SECONDS, EngineChild
from darkroom.worker.engines.command import EngineCommand
from darkroom.worker.engines.endpoint import EngineEndpoint, PortEndpoint, UnixEndpoint
from darkroom.worker.engines.loss import Loss, LossReason, RestartBudget, backoff_seconds, is_outside, reason_of_exit
from darkroom.worker.engines.sandbox import Sandbox
from darkroom.worker.engines.sandbox_start import prepare, try_sandbox
from darkroom.worker.engines.unix_socket import UnixSocket
from darkroom.worker.errors import EngineStartFailed
from darkroom.worker.observe.memory import MachineMemory

DEFAULT_RESTARTS = (10, 600.0)  # at most so many within so many seconds

supervisor_log = structlog.get_logger("engine.supervisor")


class ProcessState(StrEnum):
    STARTING = "starting"  # for the first time
    ANSWERING = "answering"
    RESTARTING = "restarting"
    FAILED = "failed"  # it does not come back
    STOPPED = "stopped"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class EngineProcess:
    """Child process of one engine, restarted when it ends.

    `on_lost` is called at once when the process has ended without `stop` being called; before it, `find_culprit`
    returns the prompt that caused the loss. `token` is for an engine that listens on a port; one on a Unix socket needs
    none. `budget` is for losses without a culprit; failed starts have one of the same size.
    """

    def __init__(
        self,
        command: EngineCommand,
        on_lost: Callable[[Loss], None] = lambda loss: None,
        *,
        budget: RestartBudget | None = None,
        memory: MachineMemory | None = None,
        token: SecretStr = NO_TOKEN,
        find_culprit: Callable[[LossReason], str | None] = lambda reason: None,
    ) -> None:
        self._command = command
        self._on_lost = on_lost
        self._budget = budget or RestartBudget(*DEFAULT_RESTARTS)
        self._start_budget = RestartBudget(self._budget.max_restarts, self._budget.window_seconds)
        self._find_culprit = find_culprit
        self._memory = memory or MachineMemory()
        self._child: EngineChild | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._answers = asyncio.Event()
        self.state = ProcessState.STARTING
        self.restarts: Counter[LossReason] = Counter()
        self.last_loss: Loss | None = None
        self.answering_since = 0.0  # monotonic seconds
        self._endpoint = _endpoint_of(command, token)

    @property
    def address(self) -> EngineAddress:
        return self._endpoint.address

    @property
    def has_port(self) -> bool:
        """True if other programs than the front can connect."""
        return self._endpoint.has_port

    @property
    def pid(self) -> int | None:
        """Process id of the engine; None while no process runs."""
        return None if self._child is None else self._child.pid

    @property
    def sandbox(self) -> Sandbox | None:
        """Sandbox of the engine; None: it has none."""
        return self._command.sandbox

    @property
    def gpu(self) -> str | None:
        """Value of `CUDA_VISIBLE_DEVICES` in the engine's environment; None: every device."""
        return self._command.environment.get("CUDA_VISIBLE_DEVICES")

    @property
    def is_answering(self) -> bool:
        return self._answers.is_set()

    @property
    def num_restarts(self) -> int:
        return self.restarts.total()

    def look_at_memory(self) -> None:
        """Note the memory of the process, which tells whose doing its end is."""
        if self._child is not None:
            self._child.look_at_memory()

    async def prepare(self) -> None:
        """Prepare and try the sandbox, where there is one. Raises EngineStartFailed."""
        sandbox = self._command.sandbox
        if sandbox is not None:
            await asyncio.to_thread(prepare, sandbox)
            sandbox = await asyncio.to_thread(try_sandbox, sandbox, self._command.environment)
            self._command = replace(self._command, sandbox=sandbox)

    async def start(self) -> None:
        """Start the process and wait until the engine answers.

        Raises EngineStartFailed, with its last output, when the process ends.
        """
        try:
            await self._start_child()
        except EngineStartFailed:
            self.state = ProcessState.FAILED
            raise
        self._watcher = asyncio.create_task(self._keep_alive(), name="engine-watcher")

    async def wait_until_answering(self) -> None:
        await self._answers.wait()

    def replace(self, reason: LossReason) -> None:
        """End the process, which then counts as lost for this reason; the watcher starts another."""
        child = self._child
        if child is None or not child.is_running or child.replaced_for is not None:
            return
        child.note_replacement(reason)
        supervisor_log.warning("engine replaced", reason=reason.value, pid=child.outer_pid)
        self._ending = asyncio.create_task(child.end(is_stuck=reason.is_hang), name="engine-ending")

    async def stop(self, patience_seconds: float = STOP_SECONDS) -> None:
        """End the process for good. Its prompts get `patience_seconds` to end."""
        self.state = ProcessState.STOPPED
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
        if self._child is not None:
            await self._child.end(patience_seconds=patience_seconds)
            self._child.close()
        self._endpoint.remove()

    async def _start_child(self) -> None:
        """Start a process in place of one that has ended. Raises EngineStartFailed."""
        await self._endpoint.wait_until_free()
        if self._child is not None:
            self._child.close()
        self._child = EngineChild(self._command, self._endpoint, self._memory)
        await self._child.start()
        await self._child.await_answer()
        self.answering_since = time.monotonic()
        self.state = ProcessState.ANSWERING
        self._answers.set()

    async def _keep_alive(self) -> None:
        while await self._await_loss():
            num_failed_starts = 0
            while not self.is_answering:
                if not self._may_restart(num_failed_starts):
                    self.state = ProcessState.FAILED
                    supervisor_log.critical("engine failed", reason=_last_output_of(self.last_loss))
                    assert self.last_loss is not None
                    self._on_lost(self.last_loss)
                    return
                if num_failed_starts or self.last_loss is None or not self.last_loss.is_planned:
                    await asyncio.sleep(backoff_seconds(num_failed_starts))
                try:
                    await self._start_child()
                except EngineStartFailed as error:
                    num_failed_starts += 1
                    supervisor_log.error("engine did not start", reason=error.message)

    async def _await_loss(self) -> bool:
        """Wait for the process to end and report its loss. Return False when it was stopped on purpose."""
        child = self._child
        assert child is not None
        code = await child.await_end()
        if self.state is ProcessState.STOPPED:
            return False
        self._answers.clear()
        self.state = ProcessState.RESTARTING
        reason = child.replaced_for or reason_of_exit(code, child.num_oom_kills)
        words = "" if reason is LossReason.RECYCLED else child.last_output()
        outside = child.replaced_for is None and is_outside(
            reason, code, child.memory_bytes, self._memory.total_bytes()
        )
        self.last_loss = Loss(reason, code, words, self._find_culprit(reason), outside)
        self.restarts[reason] += 1
        log_end = supervisor_log.info if self.last_loss.is_planned else supervisor_log.error
        about = {"prompt_id": self.last_loss.prompt_id, "is_outside": outside}
        log_end("engine process ended", code=code, reason=reason.value, **about)
        self._on_lost(self.last_loss)
        return True

    def _may_restart(self, num_failed_starts: int) -> bool:
        """Return True while the budget of the cause lasts. A loss that a job caused is counted elsewhere."""
        if num_failed_starts:
            return self._start_budget.take(time.monotonic())
        loss = self.last_loss
        is_free = loss is not None and (loss.is_planned or loss.prompt_id is not None)
        return is_free or self._budget.take(time.monotonic())


def _endpoint_of(command: EngineCommand, token: SecretStr) -> EngineEndpoint:
    if not command.listen:
        return UnixEndpoint(UnixSocket(command.name, command.socket_directory))
    return PortEndpoint(command.listen, command.connect_host, command.port or free_port(), token)


def _last_output_of(loss: Loss | None) -> str:
    return "" if loss is None else f"{loss.sentence}: {loss.last_words}"
