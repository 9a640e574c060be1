"""`python -m darkroom.engine` as a child process on a free port, for tests that need the real thing."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
LISTENING = re.compile(r"listening on (https?://\S+)")


@dataclass
class RunningEngine:
    url: str
    process: subprocess.Popen[str]
    lines: list[str]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


COMMAND = (sys.executable, "-m", "darkroom.engine")


def start(
    base: Path,
    *flags: str,
    pass_fds: Sequence[int] = (),
    command: Sequence[str] = COMMAND,
    cwd: Path = ROOT,
    environment: Mapping[str, str] = os.environ,
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*command, "--cpu", "--port", "0", "--base-directory", str(base), *flags],
        cwd=cwd,
        env={**environment, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=pass_fds,
    )


@contextlib.contextmanager
def running_engine(base: Path, *flags: str) -> Iterator[RunningEngine]:
    """Listening when entered; not necessarily ready to run prompts."""
    with listening_engine(COMMAND, base, *flags) as engine:
        yield engine


@contextlib.contextmanager
def listening_engine(
    command: Sequence[str], base: Path, *flags: str, cwd: Path = ROOT, environment: Mapping[str, str] = os.environ
) -> Iterator[RunningEngine]:
    """The engine of a command, started in a folder with an environment."""
    process = start(base, *flags, command=command, cwd=cwd, environment=environment)
    assert process.stderr is not None
    lines: list[str] = []
    url = None
    for line in process.stderr:
        lines.append(line)
        if found := LISTENING.search(line):
            url = found[1]
            break
    assert url is not None, "".join(lines)
    reader = threading.Thread(target=lambda: lines.extend(process.stderr or ()), daemon=True)
    reader.start()
    engine = RunningEngine(url, process, lines)
    try:
        yield engine
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        reader.join(timeout=5)
        process.stderr.close()
