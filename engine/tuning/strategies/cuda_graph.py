"""CUDA graph of a network's evaluation: its thousand kernels are launched as one.

Inputs are copied into static buffers. There is one graph per shape of the inputs and addresses of the weights, the
least recently used ones are released first. Weights may be patched between runs: a graph reads them where they are.
"CUDA Graphs", https://developer.nvidia.com/blog/cuda-graphs/.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from darkroom.engine.diffusion.options import RECORDING_STEP
from darkroom.engine.tuning.capture import Graph, GraphRecorder
from darkroom.engine.tuning.graphs import (
    HARMLESS_OPTIONS,
    MEMORY_SHARE,
    Graphs,
    Inputs,
    PlacedWeights,
    graph_key,
    joined,
    parted,
    place_of_weights,
    schedule_read,
    unfixable_weights,
)
from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.strategy import (
    MachineFacts,
    SamplingUse,
    Strategy,
    Undo,
    custom_code,
    has_own_forward,
    offloaded,
    replace_forwards,
)

__all__ = [
    "HARMLESS_OPTIONS",
    "CudaGraph",
    "CudaRecorder",
    "Graphs",
    "graph_key",
    "missing_for_graphs",
    "place_of_weights",
]

POOL_CALLS = ("_cuda_endAllocateToPool", "_cuda_releasePool")  # without which a failed capture cannot be undone


class CudaDevice:
    """Calls of `torch.cuda` for the current device; implementation of `darkroom.engine.tuning.capture.GraphDevice`."""

    def current_stream(self) -> Any:
        return torch.cuda.current_stream()

    def default_stream(self) -> Any:
        return torch.cuda.default_stream()

    def new_stream(self) -> Any:
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        return stream

    def set_stream(self, stream: Any) -> None:
        torch.cuda.set_stream(stream)

    def wait_stream(self, waiting: Any, other: Any) -> None:
        waiting.wait_stream(other)

    def is_capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def empty_cache(self) -> None:
        torch.cuda.empty_cache()

    def reserved_bytes(self) -> int:
        return torch.cuda.memory_reserved()

    def new_graph(self) -> Graph:
        return torch.cuda.CUDAGraph()

    def new_pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def end_allocating(self, pool: Any) -> None:
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)

    def release_pool(self, pool: Any) -> None:
        torch._C._cuda_releasePool(torch.cuda.current_device(), pool)

    @property
    def generator(self) -> Any:
        return torch.cuda.default_generators[torch.cuda.current_device()]

    def draw(self) -> None:
        torch.empty(1, device="cuda").normal_()


class CudaRecorder(GraphRecorder):
    """Recorder of CUDA graphs of the current device."""

    def __init__(self) -> None:
        super().__init__(CudaDevice())


def missing_for_graphs(machine: MachineFacts) -> str | None:
    """Return the thing that a machine lacks for CUDA graphs, or None."""
    if machine.device_type != "cuda":
        return "needs a CUDA device"
    lacking = next((name for name in POOL_CALLS if not hasattr(torch._C, name)), None)
    return None if lacking is None else f"needs a version of torch with {lacking}"


class GraphStrategy(Strategy):
    """Base of the strategies that replay graphs. `graphs` may be shared by several of them."""

    def __init__(self, graphs: Graphs | None = None) -> None:
        self.graphs = Graphs(CudaRecorder()) if graphs is None else graphs

    def release(self) -> bool:
        return self.graphs.release()

    def missing(self, machine: MachineFacts) -> str | None:
        return missing_for_graphs(machine)


class CudaGraph(GraphStrategy):
    """CUDA graph of the network's evaluation."""

    name = "cuda_graph"
    quality = Quality.EXACT
    about = "the network's kernels are launched as one CUDA graph"
    conflicts = frozenset({"prompt_cache"})

    def unfit(self, use: SamplingUse) -> str | None:
        found = (
            self.graphs.obstacle or custom_code(use) or offloaded(use) or unfixable_weights(use) or schedule_read(use)
        )
        if found is None and has_own_forward(use.network):
            return "nodes have replaced parts of the network"
        return found

    def apply(self, use: SamplingUse) -> Undo:
        network, most_bytes = use.network, use.patcher.free_bytes() * MEMORY_SHARE
        plain = type(network).forward
        weights, evaluation = PlacedWeights(use, network), use.evaluation

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
            tensors, fixed = parted(given)

            def work(inputs: Inputs) -> torch.Tensor:
                merged = joined(inputs, fixed)
                first, second = merged.pop("x"), merged.pop("timesteps")
                out: torch.Tensor = plain(network, first, second, transformer_options=dict(options), **merged)
                return out

            is_plain = control is None and not options.get(RECORDING_STEP)  # a step's graph has this evaluation inside
            key = None if not is_plain else graph_key(tensors, fixed, options)
            found = None
            place = None if key is None else weights.place()  # they may move while the network is in use
            if place is not None:
                whole = (evaluation.kind, key)
                found = self.graphs.run(whole, tensors, work, most_bytes, evaluation.own_tensors, network, place)
            if found is None:
                found = plain(network, x, timesteps, context, y, control, options, **kwargs)
            result: torch.Tensor = found
            return result

        cast_by_buffers = use.patcher.weights.cast_directly()  # what is recorded casts no weight through a buffer
        restore = replace_forwards([(network, forward)])

        def undo() -> None:
            restore()
            cast_by_buffers()

        return undo
