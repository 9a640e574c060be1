"""Capture of a computation as a CUDA graph, after which torch is as before, also where it fails.

`torch.cuda.graph` restores neither the stream nor the allocator where the end of a capture raises: its pool stays open
for allocations, and tensors that another stream has used are never freed again. Here each step is undone by itself
(torch's `aten/src/ATen/cuda/CUDAGraph.cpp` says what there is to undo). What cannot be undone is a lost device.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

import torch

from darkroom.engine.errors import DeviceLost
from darkroom.engine.tuning.capture_rules import capture_rules

NUM_WARM_UPS = 1  # before the run under the rules: in the first calls kernels are chosen and workspaces allocated

log = logging.getLogger(__name__)

Work = Callable[[], torch.Tensor]


class Recording(NamedTuple):
    """A computation that can be repeated: `replay` overwrites `out`.

    `num_bytes` are held for it, `read` is the memory on the device that it reads and has not made.
    """

    out: torch.Tensor
    replay: Callable[[], None]
    num_bytes: int
    read: tuple[torch.Tensor, ...] = ()


class Recorder(Protocol):
    """Recorder of computations; `GraphRecorder`, or a test's."""

    def record(self, work: Work) -> tuple[Any, ...]:
        """Return the fields of a `Recording`, the last of which may be missing.

        Raises `CaptureRefused` and `CaptureFailed`, after which all is as before, and `DeviceLost`.
        """
        ...

    def wait(self) -> None:
        """Wait until the device has done all that was replayed. For before recordings are forgotten."""
        ...


class CaptureFailed(RuntimeError):
    """A capture that failed although the rules allowed its work. The device is as before."""


class NotNow(RuntimeError):
    """The work cannot be recorded in this moment, but may be later."""


class Graph(Protocol):
    """Members of `torch.cuda.CUDAGraph` that a capture uses."""

    def capture_begin(self, pool: Any, capture_error_mode: str) -> None: ...

    def capture_end(self) -> None: ...

    def replay(self) -> None: ...

    def reset(self) -> None: ...


class GraphDevice(Protocol):
    """Calls of torch for one CUDA device, as a capture uses them."""

    def current_stream(self) -> Any: ...

    def default_stream(self) -> Any: ...

    def new_stream(self) -> Any: ...

    def set_stream(self, stream: Any) -> None:
        """Make this thread compute on the stream."""
        ...

    def wait_stream(self, waiting: Any, other: Any) -> None:
        """Make a stream wait for all that was launched on the other one."""
        ...

    def is_capturing(self) -> bool:
        """Return True while the current stream captures."""
        ...

    def synchronize(self) -> None: ...

    def empty_cache(self) -> None: ...

    def reserved_bytes(self) -> int:
        """Return the bytes that torch's allocator holds."""
        ...

    def new_graph(self) -> Graph: ...

    def new_pool(self) -> Any:
        """Return the identifier of a memory pool for graphs."""
        ...

    def end_allocating(self, pool: Any) -> None:
        """End allocations in the pool. Raises RuntimeError where none are underway."""
        ...

    def release_pool(self, pool: Any) -> None:
        """Undo one use of the pool."""
        ...

    @property
    def generator(self) -> Any:
        """The device's own generator of random numbers."""
        ...

    def draw(self) -> None:
        """Draw a random number of the device's own generator."""
        ...


