"""EngineProcess: the engine as a child process of the front: started, restarted, replaced, stopped.

The child inherits the read end of a pipe and exits when that closes, so no engine outlives its front. Start-up waits as
long as the process lives and ends at once when it dies. The child's environment holds none of the front's settings.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum

import structlog
from pydantic import SecretStr

from darkroom.worker.engines.address import NO_TOKEN, EngineAddress
from darkroom.worker.engines.command import EngineCommand
from darkroom.worker.engines.engine_log import EngineLog
from darkroom.worker.engines.http import EngineHttp
from darkroom.worker.engines.loss import Loss, LossReason, RestartBudget, backoff_seconds, is_outside, reason_of_exit
from darkroom.worker.engines.sandbox_start import StatusPipe, prepare, try_sandbox
from darkroom.worker.engines.unix_socket import UnixSocket
from darkroom.worker.errors import EngineStartFailed, EngineUnreachable
from darkroom.worker.observe.memory import MachineMemory

STOP_SECONDS = 10.0
DUMP_SECONDS = 0.5  # for the stacks of a process that hangs
TRACE_SECONDS = 0.5  # for the next line of a traceback
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
        self._process: asyncio.subprocess.Process | None = None
        self._status: StatusPipe | None = None
        self._inner_pid: int | None = None  # of the engine itself, where another program holds its namespaces
        self._pipe: int | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._replaced_for: LossReason | None = None
        self._oom_kills_before = 0
        self._memory_bytes: int | None = None  # of the engine when it was looked at last
        self._answers = asyncio.Event()
        self._log = EngineLog()
        self.state = ProcessState.STARTING
        self.restarts: Counter[LossReason] = Counter()
        self.last_loss: Loss | None = None
        self.answering_since = 0.0  # monotonic seconds
        self._socket = None if command.listen else UnixSocket(command.name, command.socket_directory)
        self._token = token
        self._port = (command.port or free_port()) if command.listen else 0

    @property
    def address(self) -> EngineAddress:
        if self._socket is not None:
            return EngineAddress.of_socket(self._socket)
        host = self._command.connect_host
        return EngineAddress(f"http://{f'[{host}]' if ':' in host else host}:{self._port}", token=self._token)

    @property
    def has_port(self) -> bool:
        """True if other programs than the front can connect."""
        return self._socket is None

    @property
    def pid(self) -> int | None:
        """Process id of the engine; None while no process runs."""
        if self._process is None or self._process.returncode is not None:
            return None
        return self._inner_pid or self._process.pid

    @property
    def is_answering(self) -> bool:
        return self._answers.is_set()

    @property
    def num_restarts(self) -> int:
        return self.restarts.total()

    def look_at_memory(self) -> None:
        """Note the memory of the process, which tells whose doing its end is."""
        pid = self.pid
        self._memory_bytes = (None if pid is None else self._memory.process_bytes(pid)) or self._memory_bytes

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
            await self._wait_for_port()
            await self._spawn()
            await self._await_answer()
        except EngineStartFailed:
            self.state = ProcessState.FAILED
            raise
        self._watcher = asyncio.create_task(self._keep_alive(), name="engine-watcher")

    async def wait_until_answering(self) -> None:
        await self._answers.wait()

    def replace(self, reason: LossReason) -> None:
        """End the process, which then counts as lost for this reason; the watcher starts another."""
        if self._process is None or self._process.returncode is not None or self._replaced_for is not None:
            return
        self._replaced_for = reason
        supervisor_log.warning("engine replaced", reason=reason.value, pid=self._process.pid)
        self._ending = asyncio.create_task(self._end(self._process, is_stuck=reason.is_hang), name="engine-ending")

    async def stop(self, patience_seconds: float = STOP_SECONDS) -> None:
        """End the process for good. Its prompts get `patience_seconds` to end."""
        self.state = ProcessState.STOPPED
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
        if self._process is not None:
            await self._end(self._process, patience_seconds=patience_seconds)
        self._close_pipe()
        self._close_status()
        if self._socket is not None:
            self._socket.remove()

    async def _wait_for_port(self) -> None:
        """Wait until the port is free: the engine of a front that has just died may hold it.

        A foreign process on the port is never adopted.
        """
        if self._socket is not None:
            return
        host = self._command.connect_host
        for _ in range(100):
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((host, self._port))
                except OSError:
                    await asyncio.sleep(0.1)
                    continue
            return
        raise EngineStartFailed(f"Port {self._port} is in use by another process")

    async def _spawn(self) -> None:
        self._close_pipe()
        self._replaced_for = None
        self._oom_kills_before = self._memory.num_oom_kills()
        self._memory_bytes = None
        self._log.clear()
        read_end, self._pipe = os.pipe()
        listening: socket.socket | None = None
        status: StatusPipe | None = None
        self._close_status()
        sandbox, environment = self._command.sandbox, dict(self._command.environment)
        try:
            listening = None if self._socket is None else self._socket.listen()
            program = [
                *self._command.program,
                *self._address_flags(listening),
                *("--liveness-fd", str(read_end)),
                *self._command.arguments,
            ]
            inherited = [read_end] if listening is None else [read_end, listening.fileno()]
            if sandbox is not None:
                self._status = status = StatusPipe() if sandbox.has_namespaces else None
                inherited += [] if status is None else [status.write_end]
                environment = sandbox.environment(environment)
                program = sandbox.program(program, None if status is None else status.write_end)
            self._inner_pid = None
            self._process = await asyncio.create_subprocess_exec(
                *program,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=inherited,
                env=environment,
                cwd=self._command.directory,
                start_new_session=True,
                limit=1024 * 1024,
            )
        except OSError as error:
            raise EngineStartFailed(f"The engine's process cannot be started: {error}") from None
        finally:
            os.close(read_end)
            if status is not None:
                self._inner_pid = await asyncio.to_thread(status.child_pid)
            if listening is not None:
                listening.close()  # so that no client connects to it once the process has ended
        level = "off" if sandbox is None else sandbox.level
        supervisor_log.info("engine started", pid=self.pid, url=self.address.url, sandbox=level)
        self._reader = asyncio.create_task(self._log_output(self._process), name="engine-output")

    def _address_flags(self, listening: socket.socket | None) -> list[str]:
        if listening is not None:
            return ["--listen-fd", str(listening.fileno())]
        flags = ["--listen", self._command.listen, "--port", str(self._port)]
        token = self._token.get_secret_value()
        return [*flags, "--token-sha256", hashlib.sha256(token.encode()).hexdigest()] if token else flags

    async def _log_output(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            while True:
                try:
                    async with asyncio.timeout(TRACE_SECONDS if self._log.is_in_trace else None):
                        line = await process.stdout.readline()
                except TimeoutError:
                    self._log.flush()
                    continue
                except ValueError:  # a line longer than the limit; the rest comes with the next read
                    continue
                if not line:
                    return
                self._log.add(line.decode(errors="replace").rstrip())
        finally:
            self._log.flush()

    async def _await_answer(self) -> None:
        process = self._process
        assert process is not None and self._reader is not None
        http = EngineHttp(self.address)
        ended = asyncio.ensure_future(process.wait())
        try:
            while True:
                asking = asyncio.ensure_future(http.request("GET", "/system_stats"))
                await asyncio.wait({asking, ended}, return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    asking.cancel()
                    await asyncio.wait({self._reader}, timeout=1)
                    message = f"The engine's process ended with code {process.returncode} before it answered"
                    raise EngineStartFailed(f"{message}: {self._log.last_output()}")
                with contextlib.suppress(EngineUnreachable):
                    if asking.result().status == 200:
                        break
                await asyncio.sleep(0.03)
        finally:
            ended.cancel()
            await http.close()
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
                    await self._wait_for_port()
                    await self._spawn()
                    await self._await_answer()
                except EngineStartFailed as error:
                    num_failed_starts += 1
                    supervisor_log.error("engine did not start", reason=error.message)

    async def _await_loss(self) -> bool:
        """Wait for the process to end and report its loss. Return False when it was stopped on purpose."""
        assert self._process is not None and self._reader is not None
        code = self._code_of(await self._process.wait())
        self._end_followers(self._process)
        if self.state is ProcessState.STOPPED:
            return False
        self._answers.clear()
        self.state = ProcessState.RESTARTING
        num_oom_kills = self._memory.num_oom_kills() - self._oom_kills_before
        reason = self._replaced_for or reason_of_exit(code, num_oom_kills)
        words = "" if reason is LossReason.RECYCLED else self._log.last_output()
        outside = self._replaced_for is None and is_outside(
            reason, code, self._memory_bytes, self._memory.total_bytes()
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

    async def _end(
        self, process: asyncio.subprocess.Process, *, is_stuck: bool = False, patience_seconds: float = STOP_SECONDS
    ) -> None:
        """Terminate a process, then kill it; one that is stuck prints its stacks first."""
        if process.returncode is not None:
            return
        self._signal(process, signal.SIGUSR1 if is_stuck else signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DUMP_SECONDS if is_stuck else patience_seconds):
                await process.wait()
        if process.returncode is None:
            self._signal(process, signal.SIGKILL)
            await process.wait()
        self._end_followers(process)

    def _signal(self, process: asyncio.subprocess.Process, number: signal.Signals) -> None:
        """Signal the engine itself: the program that holds its namespaces forwards no signal and ends with it."""
        with contextlib.suppress(ProcessLookupError):
            if self._inner_pid is not None and process is self._process and process.returncode is None:
                os.kill(self._inner_pid, number)
            else:
                process.send_signal(number)

    @staticmethod
    def _end_followers(process: asyncio.subprocess.Process) -> None:
        """Kill the processes that node packs left in the engine's process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)

    def _code_of(self, code: int) -> int:
        """Return the engine's exit code, negative for a signal's number.

        From within namespaces a signal comes as 128 and more.
        """
        return 128 - code if self._inner_pid is not None and code > 128 else code

    def _close_status(self) -> None:
        if self._status is not None:
            self._status.close()
            self._status = None

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


def _last_output_of(loss: Loss | None) -> str:
    return "" if loss is None else f"{loss.sentence}: {loss.last_words}"
