"""EngineProcess: the engine as a child process of the front: started, watched, restarted, stopped.

The child inherits the read end of a pipe and exits when that closes, so no engine outlives its front. Start-up waits as
long as the process lives and ends at once when it dies. The child's environment holds none of the front's settings.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from worker.engine.http import EngineHttp
from worker.errors import EngineStartFailed, EngineUnreachable
from worker.settings import EngineLaunch

FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 30.0
STOP_SECONDS = 10.0
FAST_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "amx_tile"})

log = structlog.get_logger("engine")
supervisor_log = structlog.get_logger("engine.supervisor")


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """How to start one engine. `arguments` come after the address and the liveness pipe."""

    program: Sequence[str]
    arguments: Sequence[str]
    environment: Mapping[str, str]
    directory: Path
    port: int = 0  # 0: any free one


def engine_command(
    launch: EngineLaunch, environment: Mapping[str, str], processor_flags: frozenset[str]
) -> EngineCommand:
    """The command for our own engine. Pure: `processor_flags` are those of /proc/cpuinfo."""
    given = list(launch.arguments)
    port = _take_option(given, "--port")
    flags = ["--base-directory", str(launch.base_directory)]
    if launch.is_cpu and "--cpu" not in given:
        flags.append("--cpu")
    if launch.metadata == "none" and "--disable-metadata" not in given:
        flags.append("--disable-metadata")
    flags += precision_flags(launch.precision, processor_flags, given)
    return EngineCommand(
        program=(sys.executable, "-m", "engine"),
        arguments=(*flags, *given),
        environment=environment,
        directory=Path(__file__).resolve().parents[2],
        port=int(port or 0),
    )


def precision_flags(precision: str, processor_flags: frozenset[str], given: Sequence[str]) -> list[str]:
    """`auto` asks for bfloat16 where the processor computes it natively; the engine ignores that on a GPU's behalf."""
    if any(flag.endswith("-unet") or flag.startswith("--force-fp") for flag in given):
        return []
    if precision == "auto":
        return ["--bf16-unet"] if processor_flags & FAST_BFLOAT16_FLAGS else []
    return {"fp32": ["--force-fp32"], "fp16": ["--force-fp16"], "bf16": ["--bf16-unet"]}[precision]


def read_processor_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            if line.startswith("flags"):
                return frozenset(line.partition(":")[2].split())
    return frozenset()


def _take_option(arguments: list[str], name: str) -> str | None:
    """Removes `name value` or `name=value` from the list and gives the value."""
    for position, argument in enumerate(arguments):
        if argument == name and position + 1 < len(arguments):
            value = arguments[position + 1]
            del arguments[position : position + 2]
            return value
        if argument.startswith(f"{name}="):
            del arguments[position]
            return argument.partition("=")[2]
    return None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class EngineProcess:
    """One engine, kept alive. `on_lost` is called at once when the process has ended without being asked to."""

    def __init__(self, command: EngineCommand, on_lost: Callable[[], None] | None = None) -> None:
        self._command = command
        self._on_lost = on_lost
        self._process: asyncio.subprocess.Process | None = None
        self._pipe: int | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._answers = asyncio.Event()
        self._last_lines: deque[str] = deque(maxlen=20)
        self.num_restarts = 0
        self.port = command.port or free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def is_answering(self) -> bool:
        return self._answers.is_set()

    async def start(self) -> None:
        """Returns when the engine answers. Raises EngineStartFailed, with its last words, when its process ends."""
        await self._wait_for_port()
        await self._spawn()
        await self._await_answer()
        self._watcher = asyncio.create_task(self._keep_alive(), name="engine-watcher")

    async def wait_until_answering(self) -> None:
        await self._answers.wait()

    async def restart(self) -> None:
        """Ends the process; the watcher starts another."""
        if self._process is not None:
            await self._end(self._process)

    async def stop(self) -> None:
        self._is_stopping = True
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
        if self._process is not None:
            await self._end(self._process)
        self._close_pipe()

    async def _wait_for_port(self) -> None:
        """An engine of a front that has just died may still hold the port; a stranger is never adopted."""
        for _ in range(100):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", self.port))
                except OSError:
                    await asyncio.sleep(0.1)
                    continue
            return
        raise EngineStartFailed(f"Port {self.port} is in use by another process")

    async def _spawn(self) -> None:
        self._close_pipe()
        read_end, self._pipe = os.pipe()
        address = ("--listen", "127.0.0.1", "--port", str(self.port), "--liveness-fd", str(read_end))
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command.program,
                *address,
                *self._command.arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=(read_end,),
                env=dict(self._command.environment),
                cwd=self._command.directory,
                start_new_session=True,
                limit=1024 * 1024,
            )
        finally:
            os.close(read_end)
        supervisor_log.info("engine started", pid=self._process.pid, port=self.port)
        self._reader = asyncio.create_task(self._log_output(self._process), name="engine-output")

    async def _log_output(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:  # a line longer than the limit; what is left of it comes with the next read
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip()
            if text:
                self._last_lines.append(text)
                log.info(text)

    async def _await_answer(self) -> None:
        process = self._process
        assert process is not None
        http = EngineHttp(self.url)
        try:
            while True:
                if process.returncode is not None:
                    await self._reader
                    last = " | ".join(list(self._last_lines)[-5:]) or "it said nothing"
                    raise EngineStartFailed(
                        f"The engine's process ended with code {process.returncode} before it answered: {last}"
                    )
                with contextlib.suppress(EngineUnreachable):
                    if (await http.request("GET", "/system_stats")).status == 200:
                        break
                await asyncio.sleep(0.03)
        finally:
            await http.close()
        self._answers.set()

    async def _keep_alive(self) -> None:
        backoff = FIRST_BACKOFF_SECONDS
        while not self._is_stopping:
            assert self._process is not None
            code = await self._process.wait()
            self._answers.clear()
            supervisor_log.error("engine process ended", code=code, restart_in_seconds=backoff)
            if self._on_lost is not None:
                self._on_lost()
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, LONGEST_BACKOFF_SECONDS)
            self.num_restarts += 1
            try:
                await self._wait_for_port()
                await self._spawn()
                await self._await_answer()
            except EngineStartFailed as error:
                supervisor_log.error("engine did not start", reason=error.message)
                continue
            backoff = FIRST_BACKOFF_SECONDS

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
