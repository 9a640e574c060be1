"""Trial import of a pack in a separate process, before the engine imports it itself."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from darkroom.start import command_of

TRIAL_SECONDS = 60.0
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

    With `runs_nodes` each of its nodes is run once, with made-up inputs; that may take `RUN_SECONDS` more.
    """
    with tempfile.TemporaryDirectory() as folder:
        report, output = Path(folder, "report.json"), Path(folder, "output.txt")
        command = [*command_of("darkroom.engine"), "nodes", "trial", str(pack), str(report)]
        with output.open("wb") as sink:
            child = subprocess.Popen(
                [*command, "--base-directory", str(base_directory), *(["--run-nodes"] if runs_nodes else [])],
                stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True,
            )  # fmt: skip
            try:
                code = child.wait(seconds + (RUN_SECONDS if runs_nodes else 0.0))
            except subprocess.TimeoutExpired:
                child.kill()
                code = child.wait()
            if code == -signal.SIGKILL and not report.is_file():
                return TrialResult(f"its import takes longer than {seconds:g} s", details=_tail(output))
        if not report.is_file():
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            return TrialResult(f"its import ends the process ({how})", details=_tail(output))
        data: dict[str, Any] = json.loads(report.read_text("utf-8"))
        return TrialResult(**data, details=_tail(output))


def _tail(output: Path) -> str:
    return output.read_text("utf-8", errors="replace")[-TAIL_CHARACTERS:]
