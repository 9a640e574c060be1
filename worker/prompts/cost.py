"""The cost of a prompt: pixels x steps x passes of its samplers, at the price of their models' families. Pure.

Attention compares every cell of a picture or a video with every other one, so that a pixel of a longer video is dearer;
each family has the share of its network's work that this is.

The unit is that of the start-up benchmark (`contract/unit.py`). A cost divided by the benchmark's costs per
second is therefore a time in seconds. A pass is one evaluation of the network for one picture: guidance makes two
passes per step, and a second-order sampler doubles them. Sizes are followed through the links of the graph, from the
sampler's latent to the node that sets its size, frames or seconds; models from the sampler to the node that loads the
file. Unknown values (the size of an uploaded picture, the inside of a custom node) count as the family's default, and a
model of an unknown family as one of the default family. A prompt without a sampler costs one unit. No prompt makes this
raise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from contract.unit import UNIT_PASSES, UNIT_PIXELS, UNIT_SIDE_PX, UNIT_STEPS, UNIT_WORKLOAD
from worker.engines.families import Family, ModelFile, latent_frames_of, loaded_by
from worker.json.values import JsonObject, object_at
from worker.settings.workload import Workload

UNIT_COST: Final = UNIT_WORKLOAD
UNIT_TFLOP: Final = 32.2  # of the sampling of the unit of work
NO_FAMILIES: Final[Mapping[ModelFile, Family]] = {}
MAX_SIDE_PX: Final = 16384
MAX_STEPS: Final = 10_000
MAX_BATCH: Final = 4096
MAX_SECONDS: Final = 10_000.0  # of a sound
MAX_LINKS: Final = 200  # a longer chain counts as unknown

GUIDERS: Final[Mapping[str, int]] = {"BasicGuider": 1, "DualCFGGuider": 3}
"""Guiders whose passes do not depend on a `cfg` input."""

EVALUATIONS_PER_STEP: Final[Mapping[str, int]] = {
    "heun": 2,
    "heunpp2": 3,
    "exp_heun_2_x0": 2,
    "exp_heun_2_x0_sde": 2,
    "dpm_2": 2,
    "dpm_2_ancestral": 2,
    "dpmpp_2s_ancestral": 2,
    "dpmpp_2s_ancestral_cfg_pp": 2,
    "dpmpp_sde": 2,
    "dpmpp_sde_gpu": 2,
    "seeds_2": 2,
    "seeds_3": 3,
}
"""Samplers with more than one evaluation of the network per step."""

SOURCES: Final = ("latent_image", "samples", "latent", "pixels", "image", "images", "samples1", "samples_to", "input")
"""Names of inputs that pass a latent or a picture through a node, the likeliest first."""

MODEL_SOURCES: Final = ("model", "guider", "model1", "base_model", "pipe", "basic_pipe")
"""Names of inputs that pass a model through a node, the likeliest first."""


@dataclass(frozen=True, slots=True)
class Area:
    """The size of a latent or a batch of pictures, in pixels.

    `seconds` are those of a sound of that size, `frames` the latent frames of a video.
    """

    width_px: float = UNIT_SIDE_PX
    height_px: float = UNIT_SIDE_PX
    batch: int = 1
    seconds: float | None = None
    frames: int = 1

    @property
    def pixels(self) -> float:
        return self.item_pixels * self.batch

    @property
    def item_pixels(self) -> float:
        """Pixels of one picture or video."""
        return self.width_px * self.height_px * self.frames

    def scaled(self, factor: float) -> Area:
        return replace(
            self, width_px=_side(self.width_px * factor), height_px=_side(self.height_px * factor), seconds=None
        )

    def of_seconds(self, seconds: float, batch: int) -> Area:
        """Return the size of sounds of so many seconds, whose latents are as long as they are."""
        share = 1.0 if not self.seconds else seconds / self.seconds
        return Area(max(1.0, self.width_px * share), self.height_px, batch, seconds)


UNIT_AREA: Final = Area()


@dataclass(frozen=True, slots=True)
class SamplerWork:
    """The work of a sampler: `num_calls` of its network, each of `tflop` (10^12 operations).

    `tflop` is None where the model's family or its work is not known. `model` is the file that the network comes from,
    empty where the prompt does not say it.
    """

    node_id: str
    num_calls: float
    tflop: float | None
    model: str = ""


def work_of(prompt: JsonObject, families: Mapping[ModelFile, Family]) -> tuple[SamplerWork, ...]:
    """Return the work of each sampler of a prompt in ComfyUI's API form. `families` are those of its model files."""
    graph = _Graph(prompt, families)
    return tuple(graph.sampler_work(node_id) for node_id in prompt if graph.is_sampler(node_id))


