"""Runs the server in this process: binds, starts, waits for the end, cleans up.

The address is bound before anything slow begins, so that a port that is taken is said at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import faulthandler
import logging
import os
import shutil
import signal
import socket
import ssl
import threading

from aiohttp import web

from darkroom.engine.server.app import create_app
from darkroom.engine.server.engine_start import EngineStart
from darkroom.engine.server.front_end import FrontEndMissing
from darkroom.engine.settings import EngineSettings

EXIT_FAILED = 1
EXIT_PORT_TAKEN = 3
EXIT_PARENT_GONE = 4
SHUTDOWN_SECONDS = 2.0

log = logging.getLogger("engine.server")


def run(settings: EngineSettings, liveness_fd: int | None = None) -> int:
    """Serve until SIGTERM or SIGINT (0), or until the engine cannot start; the exit code is what to exit with.

    `liveness_fd` is the read end of a pipe whose writing end the parent holds: when that closes the process ends.
    SIGUSR1 prints the stack of every thread, also when they hang.
    """
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    if liveness_fd is not None:
        threading.Thread(target=_die_with_parent, args=(liveness_fd,), name="liveness", daemon=True).start()
    try:
        sockets = _listening_sockets(settings)
    except OSError as error:
        log.critical("cannot listen on %s, port %d: %s", settings.listen, settings.port, error.strerror or error)
        return EXIT_PORT_TAKEN if error.errno == errno.EADDRINUSE else EXIT_FAILED
    try:
        tls = _tls(settings)
    except OSError as error:  # also what is wrong inside of the files
        log.critical("cannot use the TLS key and certificate: %s", error.strerror or error)
        return EXIT_FAILED
    try:
        return asyncio.run(_serve(settings, sockets, tls))
    except FrontEndMissing as error:
        log.critical("%s", error)
        return EXIT_FAILED


def _tls(settings: EngineSettings) -> ssl.SSLContext | None:
    """Return the TLS context, or None for plain HTTP. Raises OSError (`ssl.SSLError` is one)."""
    if settings.tls_certfile is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(settings.tls_certfile, settings.tls_keyfile)
    return context


def _die_with_parent(liveness_fd: int) -> None:
    """Exit with the parent process, on a thread of its own, so that it works even when everything else hangs."""
    with contextlib.suppress(OSError):
        while os.read(liveness_fd, 1):
            pass
    log.warning("the parent process is gone")
    os._exit(EXIT_PARENT_GONE)


def _listening_sockets(settings: EngineSettings) -> list[socket.socket]:
    """Return the inherited socket, else those of the addresses. Raises OSError."""
    if settings.listen_fd is None:
        return [_bind(host.strip(), settings.port) for host in settings.listen.split(",")]
    os.set_inheritable(settings.listen_fd, False)  # what a node starts gets no hold of it
    return [socket.socket(fileno=settings.listen_fd)]


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # 0.0.0.0 takes the same port beside it
        bound.bind(address)
        bound.listen(128)
    except OSError:
        bound.close()
        raise
    return bound


async def _serve(settings: EngineSettings, sockets: list[socket.socket], tls: ssl.SSLContext | None) -> int:
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    start = EngineStart(settings, lambda _: _end(ended, EXIT_FAILED))
    await asyncio.to_thread(_make_folders, settings)
    runner = web.AppRunner(create_app(settings, start), access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    _end_on_signals(ended)
    await runner.setup()
    for bound in sockets:
        await web.SockSite(runner, bound, ssl_context=None if bound.family == socket.AF_UNIX else tls).start()
        log.info("listening on %s", _url_of(bound, "http" if tls is None else "https"))
    greeter = asyncio.create_task(_when_built(settings, start))
    code = await ended
    greeter.cancel()
    is_importing = start.engine_now() is None
    await runner.cleanup()
    await asyncio.to_thread(shutil.rmtree, settings.temp_path, ignore_errors=True)
    log.info("stopped")
    if is_importing or start.is_stuck:  # a thread goes on, so the interpreter cannot end in good order
        logging.shutdown()
        os._exit(code)
    return code


def _url_of(bound: socket.socket, scheme: str) -> str:
    if bound.family == socket.AF_UNIX:
        return f"unix:{os.path.basename(bound.getsockname())}"
    host, port = bound.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _make_folders(settings: EngineSettings) -> None:
    """Make the folders, and empty that of temporary files: they are of one life of the engine."""
    shutil.rmtree(settings.temp_path, ignore_errors=True)
    for folder in (settings.input_path, settings.output_path, settings.temp_path):
        folder.mkdir(parents=True, exist_ok=True)


def _end_on_signals(ended: asyncio.Future[int]) -> None:
    loop = asyncio.get_running_loop()

    def stop(name: str) -> None:
        if ended.done():
            log.warning("%s again: stopping without cleaning up", name)
            os._exit(EXIT_FAILED)
        log.info("%s: stopping", name)
        _end(ended, 0)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number.name)


def _end(ended: asyncio.Future[int], code: int) -> None:
    if not ended.done():
        ended.set_result(code)


async def _when_built(settings: EngineSettings, start: EngineStart) -> None:
    """Finish the start once the engine is built: it takes over the process, and its device is logged."""
    try:
        engine = await start.engine()
    except Exception:  # noqa: BLE001 - the start has logged it, and ends the server
        return
    engine.take_over_process()
    device = await asyncio.to_thread(engine.memory.device.report)
    log.info("device: %s", device.name)
    if device.type == "cpu" and not settings.cpu:
        log.warning("no usable GPU was found: everything runs on the CPU")
