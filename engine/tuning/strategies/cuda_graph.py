"""CUDA graph of a network's evaluation: its thousand kernels are launched as one.

Inputs are copied into static buffers. There is one graph per shape of the inputs and place of the weights, the least
recently used ones are released first. Weights may be patched between runs: a graph reads them where they are.
"CUDA Graphs", https://developer.nvidia.com/blog/cuda-graphs/.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from engine.architectures.attention import KERNEL_OPTION
from engine.diffusion.options import RECORDING_STEP
from engine.tuning.quality import Quality
from engine.tuning.strategy import (
    NETWORK_OPTIONS,
    PROMPTS_OF_ROWS,
    MachineFacts,
    SamplingUse,
    Strategy,
    Undo,
    custom_code,
    has_own_forward,
    offloaded,
    replace_forwards,
)

MAX_GRAPHS = 8
MEMORY_SHARE = 0.15  # of the memory that is free when a graph is captured
NUM_WARM_UPS = 2  # libraries choose kernels and allocate workspaces in the first calls, which a graph may not

# Options that differ from call to call and change nothing within a network.
HARMLESS_OPTIONS = frozenset({
    "uuids", "cond_or_uncond", "sigmas", "sample_sigmas", "wrappers", "callbacks", "easycache", "original_shape",
    "transformer_index", "block", "block_index", "activations_shape", "total_blocks", "block_type", KERNEL_OPTION,
    PROMPTS_OF_ROWS,
    *NETWORK_OPTIONS,
})  # fmt: skip

log = logging.getLogger(__name__)

Inputs = dict[str, torch.Tensor]


class Recorder(Protocol):
    """Recorder of a computation; `CudaRecorder`, or a test's."""

    def record(self, work: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Callable[[], None], int]:
        """Return the result's buffer, a function that computes into it anew, and the bytes that are held for it."""
        ...


