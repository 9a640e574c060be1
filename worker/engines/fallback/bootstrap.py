"""Start of a ComfyUI that does not outlive the worker: `python bootstrap.py SCRIPT …`, or `… -- COMMAND …`.

`--liveness-fd N` among the arguments names the read end of a pipe whose other end the worker holds: it is removed, and
when the pipe closes the process is killed. SIGUSR1 prints the stacks of all threads. With a SCRIPT that is run by this
interpreter, which may be any that ComfyUI runs on, so this file is standard library alone and imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import runpy
import signal
import subprocess
import sys
import threading

FLAG = "--liveness-fd"


def take_liveness(arguments: list[str]) -> int | None:
    """Remove the flag of the pipe from the arguments and return its number, None without one."""
    if FLAG not in arguments:
        return None
    position = arguments.index(FLAG)
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


def run_command(command: list[str]) -> int:
    """Run a program of any kind, pass SIGTERM and SIGINT on to it, and return its exit code."""
    child = subprocess.Popen(command)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: child.send_signal(received))
    return child.wait()


def main() -> int:
    arguments = sys.argv[1:]
    pipe = take_liveness(arguments)
    if pipe is not None:
        die_with(pipe)
    if arguments[0] == "--":
        return run_command(arguments[1:])
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    sys.argv = arguments
    sys.path[0] = os.path.dirname(arguments[0])  # where Python itself would look first
    runpy.run_path(arguments[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
