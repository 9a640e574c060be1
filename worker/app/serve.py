"""Process of the front: reads the settings, runs the HTTP server, and builds the front and its application.

The server listens as soon as the settings are read and the state directory is locked. The front, and its application
after it, are imported and built on a thread while the server answers probes; the engine starts between the two.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import structlog
import uvicorn

from darkroom.worker.app.lean_imports import lean_imports
from darkroom.worker.errors import SettingsInvalid, WorkerError
from darkroom.worker.guard.identity.loopback import LOOPBACK
from darkroom.worker.guard.identity.may_listen import check_may_listen
from darkroom.worker.guard.listener.certificate import Certificate
from darkroom.worker.guard.listener.connections import ConnectionTable, connection_table
from darkroom.worker.guard.listener.open_files import raise_open_files
from darkroom.worker.guard.listener.server import GuardedServer
from darkroom.worker.guard.listener.starting_app import StartingApp
from darkroom.worker.guard.listener.web_socket import OPTIONS as WEB_SOCKET_OPTIONS
from darkroom.worker.guard.listener.web_socket import GuardedWebSocket
from darkroom.worker.observe.log_markers import write_marker
from darkroom.worker.observe.logs import LogForm, Redaction, set_up_logs
from darkroom.worker.observe.prompt_texts import PromptTexts
from darkroom.worker.settings.api_keys import HASHED
from darkroom.worker.settings.environment import LoadedSettings, has_colors, load_settings, site_tokens
from darkroom.worker.settings.listener import TlsFiles
from darkroom.worker.settings.models import parse_tokens
from darkroom.worker.settings.settings import Settings
from darkroom.worker.storage.state_directory import StateDirectory

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import ASGIApp, Receive, Scope, Send

    from darkroom.worker.app.assembly import Front

BACKLOG = 1024
GOODBYE_SECONDS = 2  # for replies that are still being sent when all jobs have ended
EXIT_UNUSABLE = 1
EXIT_BAD_SETTING = 2


class FrontServer(GuardedServer):
    """Uvicorn's server that keeps replying while it drains, with our exit code instead of the signal's.

    The first signal begins to drain, the second stops draining, the third exits without waiting.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        connections: ConnectionTable,
        drain: Callable[[], None],
        certificate: Certificate | None = None,
    ) -> None:
        super().__init__(config, connections, reply_busy, certificate)
        self._drain = drain
        self._num_signals = 0

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        def handle(number: int, frame: FrameType | None) -> None:
            self._num_signals += 1
            if self._num_signals > 2:
                self.should_exit = self.force_exit = True
            else:
                self._drain()

        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def serve(**overrides: Any) -> int:
    """Run the front until it is stopped; return the exit code. `overrides` are settings by variable."""
    try:
        return serve_with(load_settings(**overrides))
    except SettingsInvalid as error:
        sys.stderr.write(f"Settings: {error.message}\n")
        return EXIT_BAD_SETTING


def serve_with(loaded: LoadedSettings) -> int:
    """Run the front with these settings until it is stopped; return the exit code. Raises SettingsInvalid."""
    settings = loaded.settings
    check_may_listen(settings)
    secrets = known_secrets(settings)
    prompt_texts = PromptTexts()
    form = LogForm(settings.log.format, settings.log.effective_level, has_colours=has_colors())
    set_up_logs(form, Redaction(secrets, prompt_texts))
    log = structlog.get_logger("main")
    for warning in loaded.warnings:
        log.warning(warning)
    try:
        return run_front(settings, prompt_texts, loaded.warnings)
    except CannotStart as error:
        sys.stderr.write(f"{error}\n")
        write_marker("Application startup failed")
        if settings.is_under_vast:
            from darkroom.worker.app.integrations import launch_failure_reporter

            launch_failure_reporter()(settings.vast_config(), str(error))
        return EXIT_UNUSABLE


class CannotStart(Exception):
    """Error when the server could not begin to listen. The message has the reason."""


