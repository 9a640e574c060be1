"""Computations in a process of their own."""

from __future__ import annotations

import threading
import time
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
