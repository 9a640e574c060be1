"""Trial import of a pack in a separate process, before the engine imports it itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from darkroom.host.processor import process_seconds
from darkroom.start import command_of

TRIAL_SECONDS = 60.0
BUSY_FACTOR = 5.0  # times the limit that an import may take which computes, but does not get a processor for itself
IDLE_SECONDS = 15.0  # without computing, beyond the limit: it waits for something that does not come
IDLE_SHARE = 0.02  # of a processor
POLL_SECONDS = 0.05
RUN_SECONDS = 240.0  # for all nodes of a pack
TAIL_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class TrialResult:
    """Outcome of a trial.

    `error` is None on success. `missing_package` names a Python package that the pack requires. `failed_nodes` are
    those that cannot be offered, or asked for what is not there when they ran; `tried` are those that ran, `untried`
    those for which no input could be made up, each with the reason.
    """

    error: str | None
    nodes: Sequence[str] = ()
    missing: Sequence[str] = ()
    missing_package: str | None = None
    seconds: float = 0.0
    details: str = field(default="", repr=False)
    failed_nodes: Mapping[str, str] = field(default_factory=dict)
    tried: Sequence[str] = ()
    untried: Mapping[str, str] = field(default_factory=dict)


def try_pack(
    pack: Path, base_directory: Path, seconds: float = TRIAL_SECONDS, *, runs_nodes: bool = False
) -> TrialResult:
    """Import a pack in a child process. A child that dies or exceeds the time limit is an error like any other.

    The limit is one of computing; on a busy machine `BUSY_FACTOR` times as much may pass. What the child started ends
    with it. With `runs_nodes` each of its nodes is run once, with made-up inputs; that may take `RUN_SECONDS` more.
    """
    with tempfile.TemporaryDirectory() as folder:
        report, output = Path(folder, "report.json"), Path(folder, "output.txt")
        command = [*command_of("darkroom.engine"), "nodes", "trial", str(pack), str(report)]
        with output.open("wb") as sink:
            child = subprocess.Popen(
                [*command, "--base-directory", str(base_directory), *(["--run-nodes"] if runs_nodes else [])],
                stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True,
            )  # fmt: skip
            code = wait_or_end(child, seconds + (RUN_SECONDS if runs_nodes else 0.0))
            if code == -signal.SIGKILL and not report.is_file():
                return TrialResult(f"its import takes longer than {seconds:g} s", details=_tail(output))
        if not report.is_file():
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            return TrialResult(f"its import ends the process ({how})", details=_tail(output))
        data: dict[str, Any] = json.loads(report.read_text("utf-8"))
        return TrialResult(**data, details=_tail(output))


def wait_or_end(child: subprocess.Popen[bytes], seconds: float) -> int:
    """Return the exit code of a child that leads a session; end the whole session once the child takes too long.

    Too long is `seconds` of computing, `BUSY_FACTOR` times that by the clock, or `seconds` by the clock of which it has
    spent the last `IDLE_SECONDS` waiting.
    """
    began = noted = time.monotonic()
    noted_cpu = 0.0
    while child.poll() is None:
        time.sleep(POLL_SECONDS)
        now, used = time.monotonic(), process_seconds(child.pid) or 0.0
        if used - noted_cpu > IDLE_SHARE * (now - noted):
            noted, noted_cpu = now, used
        is_idle = now - began > seconds and now - noted > min(IDLE_SECONDS, seconds)
        if used > seconds or is_idle or now - began > BUSY_FACTOR * seconds:
            break
    end_session(child.pid)
    return child.wait()


def end_session(pid: int) -> None:
    """Kill every process of the group that a child leads."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _tail(output: Path) -> str:
    return output.read_text("utf-8", errors="replace")[-TAIL_CHARACTERS:]
