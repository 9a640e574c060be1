"""EngineChild: one process of an engine, from its start to its end.

It inherits the read end of a pipe and exits when that closes, so it never outlives the front. Its environment holds
none of the front's settings.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket

import structlog

from darkroom.worker.engines.command import EngineCommand
from darkroom.worker.engines.endpoint import EngineEndpoint
from darkroom.worker.engines.engine_log import EngineLog
from darkroom.worker.engines.http import EngineHttp
from darkroom.worker.engines.loss import LossReason
from darkroom.worker.engines.sandbox_start import StatusPipe
from darkroom.worker.errors import EngineStartFailed, EngineUnreachable
from darkroom.worker.observe.memory import MachineMemory

STOP_SECONDS = 10.0
DUMP_SECONDS = 0.5  # for the stacks of a process that hangs
TRACE_SECONDS = 0.5  # for the next line of a traceback
ASK_PAUSE_SECONDS = 0.03
LINE_BYTES = 1024 * 1024

log = structlog.get_logger("engine.supervisor")


class EngineChild:
    """Owner of one process, its pipes and its output. `close` is called when it has ended, also if it never started.

    `replaced_for` is the reason for which it was ended on purpose, `memory_bytes` its memory at the last look.
    """

    def __init__(self, command: EngineCommand, endpoint: EngineEndpoint, memory: MachineMemory) -> None:
        self._command = command
        self._endpoint = endpoint
        self._memory = memory
        self._oom_kills_before = memory.num_oom_kills()
        self._process: asyncio.subprocess.Process | None = None
        self._status: StatusPipe | None = None
        self._inner_pid: int | None = None  # of the engine itself, where another program holds its namespaces
        self._pipe: int | None = None
        self._reader: asyncio.Task[None] | None = None
        self._log = EngineLog()
        self.replaced_for: LossReason | None = None
        self.memory_bytes: int | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int | None:
        """Process id of the engine; None while no process runs."""
        if self._process is None or self._process.returncode is not None:
            return None
        return self._inner_pid or self._process.pid

    @property
    def outer_pid(self) -> int | None:
        """Process id of the program that was started: the engine, or what holds its namespaces."""
        return None if self._process is None else self._process.pid

    @property
    def num_oom_kills(self) -> int:
        """Number of processes that the kernel has killed for memory since this one began."""
        return self._memory.num_oom_kills() - self._oom_kills_before

    def last_output(self) -> str:
        """Return the last lines of the process."""
        return self._log.last_output()

    def look_at_memory(self) -> None:
        """Note the memory of the process."""
        pid = self.pid
        self.memory_bytes = (None if pid is None else self._memory.process_bytes(pid)) or self.memory_bytes

    def note_replacement(self, reason: LossReason) -> None:
        """Note that the process is ended on purpose."""
        self.replaced_for = reason

    async def start(self) -> None:
        """Start the process. Raises EngineStartFailed."""
        read_end, self._pipe = os.pipe()
        listening: socket.socket | None = None
        status: StatusPipe | None = None
        sandbox, environment = self._command.sandbox, dict(self._command.environment)
        try:
            listening = self._endpoint.listen()
            program = [
                *self._command.program,
                *self._endpoint.flags(listening),
                *("--liveness-fd", str(read_end)),
                *self._command.arguments,
            ]
            inherited = [read_end] if listening is None else [read_end, listening.fileno()]
            if sandbox is not None:
                self._status = status = StatusPipe() if sandbox.has_namespaces else None
                inherited += [] if status is None else [status.write_end]
                environment = sandbox.environment(environment)
                program = sandbox.program(program, None if status is None else status.write_end)
            self._process = await asyncio.create_subprocess_exec(
                *program,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=inherited,
                env=environment,
                cwd=self._command.directory,
                start_new_session=True,
                limit=LINE_BYTES,
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
        log.info("engine started", pid=self.pid, url=self._endpoint.address.url, sandbox=level)
        self._reader = asyncio.create_task(self._log_output(self._process), name="engine-output")

    async def await_answer(self) -> None:
        """Wait until the engine answers. Raises EngineStartFailed, with its last output, when the process ends."""
        process = self._process
        assert process is not None and self._reader is not None
        http = EngineHttp(self._endpoint.address)
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
                        return
                await asyncio.sleep(ASK_PAUSE_SECONDS)
        finally:
            ended.cancel()
            await http.close()

    async def await_end(self) -> int:
        """Wait for the end of the process, kill what it left behind, and return the engine's exit code.

        It is negative for a signal's number. From within namespaces a signal comes as 128 and more.
        """
        assert self._process is not None
        code = await self._process.wait()
        self._end_followers(self._process)
        return 128 - code if self._inner_pid is not None and code > 128 else code

    async def end(self, *, is_stuck: bool = False, patience_seconds: float = STOP_SECONDS) -> None:
        """Terminate the process, then kill it; one that is stuck prints its stacks first."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        self._signal(process, signal.SIGUSR1 if is_stuck else signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DUMP_SECONDS if is_stuck else patience_seconds):
                await process.wait()
        if process.returncode is None:
            self._signal(process, signal.SIGKILL)
            await process.wait()
        self._end_followers(process)

    def close(self) -> None:
        """Close the pipes; a process that is still there exits then."""
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
        if self._status is not None:
            self._status.close()
            self._status = None

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

    def _signal(self, process: asyncio.subprocess.Process, number: signal.Signals) -> None:
        """Signal the engine itself: the program that holds its namespaces forwards no signal and ends with it."""
        with contextlib.suppress(ProcessLookupError):
            if self._inner_pid is not None and process.returncode is None:
                os.kill(self._inner_pid, number)
            else:
                process.send_signal(number)

    @staticmethod
    def _end_followers(process: asyncio.subprocess.Process) -> None:
        """Kill the processes that node packs left in the engine's process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
