"""Work that a prompt asks for, read from its graph: steps, sizes, evaluations and models of its samplers. Pure.

Front and gateway read prompts by this module, before an engine has them. What a class means it declares itself
(`facts.py`); of a class that declares nothing the names of its inputs are read, as ComfyUI's nodes and most packs' give
them. Sizes are followed through the links of images, latents and audio (`output_sizes.py`), numbers through primitive
nodes and reroutes (`prompt_graph.py`), models from the sampler to the node that loads the file. Every node is visited
once, without recursion, and no prompt makes this raise.

Values that only a run can determine (the size of an uploaded image, a number that a node computes) are unknown: limits
do not hold for them, and a cost (`cost.py`) takes the family's default in their place.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from darkroom.contract.errors import PromptRejected
from darkroom.contract.graph.loops import MAX_ITERATIONS, NO_LOOPS, FoundLoops, find_loops, iterations_of
from darkroom.contract.graph.output_sizes import SAMPLED_INPUTS, SIZED, OutputSizes, Size
from darkroom.contract.graph.prompt import is_link, parse_prompt
from darkroom.contract.graph.prompt_graph import MOST, JsonObject, ModelFile, PromptGraph
from darkroom.contract.unit import UNIT_PASSES

DEFAULT_CFG: Final = 7.0
RATE_INPUTS: Final = ("fps", "frame_rate", "frames_per_second")

MODEL_SOURCES: Final = ("model", "guider", "model1", "base_model", "pipe", "basic_pipe")
"""Names of inputs that pass a model through a node, the likeliest first."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """A node that samples, and its steps, None where they are unknown. `field` is the input that sets them."""

    node_id: str
    field: str
    steps: float | None
    size: Size


@dataclass(frozen=True, slots=True)
class VideoLength:
    """The seconds of a video that one node makes of frames. `field` of `node_id` is the input to change."""

    node_id: str
    field: str
    seconds: float


class PromptWork:
    """Sizes, steps and models of a prompt, each read once: a request makes one, and hands it on to all that ask.

    Without `object_info` the classes count as ComfyUI's own do, and those of node packs are read by names alone.
    """

    def __init__(self, prompt: JsonObject, object_info: JsonObject | None = None) -> None:
        self.graph = PromptGraph(prompt, object_info)
        self._sizes = OutputSizes(self.graph)
        self._sigma_steps: dict[tuple[str, Any], float | None] = {}  # by node and output
        self._models: dict[str, ModelFile | None] = {}  # by node that takes a model or passes one on
        self._known_models: frozenset[ModelFile] = frozenset()  # those that `_models` prefers

    @cached_property
    def sizes(self) -> Mapping[str, Size]:
        """The size of every node's output, in the prompt's order."""
        return {node_id: self.size_of(node_id) for node_id in self.graph.node_ids}

    def size_of(self, node_id: str) -> Size:
        """Return the size of a node's output."""
        return self._sizes.of(node_id)

    @cached_property
    def samplings(self) -> tuple[Sampling, ...]:
        """The nodes that sample, in the prompt's order: they return an image or latent, and take steps or sigmas."""
        found = (self._sampling(node_id) for node_id in self.graph.node_ids)
        return tuple(item for item in found if item is not None)

    @property
    def pixel_steps(self) -> int:
        """Sum of pixels times steps over all runs of nodes that sample, without those of unknown steps."""
        return math.ceil(sum(item.size.sampled_pixels * (self.all_steps_of(item) or 0.0) for item in self.samplings))

    @cached_property
    def _loops(self) -> FoundLoops:
        if not self.graph.has_loops:
            return NO_LOOPS
        try:
            nodes = parse_prompt(self.graph.followed)
        except PromptRejected:
            return NO_LOOPS
        return find_loops(nodes, lambda class_type: self.graph.facts.of(class_type).loop)

    def times_of(self, node_id: str) -> float:
        """Return how often a node runs: once, or once in each iteration of the loops around it where they are known."""
        return min(self._loops.times(node_id, self._iterations_of), MOST)

    def all_steps_of(self, sampling: Sampling) -> float | None:
        """Return the steps of a node that samples in all of its runs; None where they are unknown."""
        return None if sampling.steps is None else sampling.steps * self.times_of(sampling.node_id)

    def _iterations_of(self, start: str) -> float:
        number = iterations_of(self.graph.inputs(start), self.graph.number)
        return 1.0 if number is None else min(max(number, 1.0), MAX_ITERATIONS)

    def video_lengths(self) -> Iterator[VideoLength]:
        """Yield the length of the video of every node that takes images and a frame rate."""
        for node_id in self.graph.node_ids:
            inputs = self.graph.inputs(node_id)
            field = next((name for name in RATE_INPUTS if name in inputs), None)
            rate = self.graph.number(inputs[field]) if field is not None else None
            taken = [self.size_of(source) for source in self._sizes.sources(node_id)]
            if field is None or not rate or rate < 0 or not taken:
                continue
            longest = max(taken, key=lambda size: size.all_frames)
            slot = longest.frames_from or (node_id, field)
            yield VideoLength(*slot, longest.all_frames / rate)

    # steps

    def _sampling(self, node_id: str) -> Sampling | None:
        inputs, facts = self.graph.inputs(node_id), self.graph.facts_of(node_id)
        sigmas = inputs.get("sigmas")
        if "steps" not in inputs and self.graph.linked(sigmas) is None:
            return None
        if not facts.evaluates or not self.graph.gives(node_id, SIZED):
            return None
        takes_latent = "latent_image" in inputs or any(is_link(inputs.get(name)) for name in SAMPLED_INPUTS)
        if self.graph.types_of(node_id) is None and not takes_latent:
            return None  # a scheduler, as far as its inputs tell
        field = "steps" if "steps" in inputs else "sigmas"
        steps = self._own_steps(inputs) if field == "steps" else self._steps_of_sigmas(sigmas)
        return Sampling(node_id, field, steps, self.size_of(node_id))

    def _own_steps(self, inputs: JsonObject) -> float | None:
        steps = self.graph.number(inputs["steps"])
        if steps is None:
            return None
        begin = self.graph.number(inputs.get("start_at_step")) or 0.0
        end = self.graph.number(inputs.get("end_at_step"))
        return max(0.0, min(steps, steps if end is None else end) - max(0.0, begin))

    def _steps_of_sigmas(self, link: Any) -> float | None:
        """Return the steps of the scheduler at the end of a chain of nodes that take and return sigmas."""
        passed: dict[tuple[str, Any], tuple[float, float]] = {}  # with the steps that each leaves out and lets through
        steps: float | None = None
        while (node_id := self.graph.linked(link)) is not None:
            slot = (node_id, str(link[1]))
            if slot in self._sigma_steps or slot in passed:
                steps = self._sigma_steps.get(slot)
                break
            inputs = self.graph.inputs(node_id)
            passed[slot] = self._part_of_sigmas(node_id, inputs, link[1])
            if "steps" in inputs:
                steps = self._own_steps(inputs)
                break
            link = inputs.get("sigmas")
            if isinstance(link, str):  # literal
                steps = float(link.count(","))
                break
        for slot, (left_out, most) in reversed(passed.items()):
            steps = None if steps is None else max(0.0, min(steps - left_out, most))
            self._sigma_steps[slot] = steps
        return steps

    def _part_of_sigmas(self, node_id: str, inputs: JsonObject, slot: object) -> tuple[float, float]:
        """Return the steps before the part of the sigmas that an output has, and the most that are in it."""
        field = self.graph.facts_of(node_id).first_steps
        first = self.graph.number(inputs.get(field)) if field else None
        if first is None:
            return 0.0, math.inf
        return (0.0, max(0.0, first)) if slot == 0 else (max(0.0, first), math.inf)

    # models

    def model_of(self, node_id: str, known: Collection[ModelFile]) -> ModelFile | None:
        """Return the file that a node's model comes from, through any nodes that change the model or choose one.

        Of several, one of the `known` comes first. Calls with the same ones for every node visit each node once.
        """
        if self._known_models != (given := frozenset(known)):
            self._known_models, self._models = given, {}
        own = self.graph.loaded_by(node_id)
        return _best([own, *(self._passed_model(source, known) for source in self._model_sources(node_id))], known)

    def _model_sources(self, node_id: str) -> list[str]:
        """Return the node before, by the input that has the model."""
        inputs = self.graph.inputs(node_id)
        return [source for name in MODEL_SOURCES if (source := self.graph.linked(inputs.get(name))) is not None][:1]

    def _passed_model(self, node_id: str, known: Collection[ModelFile]) -> ModelFile | None:
        """Return the file of the model that a node loads or passes on. Each node is visited once for all samplers."""
        waiting, seen = [node_id], {node_id}
        while waiting:
            current = waiting[-1]
            if current in self._models:
                waiting.pop()
                continue
            own = self.graph.loaded_by(current)
            sources = [] if own is not None else self._model_sources(current)
            if own is None and not sources:  # a switch, for instance, whose inputs have names of their own
                sources = list(self.graph.sources(current))
            new = [node for node in dict.fromkeys(sources) if node not in seen and node not in self._models]
            if new:
                seen.update(new)
                waiting.extend(reversed(new))
                continue
            self._models[current] = _best([own, *(self._models.get(node) for node in sources)], known)
            waiting.pop()
        return self._models[node_id]

    # evaluations

    def evaluations_of(self, node_id: str) -> tuple[int | None, str]:
        """Return the evaluations of the network a step, None where they are unknown, and the name of the sampler."""
        inputs, facts = self.graph.inputs(node_id), self.graph.facts_of(node_id)
        chosen = self.graph.linked(inputs.get("sampler"))
        if chosen is not None:
            inputs, facts = self.graph.inputs(chosen), self.graph.facts_of(chosen)
        name = facts.sampler or inputs.get(facts.sampler_input or "sampler_name")
        if not isinstance(name, str):
            return None, self.graph.class_of(chosen or node_id)
        declared = facts.samplers.get(name) or self.graph.facts.sampler(name)
        return None if declared is None else declared.evaluations_per_step, name

    def passes_of(self, node_id: str) -> int:
        """Return the passes of the network for each of its evaluations: one for each condition."""
        inputs = self.graph.inputs(node_id)
        guider = self.graph.linked(inputs.get("guider"))
        declared = self.graph.facts_of(guider).passes
        if declared is not None:
            return declared
        cfg = self.graph.number((inputs if guider is None else self.graph.inputs(guider)).get("cfg"))
        return 1 if math.isclose(DEFAULT_CFG if cfg is None else cfg, 1.0) else UNIT_PASSES


def _best(files: Iterable[ModelFile | None], known: Collection[ModelFile]) -> ModelFile | None:
    """Return the first file that is known, else the first one."""
    found = [file for file in files if file is not None]
    return next((file for file in found if file in known), next(iter(found), None))