def cost_of(
    prompt: JsonObject,
    workload: Workload = Workload.COMPUTED,
    families: Mapping[ModelFile, Family] = NO_FAMILIES,
) -> float:
    """Return the cost of a prompt in ComfyUI's API form; more than 0. `families` are those of its model files."""
    if workload is not Workload.COMPUTED:
        return UNIT_COST if workload is Workload.STATIC else 1.0
    graph = _Graph(prompt, families)
    costs = [graph.sampler_cost(node_id) for node_id in prompt if graph.is_sampler(node_id)]
    return sum(costs) or UNIT_COST


def operations_cost(works: Sequence[SamplerWork]) -> float:
    """Return the cost of samplers by their operations alone, without the fixed time of a step."""
    return sum(work.num_calls * (work.tflop or 0.0) for work in works) / UNIT_TFLOP * UNIT_COST


class _Graph:
    """A prompt's graph with sizes, steps, passes and families of its nodes. Malformed prompts raise no error."""

    def __init__(self, prompt: JsonObject, families: Mapping[ModelFile, Family]) -> None:
        self._prompt = prompt
        self._families = families
        self._areas: dict[tuple[str, Area], Area] = {}  # by node and the size that counts where none is known
        self._sigma_steps: dict[str, float] = {}  # by node that has a schedule or passes one on
        self._models: dict[str, ModelFile | None] = {}  # by node that gets a model or passes one on

    def is_sampler(self, node_id: str) -> bool:
        """Return True for a node that takes a latent or a picture, and steps or sigmas.

        ComfyUI's samplers and most of the packs' do.
        """
        inputs = self._inputs(node_id)
        has_source = any(self._linked(inputs.get(name)) for name in ("latent_image", "samples", "latent", "image"))
        return has_source and ("steps" in inputs or self._linked(inputs.get("sigmas")) is not None)

    def sampler_cost(self, node_id: str) -> float:
        inputs, family = self._inputs(node_id), self._family(node_id)
        area = self._sampled_area(node_id, family)
        share = area.pixels / UNIT_PIXELS
        if family is not None:
            share *= family.pixel_cost * family.attention_factor(area.item_pixels)
        passes = self._guided(inputs) * self._evaluations(inputs)
        return UNIT_COST * share * (self._steps(inputs) / UNIT_STEPS) * (passes / UNIT_PASSES)

    def sampler_work(self, node_id: str) -> SamplerWork:
        inputs, family = self._inputs(node_id), self._family(node_id)
        num_calls = self._steps(inputs) * self._evaluations(inputs)
        if family is None or not family.default.tflop:
            return SamplerWork(node_id, num_calls, None, self._model_name(node_id))
        area = self._sampled_area(node_id, family)
        default = family.default
        share = area.pixels / (default.width * default.height * default.latent_frames)
        tflop = default.tflop * share * family.attention_factor(area.item_pixels) * self._guided(inputs)
        return SamplerWork(node_id, num_calls, tflop, self._model_name(node_id))

    def _sampled_area(self, node_id: str, family: Family | None) -> Area:
        unknown = UNIT_AREA
        if family is not None:
            default = family.default
            unknown = Area(default.width, default.height, 1, default.seconds, default.latent_frames)
        return self._area(node_id, unknown)

    def _family(self, node_id: str) -> Family | None:
        """Return the family of the model that a node gets, None where it is not known."""
        file = self._model_file(node_id)
        return None if file is None else self._families.get(file)

    def _model_name(self, node_id: str) -> str:
        """Return the file that a node's model comes from, empty where the prompt does not name it."""
        file = self._model_file(node_id)
        return "" if file is None else file.name

    def _model_file(self, node_id: str) -> ModelFile | None:
        """Return the file that a node's model comes from, through any nodes that change the model or choose one.

        Of several, one of a known family comes first.
        """
        own = loaded_by(self._inputs(node_id))
        sources = self._model_sources(node_id)
        found = [self._passed_model(source) for source in sources]
        return self._best_model([own, *found])

    def _model_sources(self, node_id: str) -> list[str]:
        """Return the node before, by the input that has the model."""
        inputs = self._inputs(node_id)
        return [node for name in MODEL_SOURCES if (node := self._linked(inputs.get(name)))][:1]

    def _best_model(self, files: Iterable[ModelFile | None]) -> ModelFile | None:
        """Return the first file of a known family, else the first one."""
        found = [file for file in files if file is not None]
        return next((file for file in found if file in self._families), next(iter(found), None))

    def _passed_model(self, node_id: str) -> ModelFile | None:
        """Return the file of the model that a node loads or passes on. Each node is visited once for all samplers."""
        waiting, seen = [node_id], {node_id}
        while waiting:
            current = waiting[-1]
            if current in self._models:
                waiting.pop()
                continue
            own = loaded_by(self._inputs(current))
            sources = [] if own is not None else self._model_sources(current)
            if own is None and not sources:  # a switch, for instance, whose inputs have names of their own
                sources = [node for value in self._inputs(current).values() if (node := self._linked(value))]
            new = [node for node in dict.fromkeys(sources) if node not in seen and node not in self._models]
            if new:
                seen.update(new)
                waiting.extend(reversed(new))
                continue
            self._models[current] = self._best_model([own, *(self._models.get(node) for node in sources)])
            waiting.pop()
        return self._models[node_id]

    def _steps(self, inputs: Mapping[str, object]) -> float:
        if "steps" not in inputs:
            return self._steps_of_sigmas(self._linked(inputs.get("sigmas")))
        steps = self._number(inputs["steps"], UNIT_STEPS, 1, MAX_STEPS)
        begin = self._number(inputs.get("start_at_step", 0), 0, 0, MAX_STEPS)
        end = self._number(inputs.get("end_at_step", steps), steps, 0, MAX_STEPS)
        return max(0.0, min(steps, end) - begin)

    def _steps_of_sigmas(self, node_id: str | None) -> float:
        """Return the steps of the scheduler at the end of a chain of nodes that take and return sigmas."""
        passed: dict[str, None] = {}
        steps = UNIT_STEPS * 1.0
        while node_id is not None and node_id not in passed and len(passed) < MAX_LINKS:
            if node_id in self._sigma_steps:
                steps = self._sigma_steps[node_id]
                break
            passed[node_id] = None
            inputs = self._inputs(node_id)
            if "steps" in inputs:
                steps = self._number(inputs["steps"], UNIT_STEPS, 1, MAX_STEPS)
                break
            node_id = self._linked(inputs.get("sigmas"))
        self._sigma_steps.update(dict.fromkeys(passed, steps))
        return steps

    def _guided(self, inputs: Mapping[str, object]) -> int:
        """Return the passes of the network for each of its evaluations: one for each condition."""
        guider = self._linked(inputs.get("guider"))
        guider_inputs = self._inputs(guider) if guider is not None else inputs
        fixed = GUIDERS.get(self._class(guider))
        if fixed is not None:
            return fixed
        cfg = self._number(guider_inputs.get("cfg"), 7.0, -1e6, 1e6)
        return 1 if math.isclose(cfg, 1.0) else 2

    def _evaluations(self, inputs: Mapping[str, object]) -> int:
        sampler = self._linked(inputs.get("sampler"))
        name = inputs.get("sampler_name") if sampler is None else self._inputs(sampler).get("sampler_name")
        return EVALUATIONS_PER_STEP.get(name if isinstance(name, str) else "", 1)

    def _area(self, node_id: str, unknown: Area) -> Area:
        """Return the size of a node's output; `unknown` is that of a picture whose size is not in the prompt.

        It walks up to a node that sets the size, then applies each node on the way down.
        """
        chain: dict[str, None] = {}
        current: str | None = node_id
        while current is not None and (current, unknown) not in self._areas:
            if current in chain or len(chain) >= MAX_LINKS:
                break
            chain[current] = None
            current = self._source(current)
        area = unknown if current is None else self._areas.get((current, unknown), unknown)
        for known in reversed(chain):
            area = self._areas[known, unknown] = self._apply(known, area)
        return area

    def _source(self, node_id: str) -> str | None:
        inputs = self._inputs(node_id)
        return next((found for name in SOURCES if (found := self._linked(inputs.get(name))) is not None), None)

    def _apply(self, node_id: str, area: Area) -> Area:
        """Return the size of a node's output for the size of its input."""
        inputs, kind = self._inputs(node_id), self._class(node_id)
        if "scale_by" in inputs:
            return area.scaled(self._number(inputs["scale_by"], 1.0, 0.01, 16))
        if "megapixels" in inputs:
            wanted = self._number(inputs["megapixels"], 1.0, 0.01, 256) * 1024 * 1024
            return area.scaled(math.sqrt(wanted / (area.width_px * area.height_px)))
        if kind == "ImageUpscaleWithModel":
            return area.scaled(self._model_factor(inputs))
        if {"left", "top", "right", "bottom"} <= inputs.keys():
            left, top, right, bottom = (
                self._number(inputs[name], 0, 0, MAX_SIDE_PX) for name in ("left", "top", "right", "bottom")
            )
            width, height = _side(area.width_px + left + right), _side(area.height_px + top + bottom)
            return replace(area, width_px=width, height_px=height, seconds=None)
        if "width" in inputs and "height" in inputs:
            return self._size_of_inputs(inputs, area)
        if "seconds" in inputs and self._source(node_id) is None:
            seconds = self._number(inputs["seconds"], area.seconds or 1.0, 0.1, MAX_SECONDS)
            return area.of_seconds(seconds, int(self._number(inputs.get("batch_size", 1), 1, 1, MAX_BATCH)))
        return replace(area, batch=self._batch(inputs, area, kind))

    def _size_of_inputs(self, inputs: Mapping[str, object], area: Area) -> Area:
        """Return the size of a node with `width` and `height`; a side of 0 keeps the proportions, as in ComfyUI."""
        width = self._number(inputs["width"], area.width_px, 0, MAX_SIDE_PX)
        height = self._number(inputs["height"], area.height_px, 0, MAX_SIDE_PX)
        if not width and not height:
            width, height = area.width_px, area.height_px
        width = width or height * area.width_px / area.height_px
        height = height or width * area.height_px / area.width_px
        batch, frames = float(area.batch), area.frames
        if "batch_size" in inputs or "video_frames" in inputs:  # the frames of networks whose latents are pictures
            counts = (self._number(inputs.get(name, 1), 1, 1, MAX_BATCH) for name in ("batch_size", "video_frames"))
            batch, frames = math.prod(counts), 1
        if "length" in inputs:
            frames = latent_frames_of(self._number(inputs["length"], 1, 1, MAX_BATCH))
        return Area(_side(width), _side(height), int(min(batch, MAX_BATCH)), frames=frames)

    def _batch(self, inputs: Mapping[str, object], area: Area, kind: str) -> int:
        if kind == "RepeatLatentBatch" or kind == "RepeatImageBatch":
            return min(MAX_BATCH, int(area.batch * self._number(inputs.get("amount"), 1, 1, MAX_BATCH)))
        if kind == "LatentFromBatch" or kind == "ImageFromBatch":
            return min(area.batch, int(self._number(inputs.get("length"), 1, 1, MAX_BATCH)))
        if kind == "LatentBatch" or kind == "ImageBatch":
            return min(MAX_BATCH, 2 * area.batch)
        return area.batch

    def _model_factor(self, inputs: Mapping[str, object]) -> float:
        """Return the factor of an upscale model by its file name; 4, the most common one, if the name has none."""
        name = str(self._inputs(self._linked(inputs.get("upscale_model"))).get("model_name", ""))
        found = re.search(r"(?i)(?:^|[^0-9])([1248])x|x([1248])(?:[^0-9]|$)", name)
        return float(found.group(1) or found.group(2)) if found else 4.0

    def _inputs(self, node_id: str | None) -> JsonObject:
        return object_at(self._prompt, node_id, "inputs") if node_id is not None else {}

    def _class(self, node_id: str | None) -> str:
        node = self._prompt.get(node_id) if node_id is not None else None
        return str(node.get("class_type")) if isinstance(node, Mapping) else ""

    def _linked(self, value: object) -> str | None:
        """Return the node that a link refers to."""
        if not isinstance(value, list) or len(value) != 2:
            return None
        return str(value[0]) if str(value[0]) in self._prompt else None

    def _number(self, value: object, default: float, least: float, most: float) -> float:
        """Return a number, or the `value` of the primitive node it is linked to, within bounds."""
        node_id = self._linked(value)
        if node_id is not None:
            inputs = self._inputs(node_id)
            value = next((inputs[name] for name in ("value", "int", "float", "number") if name in inputs), None)
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            return default
        try:
            number = float(value)
        except (ValueError, OverflowError):
            return default
        return min(max(number, least), most) if math.isfinite(number) else default


def _side(length_px: float) -> float:
    return min(max(length_px, 8.0), float(MAX_SIDE_PX))