async def reply_busy(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer any request with 503, on a connection that is over a limit."""
    from darkroom.worker.api.busy import busy

    await busy(scope, receive, send)


def run_front(settings: Settings, prompt_texts: PromptTexts, warnings: Sequence[str] = ()) -> int:
    """Serve until stopped; return the exit code. Raises CannotStart."""
    try:
        raise_open_files()
        process = FrontProcess(settings, prompt_texts, warnings)
        structlog.get_logger("main").info("server starting", host=settings.listen_host, port=settings.listener.port)
        process.server.run()
    except (WorkerError, OSError) as error:
        raise CannotStart(str(error)) from error
    if process.start_problem or not process.server.started:
        raise CannotStart(process.start_problem or "the server stopped before it was listening")
    return process.exit_code


class FrontProcess:
    """The server of this process, and the front behind it once that is built. Raises CannotStart, WorkerError."""

    def __init__(self, settings: Settings, prompt_texts: PromptTexts, warnings: Sequence[str]) -> None:
        self._settings = settings
        self._prompt_texts = prompt_texts
        self._warnings = warnings
        self._front: Front | None = None
        self._held = StateDirectory(settings.folders.state_path)
        self.exit_code = 0
        self.start_problem = ""  # the reason why the front could not start
        self._held.take()
        certificate = open_certificate(settings.tls_files())
        self._connections = connection_table(settings.connections)
        config = server_config(settings, StartingApp(self._running_app, self._failed), self._connections)
        self.server = FrontServer(config, self._connections, self._drain, certificate)

    @contextlib.asynccontextmanager
    async def _running_app(self) -> AsyncIterator[ASGIApp]:
        """Build the front, start it, and import the application while the engine starts."""
        front = await asyncio.to_thread(self._build_front)
        apps: list[ASGIApp] = []

        async def build_app() -> None:
            apps.append(await asyncio.to_thread(make_app, front))

        async with front.lifespan(build_app):
            self._front = front
            gc.freeze()  # the imported modules stay for good, and need not be examined again
            yield apps[0]

    def _build_front(self) -> Front:
        with lean_imports():
            from darkroom.worker.app.assembly import Front
            from darkroom.worker.app.integrations import load_defaults

            load_defaults()

        front = Front(
            self._settings,
            self._stop,
            prompt_texts=self._prompt_texts,
            setting_warnings=self._warnings,
            held=self._held,
            connections=self._connections,
        )
        front.take_state_directory()
        return front

    def _failed(self, error: Exception) -> None:
        if isinstance(error, (WorkerError, OSError)):
            self.start_problem = str(error)
        else:
            self.start_problem = f"the start failed: {type(error).__name__}; the trace is above"
            structlog.get_logger("main").error("start failed", exc_info=error)
        self.server.request_exit()

    def _stop(self, code: int) -> None:
        self.exit_code = max(self.exit_code, code)
        self.server.request_exit()

    def _drain(self) -> None:
        if self._front is None:
            self.server.request_exit()
        else:
            self._front.begin_to_drain()


def make_app(front: Front) -> FastAPI:
    """Import the application and build it. Takes about a second; not for the event loop."""
    with lean_imports():
        from darkroom.worker.app.application import create_app

        return create_app(front.services)


def open_certificate(files: TlsFiles | None) -> Certificate | None:
    """Return the certificate for TLS, None without. Raises CannotStart naming its files."""
    if files is None:
        return None
    try:
        return Certificate(files)
    except OSError as error:
        reason = error.strerror or error
        raise CannotStart(
            f"SSL_CERTFILE {files.certificate} and SSL_KEYFILE {files.key} cannot be used: {reason}"
        ) from error


def server_config(settings: Settings, app: ASGIApp, connections: ConnectionTable) -> uvicorn.Config:
    """Return uvicorn's configuration; TLS and connections are GuardedServer's."""
    config = uvicorn.Config(
        app,
        host=settings.listen_host,
        port=settings.listener.port,
        ws=GuardedWebSocket,
        **WEB_SOCKET_OPTIONS,
        backlog=min(BACKLOG, connections.limits.max_connections),
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=GOODBYE_SECONDS,
    )
    if config.forwarded_allow_ips != "*":  # uvicorn's default contains one of the three forms of this machine's address
        named = config.forwarded_allow_ips or ()
        config.forwarded_allow_ips = [*(named.split(",") if isinstance(named, str) else named), *LOOPBACK]
    return config


def known_secrets(settings: Settings) -> list[str]:
    """Return every secret value of the settings, for redaction in the log. Raises SettingsInvalid."""
    keys = [key.get_secret_value().split(":") for key in (*settings.access.api_keys, *settings.access.admin_api_keys)]
    of_keys = [parts[1] for parts in keys if len(parts) > 1 and parts[1].lower() != HASHED]
    of_hosts = [token.get_secret_value() for _, token in parse_tokens(settings.models.tokens.get_secret_value())]
    return [*settings.secret_values(), *of_keys, *site_tokens(), *of_hosts, *settings.tracing.header_values().values()]


def leave(code: int) -> NoReturn:
    """End the process of a front that has stopped: everything is closed, and on disk.

    The interpreter's shutdown would take half a second more, and wait for the threads of an upload that hangs.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