class CudaRecorder:
    """Recorder of CUDA graphs, which share one memory pool."""

    def __init__(self) -> None:
        self._pool: Any = None

    def record(self, work: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Callable[[], None], int]:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(NUM_WARM_UPS):
                work()
        torch.cuda.current_stream().wait_stream(side)
        before = torch.cuda.memory_reserved()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):  # others copy weights
            out = work()
        return out, graph.replay, max(0, torch.cuda.memory_reserved() - before)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One graph: `inputs` are its static buffers, `out` is overwritten by each replay."""

    inputs: Inputs
    out: torch.Tensor
    replay: Callable[[], None]
    num_bytes: int


class Graphs:
    """Recorded graphs of all networks, least recently used first."""

    def __init__(self, recorder: Recorder, max_graphs: int = MAX_GRAPHS) -> None:
        self._recorder = recorder
        self._max_graphs = max_graphs
        self._graphs: OrderedDict[Hashable, Recorded] = OrderedDict()
        self._failed: dict[Hashable, str] = {}
        self._of_runs: dict[object, list[Hashable]] = {}

    def __len__(self) -> int:
        return len(self._graphs)

    def run(
        self, key: Hashable, inputs: Inputs, work: Callable[[Inputs], torch.Tensor], most_bytes: float,
        of_run: object = None,
    ) -> torch.Tensor | None:  # fmt: skip
        """Return the result of `work` for the inputs by its graph; None where there can be none.

        `of_run` stands for the tensors of a run that the graph reads: `forget_run` is called before they are gone.
        """
        if key in self._failed:
            return None
        found = self._graphs.get(key)
        if found is None:
            found = self._record(key, inputs, work, most_bytes)
            if of_run is not None:
                self._of_runs.setdefault(of_run, []).append(key)
            if found is None:
                return None
        else:
            self._graphs.move_to_end(key)
        for name, value in inputs.items():
            found.inputs[name].copy_(value)
        found.replay()
        return found.out.clone()

    def release(self) -> None:
        """Forget all graphs and the memory that they hold."""
        self._graphs.clear()
        self._failed.clear()
        self._of_runs.clear()

    def forget_run(self, of_run: object) -> None:
        """Forget the graphs that read tensors of this run."""
        for key in self._of_runs.pop(of_run, ()):
            self._graphs.pop(key, None)
            self._failed.pop(key, None)

    def _record(
        self, key: Hashable, inputs: Inputs, work: Callable[[Inputs], torch.Tensor], most_bytes: float
    ) -> Recorded | None:
        buffers = {name: value.clone() for name, value in inputs.items()}
        try:
            out, replay, num_bytes = self._recorder.record(lambda: work(buffers))
        except RuntimeError as error:  # also out of memory: what cannot be captured is computed as it is
            self._give_up(key, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
            return None
        held = num_bytes + sum(graph.num_bytes for graph in self._graphs.values())
        while self._graphs and (len(self._graphs) >= self._max_graphs or held > most_bytes):
            held -= self._graphs.popitem(last=False)[1].num_bytes
        if held > most_bytes:
            self._give_up(key, f"it holds {held} bytes, more than {most_bytes:.0f}")
            return None
        found = self._graphs[key] = Recorded(buffers, out, replay, num_bytes)
        return found

    def _give_up(self, key: Hashable, reason: str) -> None:
        self._failed[key] = reason
        log.warning("network not captured as a CUDA graph: reason=%s", reason)


class CudaGraph(Strategy):
    """CUDA graph of the network's evaluation."""

    name = "cuda_graph"
    quality = Quality.EXACT
    about = "the network's kernels are launched as one CUDA graph"
    conflicts = frozenset({"prompt_cache"})

    def __init__(self, graphs: Graphs | None = None) -> None:
        self.graphs = Graphs(CudaRecorder()) if graphs is None else graphs

    def release(self) -> None:
        self.graphs.release()

    def missing(self, machine: MachineFacts) -> str | None:
        return None if machine.device_type == "cuda" else "needs a CUDA device"

    def unfit(self, use: SamplingUse) -> str | None:
        found = custom_code(use) or offloaded(use)
        if found is None and has_own_forward(use.network):
            return "nodes have replaced parts of the network"
        return found

    def apply(self, use: SamplingUse) -> Undo:
        network, most_bytes = use.network, use.patcher.free_bytes() * MEMORY_SHARE
        plain = type(network).forward
        places, evaluation = place_of_weights(network), use.evaluation

        def forward(
            x: torch.Tensor,
            timesteps: torch.Tensor,
            context: torch.Tensor | None = None,
            y: torch.Tensor | None = None,
            control: object = None,
            transformer_options: Mapping[str, object] | None = None,
            **kwargs: object,
        ) -> torch.Tensor:
            options = {} if transformer_options is None else transformer_options
            given: dict[str, object] = {"x": x, "timesteps": timesteps, "context": context, "y": y, **kwargs}
            tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
            fixed = {name: value for name, value in given.items() if name not in tensors}

            def work(inputs: Inputs) -> torch.Tensor:
                merged = {**fixed, **inputs}
                first, second = merged.pop("x"), merged.pop("timesteps")
                out: torch.Tensor = plain(network, first, second, transformer_options=dict(options), **merged)
                return out

            is_plain = control is None and not options.get(RECORDING_STEP)  # a step's graph has this evaluation inside
            key = None if not is_plain else graph_key(tensors, fixed, options)
            found = None
            if key is not None:
                whole = (places, evaluation.kind, key)
                found = self.graphs.run(whole, tensors, work, most_bytes, evaluation.own_tensors)
            if found is None:
                found = plain(network, x, timesteps, context, y, control, options, **kwargs)
            result: torch.Tensor = found
            return result

        restore = replace_forwards([(network, forward)])

        def undo() -> None:
            restore()
            self.graphs.forget_run(evaluation.own_tensors)

        return undo


def place_of_weights(module: nn.Module) -> int:
    """Return what tells the places of a module's weights and buffers in memory from others."""
    return hash(tuple(tensor.data_ptr() for tensor in (*module.parameters(), *module.buffers())))


def graph_key(tensors: Inputs, fixed: Mapping[str, object], options: Mapping[str, object]) -> Hashable | None:
    """Return a key of calls that one graph serves; None for a call that reaches beyond its tensors."""
    if any(options.get(name) for name in NETWORK_OPTIONS):
        return None
    others = {**{name: value for name, value in options.items() if name not in HARMLESS_OPTIONS}, **fixed}
    if any(not isinstance(value, (int, float, str, bool, type(None))) for value in others.values()):
        return None
    shapes = tuple((name, tuple(value.shape), value.stride(), value.dtype) for name, value in sorted(tensors.items()))
    return shapes, tuple(sorted((name, str(value)) for name, value in others.items()))