class GraphRecorder:
    """Recorder of CUDA graphs, which share a stream to be captured on, and a memory pool while any of them is there.

    Work is captured only after the same work has passed the rules of captures in a run of its own. A pool without
    graphs is not used again: torch refuses one as long as a tensor in it lives.
    """

    def __init__(self, device: GraphDevice) -> None:
        self._device = device
        self._pool: Any = None
        self._stream: Any = None
        self._graphs: WeakSet[Graph] = WeakSet()  # in the pool
        self._failed: list[Graph] = []  # torch's allocators may still ask a graph that failed about its stream

    def record(self, work: Work) -> Recording:
        """Return a CUDA graph of the work. Raises as `Recorder.record` does, and what the work itself raises."""
        device = self._device
        stream = device.current_stream()
        if stream != device.default_stream():
            raise NotNow("another run computes on the device meanwhile")
        if self._stream is None:
            self._stream = device.new_stream()
        if not self._graphs:
            self._pool = device.new_pool()
        random_state = device.generator.get_state()
        try:
            read = self._warm_up(stream, work)
        finally:
            device.generator.set_state(random_state)
        device.synchronize()
        device.empty_cache()  # of what the warm-up took on its stream, which a graph's pool cannot use
        before_bytes = device.reserved_bytes()
        graph, out = self._captured(stream, work)
        return Recording(out, graph.replay, max(0, device.reserved_bytes() - before_bytes), read)

    def wait(self) -> None:
        """Wait as `Recorder.wait` does.

        Torch unmaps the memory of growing segments once the stream is done that it was allocated on, which is the one
        of captures. Graphs are replayed on another.
        """
        self._device.synchronize()

    def _warm_up(self, stream: Any, work: Work) -> tuple[torch.Tensor, ...]:
        """Run the work on the stream of captures, at last under their rules; return the memory that it reads."""
        device = self._device
        device.wait_stream(self._stream, stream)
        device.set_stream(self._stream)
        try:
            for _ in range(NUM_WARM_UPS):
                work()
            with capture_rules() as rules:
                work()
        finally:
            device.set_stream(stream)
            device.wait_stream(stream, self._stream)
        return rules.read

    def _captured(self, stream: Any, work: Work) -> tuple[Graph, torch.Tensor]:
        """Return the graph and its result; raise with all as before, or `DeviceLost`."""
        device = self._device
        graph, spare = device.new_graph(), device.generator.clone_state()
        device.set_stream(self._stream)
        try:
            out, own, failure = self._try_to_capture(graph, work)
            is_stuck = failure is not None and self._is_stuck()
        finally:
            device.set_stream(stream)
        if own is None and failure is None:
            assert out is not None, "a capture that did not fail has a result"
            self._graphs.add(graph)
            return graph, out
        self._undo(graph, spare, has_failed=failure is not None, is_stuck=is_stuck)
        if failure is not None:
            raise CaptureFailed(first_line(own if own is not None else failure)) from failure
        assert own is not None
        if isinstance(own, RuntimeError) and not isinstance(own, torch.OutOfMemoryError):  # which ended in order
            raise CaptureFailed(first_line(own)) from own
        raise own  # none of the capture's: the device is full, or a run is cancelled

    def _try_to_capture(
        self, graph: Graph, work: Work
    ) -> tuple[torch.Tensor | None, BaseException | None, RuntimeError | None]:
        """Return the result, the error of the work, and that of the capture's begin or end."""
        out: torch.Tensor | None = None
        own: BaseException | None = None
        try:
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")  # other threads copy weights
        except RuntimeError as error:
            return None, None, error
        try:
            out = work()
        except BaseException as error:  # noqa: BLE001 - the capture is ended before it is raised
            own = error
        try:
            graph.capture_end()
        except RuntimeError as error:
            return None, own, error
        return out, own, None

    def _is_stuck(self) -> bool:
        try:
            return self._device.is_capturing()
        except RuntimeError as error:
            log.warning("CUDA graph not captured: the stream does not answer: reason=%s", first_line(error))
            return True

    def _undo(self, graph: Graph, spare: Any, *, has_failed: bool, is_stuck: bool) -> None:
        """Give back what a capture took, each by itself; raise `DeviceLost` where the device is not as before."""
        device = self._device
        if has_failed:
            self._failed.append(graph)
            if self._ended_late():
                self._attempt("the pool is released", lambda: device.release_pool(self._pool))
        self._attempt("the graph is reset", graph.reset)
        self._attempt("the generator is restored", lambda: device.generator.graphsafe_set_state(spare))
        if is_stuck:
            raise DeviceLost("CUDA graph: the stream captures after the end of its capture")
        self._check_soundness()

    def _ended_late(self) -> bool:
        """Return True where the capture's end has left the pool open for allocations, which is over now."""
        try:
            self._device.end_allocating(self._pool)
        except RuntimeError:  # the capture's end had done it
            return False
        return True

    def _attempt(self, what: str, step: Callable[[], None]) -> None:
        """Make a step of what undoes a capture; the check that follows the last one tells whether it was needed."""
        try:
            step()
        except RuntimeError as error:
            log.warning("CUDA graph not undone: step=%s reason=%s", what, first_line(error))

    def _check_soundness(self) -> None:
        """Raise `DeviceLost` where a failed capture has left torch unable to free memory or to draw numbers."""
        device = self._device
        try:
            device.synchronize()
            device.empty_cache()
            state = device.generator.get_state()
            device.draw()
            device.generator.set_state(state)
        except RuntimeError as error:
            raise DeviceLost(f"CUDA graph: the device is not as before a capture that failed; {error}") from error


def first_line(error: BaseException) -> str:
    """Return an error's type and the first line of its text."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
