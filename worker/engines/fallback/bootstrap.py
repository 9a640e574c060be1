"""Start of a ComfyUI that does not outlive the worker: `python bootstrap.py SCRIPT …`, or `… -- COMMAND …`.

Flags of its own are removed from the arguments:

- `--liveness-fd N` is the read end of a pipe whose other end the worker holds: when it closes the process is killed.
- `--listen-fd N` is a listening Unix socket. Its connections are passed on to a free port of 127.0.0.1, on which
  ComfyUI listens: within a network namespace of its own nobody else reaches that.
- `--limit-processes`, `--limit-file-bytes` and `--limit-memory-bytes` limit the process and what it starts.

SIGUSR1 prints the stacks of all threads. The SCRIPT is run by this interpreter, which may be any that ComfyUI runs on,
so this file is standard library alone and imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import threading

LOOPBACK = "127.0.0.1"
LIMITS = {
    "--limit-processes": resource.RLIMIT_NPROC,
    "--limit-file-bytes": resource.RLIMIT_FSIZE,
    "--limit-memory-bytes": resource.RLIMIT_DATA,
}


def take_number(arguments: list[str], flag: str) -> int | None:
    """Remove a flag from the arguments and return its number, None without it."""
    if flag not in arguments:
        return None
    position = arguments.index(flag)
    number = int(arguments[position + 1])
    del arguments[position : position + 2]
    return number


def die_with(pipe: int) -> None:
    """Kill this process and what it started once the other end of the pipe is closed."""

    def wait() -> None:
        while os.read(pipe, 1):
            pass
        with contextlib.suppress(OSError):
            os.killpg(os.getpgrp(), signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=wait, name="liveness", daemon=True).start()


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def pass_on(listening: socket.socket, port: int) -> None:
    """Pass the connections of a socket on to a port, for as long as the process lives."""

    def serve() -> None:
        while True:
            client, _ = listening.accept()
            threading.Thread(target=connect, args=(client,), daemon=True).start()

    def connect(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port)) as server:
            answers = threading.Thread(target=copy, args=(server, client), daemon=True)
            answers.start()
            copy(client, server)
            answers.join()

    threading.Thread(target=serve, name="relay", daemon=True).start()


def copy(source: socket.socket, target: socket.socket) -> None:
    """Send what comes from one socket to another one until it ends."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def run_command(command: list[str]) -> int:
    """Run a program of any kind, pass SIGTERM and SIGINT on to it, and return its exit code."""
    child = subprocess.Popen(command)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: child.send_signal(received))
    return child.wait()


def main() -> int:
    arguments = sys.argv[1:]
    pipe = take_number(arguments, "--liveness-fd")
    if pipe is not None:
        die_with(pipe)
    for flag, kind in LIMITS.items():
        limit = take_number(arguments, flag)
        if limit is not None:
            resource.setrlimit(kind, (limit, limit))
    listening = take_number(arguments, "--listen-fd")
    if listening is not None:
        port = free_port()
        pass_on(socket.socket(fileno=listening), port)
        arguments += ["--listen", LOOPBACK, "--port", str(port)]
    if arguments[0] == "--":
        return run_command(arguments[1:])
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    sys.argv = arguments
    sys.path[0] = os.path.dirname(arguments[0])  # where Python itself would look first
    runpy.run_path(arguments[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
