"""A stream of the device beside the computing one, on which one run's work goes on while other runs have the turn."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from contextvars import copy_context
from typing import Any, Protocol

import torch

from darkroom.engine.runtime.turns import Turns

Work = Callable[[], torch.Tensor]


class Streams(Protocol):
    """Device with streams, as `engine/memory/device.py::Device` has them. A stream of None is the computing one."""

    def new_stream(self) -> object: ...

    def on_stream(self, stream: Any) -> AbstractContextManager[object]: ...

    def mark(self, stream: Any) -> Any: ...

    def wait(self, stream: Any, mark: Any) -> None: ...

    def wait_on_host(self, mark: Any) -> None: ...


class SideStream:
    """Owner of the stream and of the thread that launches on it, one piece of work after the other.

    A thread of its own, since work may wait for the device itself, as a guard against overflow does.
    """

    def __init__(self, device: Streams) -> None:
        self._device = device
        self._stream = device.new_stream()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="side")

    def close(self) -> None:
        """End the thread. For when nothing runs."""
        self._thread.shutdown()

    def run(self, turns: Turns, work: Work) -> torch.Tensor:
        """Return the result of `work`, computed in full; raise its error. Called by the run that has the turn.

        The run gives its turn away meanwhile. `work` sees all that was launched before on the computing stream.
        """
        before = self._device.mark(None)
        future = self._thread.submit(copy_context().run, self._compute, work, before)
        with turns.elsewhere():
            wait([future])
        return future.result()

    def _compute(self, work: Work, before: object) -> torch.Tensor:
        with torch.inference_mode(), self._device.on_stream(self._stream):
            self._device.wait(self._stream, before)
            found = work()
            self._device.wait_on_host(self._device.mark(self._stream))
        return found
