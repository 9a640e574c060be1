"""CUDA graph of a whole step: the network, guidance and the sampler's arithmetic are launched as one.

Which runs have such steps, and their tensors, is decided by `engine/diffusion/whole_steps.py`. Where there are none the
log says why, and the sampler's own loop runs, with the graph of the network's evaluation if that one is chosen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable

import torch

from darkroom.engine.diffusion.options import Options
from darkroom.engine.diffusion.whole_steps import Tensors
from darkroom.engine.tuning.graphs import (
    MEMORY_SHARE,
    Graphs,
    PlacedWeights,
    graph_key,
    schedule_read,
    unfixable_weights,
)
from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.strategies.cuda_graph import GraphStrategy
from darkroom.engine.tuning.strategy import SamplingUse, Undo, custom_code, offloaded

log = logging.getLogger(__name__)


class StepGraph(GraphStrategy):
    """CUDA graph of a whole step."""

    name = "step_graph"
    quality = Quality.EXACT
    about = "the network, guidance and the sampler's arithmetic are launched as one CUDA graph"
    conflicts = frozenset({"prompt_cache"})

    def unfit(self, use: SamplingUse) -> str | None:
        found = (
            self.graphs.obstacle or custom_code(use) or offloaded(use) or unfixable_weights(use) or schedule_read(use)
        )
        if found is None and use.patcher.object_patches:
            return "nodes have replaced parts of the model"
        if found is None and not hasattr(use.denoiser, "step_runner"):
            return "the model is none of the engine's"
        return found

    def apply(self, use: SamplingUse) -> Undo:
        cast_by_buffers = use.patcher.weights.cast_directly()  # what is recorded casts no weight through a buffer
        runner = use.denoiser.__dict__["step_runner"] = _Runner(self.graphs, use)

        def undo() -> None:
            cast_by_buffers()
            runner.is_over = True  # for a run that goes on with the plain network
            use.denoiser.__dict__.pop("step_runner", None)

        return undo


class _Runner:
    """Implementation of `engine/diffusion/whole_steps.py::StepRunner` for the runs that share a network's changes."""

    def __init__(self, graphs: Graphs, use: SamplingUse) -> None:
        self._graphs = graphs
        self._use = use
        self.is_over = False
        self._most_bytes = use.patcher.free_bytes() * MEMORY_SHARE
        model = use.denoiser
        self._weights = PlacedWeights(use, model)
        self._kind = (type(model), type(getattr(model, "model_sampling", None)))

    def run(
        self, key: Hashable, tensors: Tensors, options: Options, work: Callable[[Tensors], torch.Tensor]
    ) -> torch.Tensor | None:
        inner = graph_key(tensors, {}, options)
        place = None if inner is None or self.is_over else self._weights.place()
        if place is None:
            return None
        evaluation, model = self._use.evaluation, self._use.denoiser
        whole = ("step", self._kind, evaluation.kind, key, inner)
        return self._graphs.run(whole, tensors, work, self._most_bytes, evaluation.own_tensors, model, place)

    def refuse(self, reason: str) -> None:
        log.info("steps not captured as CUDA graphs: reason=%s", reason)
