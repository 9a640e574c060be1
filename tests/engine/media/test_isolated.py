"""Computations in a process of their own."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from darkroom.engine.cancel import CancelToken
from darkroom.engine.errors import Interrupted
from darkroom.engine.media.isolated import Bounds, isolated

LIBRARY = "tests.engine.media.foreign_library"
ROOT = Path(__file__).parents[3]
AMPLE = Bounds(60.0, 4 << 30)
BELOW_ITS_PARENTS = f"""
import resource, sys
import numpy as np
from darkroom.engine.cancel import CancelToken
from darkroom.engine.media.isolated import Bounds, isolated

resource.setrlimit(resource.RLIMIT_CPU, (100, 100))
made = isolated("{LIBRARY}:limits", {{"values": np.arange(3)}}, Bounds(600.0, 1 << 30), CancelToken())
sys.stdout.write(str(made["processor"].tolist()))
"""
NEVER_YIELDING = f"""
import sys
import numpy as np
from darkroom.engine.cancel import CancelToken
from darkroom.engine.media.isolated import Bounds, isolated

isolated("{LIBRARY}:never_yielding", {{"path": np.array(sys.argv[1])}}, Bounds(600.0, 4 << 30), CancelToken())
"""


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def call(name: str, bounds: Bounds = AMPLE, cancel: CancelToken | None = None) -> dict[str, NDArray[np.generic]]:
    return isolated(f"{LIBRARY}:{name}", {"values": np.arange(3)}, bounds, cancel or CancelToken())


def test_arrays_go_there_and_back() -> None:
    assert call("doubled")["doubled"].tolist() == [0, 2, 4]


def test_refusal_is_raised_as_it_is() -> None:
    with pytest.raises(ValueError, match="^values: got 3, expected fewer$"):
        call("refusing")


def test_endless_computation_ends_at_the_deadline() -> None:
    with pytest.raises(ValueError, match="no result within 0.5 s"):
        call("endless", Bounds(0.5, 4 << 30))


def test_memory_is_bounded() -> None:
    with pytest.raises(ValueError, match="too much memory; expected at most 1024 MiB"):
        call("greedy", Bounds(60.0, 1 << 30))


def test_failure_of_the_process_is_told_with_its_last_words() -> None:
    with pytest.raises(ValueError, match=r"(?s)exit code 1.*the driver is lost"):
        call("failing")


def test_cancelled_run_does_not_wait_for_the_process() -> None:
    token = CancelToken()
    threading.Timer(0.3, token.cancel).start()
    started = time.monotonic()
    with pytest.raises(Interrupted):
        call("endless", cancel=token)
    assert time.monotonic() - started < 30


def test_process_has_limits_of_its_own_below_those_that_it_inherits() -> None:
    seconds = 30 * (os.cpu_count() or 1)
    found = {name: pair.tolist() for name, pair in call("limits", Bounds(29.5, 1 << 30)).items()}
    assert found == {"memory": [1 << 30] * 2, "processor": [seconds] * 2, "core": [0, 0]}
    inherited = resource.getrlimit(resource.RLIMIT_CPU)
    tight = subprocess.run([sys.executable, "-c", BELOW_ITS_PARENTS], capture_output=True, text=True, check=True)
    assert tight.stdout == "[100, 100]"
    assert resource.getrlimit(resource.RLIMIT_CPU) == inherited


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal is Linux's")
def test_process_ends_with_an_engine_that_is_killed(tmp_path: Path) -> None:
    told = tmp_path / "child"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", NEVER_YIELDING, str(told)], env=environment)
    try:
        assert holds_within(60, told.exists)
        child = int(told.read_text())
        assert is_running(child)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert holds_within(60, lambda: not is_running(child))


def holds_within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def is_running(process: int) -> bool:
    """Return False for one that has ended, also where nobody has asked for its exit code."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
