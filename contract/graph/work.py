"""Work that a prompt asks for, read from its graph: steps, sizes, model files and cost. Pure.

Front and gateway read prompts by this module alone, before an engine has them. What a class means it declares itself
(`facts.py`); of a class that declares nothing the names of its inputs are read, as ComfyUI's nodes and most packs' give
them. Sizes are followed through the links of images, latents and audio, numbers through primitive nodes and reroutes,
models from the sampler to the node that loads the file. Every node is visited once, without recursion, and no prompt
makes this raise.

Values that only a run can determine (the size of an uploaded image, a number that a node computes) are unknown: limits
do not hold for them, and a cost takes the family's default in their place. A model of an unknown family and a sampler
of unknown evaluations are priced as the default family and as one evaluation a step, and `Price` names them.

The unit of cost is that of the start-up benchmark (`contract/unit.py`): a cost divided by the benchmark's costs per
second is a time in seconds. Attention compares every cell of an image or a video with every other one, so a pixel of a
longer video is dearer; each family has the share of its network's work that this is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Protocol

from darkroom.contract.errors import PromptRejected
from darkroom.contract.graph.facts import FACTS_KEY, NO_FACTS, Facts, NodeFacts
from darkroom.contract.graph.loops import MAX_ITERATIONS, NO_LOOPS, FoundLoops, find_loops, iterations_of
from darkroom.contract.graph.model_inputs import NETWORK_FOLDERS, ModelInputs
from darkroom.contract.graph.prompt import is_link, parse_prompt, reached
from darkroom.contract.graph.switches import NOTHING_LEFT_OUT, LeftOut, find_left_out, inputs_of, without_left_out
from darkroom.contract.unit import UNIT_PASSES, UNIT_PIXELS, UNIT_SIDE_PX, UNIT_STEPS, UNIT_WORKLOAD

JsonObject = Mapping[str, object]

UNIT_COST: Final = UNIT_WORKLOAD
UNIT_TFLOP: Final = 32.2  # of the sampling of the unit of work
MOST: Final = 1e9  # upper bound of any number, far above every limit
MAX_SIDE_PX: Final = 16384.0  # of the sizes that a cost counts
MAX_STEPS: Final = 10_000.0
MAX_ITEMS: Final = 4096.0
MAX_SECONDS: Final = 10_000.0
DEFAULT_FRAMES_RATIO: Final = 4  # frames of a latent frame, where the family is not known
AUDIO_PIXELS_PER_SECOND: Final = 1400.0  # of a latent of audio, as the cells of Stable Audio are counted
DEFAULT_CFG: Final = 7.0
ENLARGEMENT: Final = 4.0  # by an upscale model whose name says none
NAMED_ENLARGEMENT: Final = re.compile(r"(?i)(?:^|[^0-9])([1248])x|x([1248])(?:[^0-9]|$)")

SIZED: Final = frozenset({"IMAGE", "LATENT", "MASK", "VIDEO", "AUDIO", "*"})
"""Types of outputs that have a size in pixels or seconds."""

SECONDS_INPUTS: Final[Mapping[str, frozenset[str]]] = {
    "seconds": frozenset({"LATENT", "AUDIO"}),
    "duration": frozenset({"AUDIO"}),
}
"""Inputs that set the seconds of audio, with the types of outputs of which they do."""

PRIMITIVE_INPUTS: Final = ("value", "int", "float", "number", "Number", "string")
SIZE_INPUTS: Final = (
    ("width", "height"),
    ("target_width", "target_height"),
    ("empty_latent_width", "empty_latent_height"),
)
ITEM_FRAMES: Final = "video_frames"  # each of which is an item of the latent's batch
FRAME_INPUTS: Final = ("length", "frames", "num_frames", ITEM_FRAMES, "frame_count", "frames_number")
MARGIN_INPUTS: Final = ("left", "top", "right", "bottom")
RATE_INPUTS: Final = ("fps", "frame_rate", "frames_per_second")
SAMPLED_INPUTS: Final = ("latent_image", "samples", "latent", "image")
SOURCES: Final = (*SAMPLED_INPUTS[:3], "pixels", "image", "images", "samples1", "samples_to", "input")
"""Names of inputs that pass a latent or an image through a node of an undeclared class, the likeliest first."""

MODEL_SOURCES: Final = ("model", "guider", "model1", "base_model", "pipe", "basic_pipe")
"""Names of inputs that pass a model through a node, the likeliest first."""

FAMILY_KIND: Final = "family"
"""The `kind` of a `ModelFile` without a file: random weights of the family with that name."""


def latent_frames_of(frames: float, frames_ratio: int = DEFAULT_FRAMES_RATIO) -> float:
    """Return the number of latent frames of a video: one for its first frame, one for each `frames_ratio` behind it."""
    return (frames - 1) // frames_ratio + 1


def object_of(value: object) -> JsonObject:
    """Return a JSON object as it is, an empty one for any other value."""
    return value if type(value) is dict or isinstance(value, Mapping) else {}


# --- what a prompt says ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model file by its kind and its name below the folder of that kind."""

    kind: str
    name: str


class PromptGraph:
    """Nodes, links and classes of a prompt in ComfyUI's API form; `object_info` declares the classes, where known.

    Links that no switch follows are not among its inputs and links, and `left_out` are the nodes that do not run for it
    (`switches.py`); for an engine that checks these as ComfyUI does, there are none.
    """

    def __init__(self, prompt: JsonObject, object_info: JsonObject | None = None) -> None:
        self.prompt = prompt
        self.object_info: JsonObject = object_info or {}
        self.facts = Facts(object_info)
        self._model_inputs = ModelInputs(self.facts, self.object_info)
        self._numbers: dict[str, float | None] = {}  # values of primitive nodes

    def class_of(self, node_id: str) -> str:
        """Return the class of a node, empty where it names none."""
        return str(object_of(self.prompt.get(node_id)).get("class_type") or "")

    def inputs(self, node_id: str | None) -> JsonObject:
        inputs = object_of(object_of(self.prompt.get(node_id or "")).get("inputs"))
        unused = self._unused_inputs.get(node_id or "")
        return inputs if not unused else {name: value for name, value in inputs.items() if name not in unused}

    @property
    def node_ids(self) -> Iterator[str]:
        """The nodes that a switch does not leave out, in the prompt's order."""
        return (node_id for node_id in self.prompt if node_id not in self.left_out)

    def declared(self, node_id: str) -> JsonObject:
        """Return the entry of a node's class in `/object_info`, empty for an undeclared class."""
        return object_of(self.object_info.get(self.class_of(node_id)))

    def facts_of(self, node_id: str | None) -> NodeFacts:
        return self.facts.of(self.class_of(node_id or ""))

    def loaded_by(self, node_id: str) -> ModelFile | None:
        """Return the model file that a node loads a denoising network from; of random weights, their family."""
        inputs, random_family = self.inputs(node_id), self.facts_of(node_id).random_family
        if random_family:
            return _named_file(FAMILY_KIND, inputs.get(random_family))
        for name, folder in self._model_inputs.folders_of(self.class_of(node_id)).items():
            kind = NETWORK_FOLDERS.get(folder)
            if kind is not None and (file := _named_file(kind, inputs.get(name))) is not None:
                return file
        return None

    @cached_property
    def model_files(self) -> tuple[ModelFile, ...]:
        """The model files of denoising networks that the prompt names, each once."""
        found = map(self.loaded_by, self.node_ids)
        return tuple(dict.fromkeys(file for file in found if file is not None))

    def linked(self, value: object) -> str | None:
        """Return the node that a link refers to; None for any other value, and for a link to no node."""
        if type(value) is not list or len(value) != 2 or not isinstance(value[0], str | int):
            return None
        node_id = str(value[0])
        return node_id if node_id in self.prompt else None

    def sources(self, node_id: str) -> Iterator[str]:
        """Yield the nodes that a node's inputs are linked to."""
        for value in self.inputs(node_id).values():
            source = self.linked(value)
            if source is not None:
                yield source

    def is_output(self, node_id: str) -> bool:
        return bool(self.declared(node_id).get("output_node"))

    def needed_by(self, targets: Iterable[str]) -> frozenset[str]:
        """Return the nodes that run for the targets, these among them."""
        return reached(targets, self.sources)

    def below(self, root: str) -> frozenset[str]:
        """Return the nodes that depend on a node."""
        users: dict[str, list[str]] = {}
        for node_id in self.node_ids:
            for source in self.sources(node_id):
                users.setdefault(source, []).append(node_id)
        return reached(users.get(root, ()), lambda node_id: users.get(node_id, ()))

    def running_part(self) -> dict[str, object]:
        """Return the nodes that an output node needs, directly or not; the others do not run."""
        needed = self.needed_by(node_id for node_id in self.prompt if self.is_output(node_id))
        return {node_id: node for node_id, node in self.prompt.items() if node_id in needed}

    @property
    def followed(self) -> JsonObject:
        """The prompt without the nodes that a switch leaves out and the links to them."""
        return without_left_out(self.prompt, self._switched)

    def possible_part(self) -> dict[str, object]:
        """Return the nodes that a switch does not leave out."""
        return {node_id: self.prompt[node_id] for node_id in self.node_ids}

    @property
    def left_out(self) -> frozenset[str]:
        """The nodes that switches leave out."""
        return self._switched.nodes

    @cached_property
    def _switched(self) -> LeftOut:
        if not any(self._switch_facts(name).chosen_by for name in self._classes):
            return NOTHING_LEFT_OUT
        outputs = {node_id for node_id in self.prompt if self.is_output(node_id)}
        return find_left_out(
            inputs_of(self.prompt), lambda node_id: self._switch_facts(self.class_of(node_id)), outputs
        )

    @cached_property
    def _unused_inputs(self) -> Mapping[str, Collection[str]]:
        """The inputs with links that no switch follows, by node."""
        found: dict[str, set[str]] = {}
        for node_id, name in self._switched.links:
            found.setdefault(node_id, set()).add(name)
        return found

    @property
    def has_loops(self) -> bool:
        """True if a class of the prompt starts or ends loops."""
        return any(self.facts.of(name).loop for name in self._classes)

    @cached_property
    def _classes(self) -> frozenset[str]:
        return frozenset(map(self.class_of, self.prompt))

    def _switch_facts(self, class_type: str) -> NodeFacts:
        """Return the facts of a class that leave out nodes; none for an engine that does not report its facts."""
        declared = object_of(self.object_info.get(class_type))
        return self.facts.of(class_type) if not self.object_info or FACTS_KEY in declared else NO_FACTS

    def types_of(self, node_id: str) -> list[object] | None:
        """Return the types of a node's outputs; None for an undeclared class."""
        types = self.declared(node_id).get("output")
        return types if isinstance(types, list) else None

    def gives(self, node_id: str, types: Collection[str], slot: object = None) -> bool:
        """Return True for a node with an output of these types, or with one in that slot; undeclared classes count."""
        own = self.types_of(node_id)
        if own is None:
            return True
        if isinstance(slot, int) and 0 <= slot < len(own):
            own = [own[slot]]
        return any(isinstance(item, str) and not set(item.split(",")).isdisjoint(types) for item in own)

    def number(self, value: object) -> float | None:
        """Return a literal number, or that of a primitive node upstream; None if there is none or it is unknown."""
        passed: dict[str, None] = {}
        while (node_id := self.linked(value)) is not None:
            if node_id in self._numbers:
                value = self._numbers[node_id]
                break
            if node_id in passed:
                value = None
                break
            passed[node_id] = None
            inputs = self.inputs(node_id)
            name = self._switched.chosen.get(node_id) or next(
                (name for name in PRIMITIVE_INPUTS if name in inputs), None
            )
            value = inputs[name] if name is not None else next(iter(inputs.values())) if len(inputs) == 1 else None
        number = _finite(value)
        self._numbers.update(dict.fromkeys(passed, number))
        return number


def _named_file(kind: str, value: object) -> ModelFile | None:
    return ModelFile(kind, value) if isinstance(value, str) and value else None


def model_files_in(prompt: JsonObject, object_info: JsonObject | None = None) -> list[ModelFile]:
    """Return the model files of denoising networks that a prompt in ComfyUI's API form names, each once."""
    return list(PromptGraph(prompt, object_info).model_files)


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return min(max(number, -MOST), MOST) if math.isfinite(number) else None


# --- sizes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a node's output. A `field` is the input that determines a part of it, empty where none does."""

    width_px: float | None = None
    """None where it is unknown."""

    height_px: float | None = None
    scale: float = 1.0
    """Factor of sides that are unknown."""

    batch: float = 1.0
    frames: float = 1.0
    """Frames of a video, not of its latent."""

    seconds: float = 0.0
    """Length of audio, 0 for all else."""

    is_counted: bool = False
    """True where batch or frames are said; a family's default stands for them elsewhere."""

    size_field: str = ""
    batch_field: str = ""
    frames_field: str = ""
    seconds_field: str = ""
    frames_from: tuple[str, str] | None = None
    """Node and input that gave the frames or the batch, also at the nodes after it."""

    @property
    def pixels(self) -> float | None:
        """Pixels of one image or frame."""
        return None if self.width_px is None or self.height_px is None else self.width_px * self.height_px

    @property
    def all_frames(self) -> float:
        """Frames of a video of it: a batch is one after the other."""
        return self.frames * self.batch

    def latent_frames(self, frames_ratio: int = DEFAULT_FRAMES_RATIO) -> float:
        """Return the number of latent frames, where that many frames behind the first one become one."""
        is_items = self.frames_from is not None and self.frames_from[1] == ITEM_FRAMES
        return self.frames if is_items else latent_frames_of(self.frames, frames_ratio)

    @property
    def sampled_pixels(self) -> float:
        """Pixels of the whole latent of a model of no known family; audio counts by its seconds."""
        if self.seconds:
            return self.seconds * AUDIO_PIXELS_PER_SECOND * self.batch
        pixels = UNIT_PIXELS * self.scale**2 if self.pixels is None else self.pixels
        return pixels * self.batch * self.latent_frames()

    @property
    def video_pixels(self) -> float | None:
        """Pixels of all frames of one video; None where they are unknown, and for an image."""
        return None if self.pixels is None or not self.frames_field else self.pixels * self.frames

    def scaled(self, factor: float, field: str) -> Size:
        if self.width_px is None or self.height_px is None:
            return replace(self, scale=min(self.scale * factor, MOST))
        width, height = min(self.width_px * factor, MOST), min(self.height_px * factor, MOST)
        return replace(self, width_px=width, height_px=height, size_field=field)

    def with_sides(self, width: float | None, height: float | None, field: str) -> Size:
        """Return the size with the given sides; a side of 0 keeps the proportions, as in ComfyUI's scalers."""
        if width is None or height is None:
            return replace(self, width_px=None, height_px=None, scale=1.0)
        if not width and not height:
            return self
        if not (width and height):
            ratio = self.width_px / self.height_px if self.width_px and self.height_px else 1.0
            width, height = width or height * ratio, height or width / ratio
        return replace(self, width_px=abs(width), height_px=abs(height), size_field=field)

    def stitched(self, taken: list[Size], *, is_row: bool) -> Size:
        wide, high = [item.width_px or 0.0 for item in taken], [item.height_px or 0.0 for item in taken]
        width, height = (sum(wide), max(high)) if is_row else (max(wide), sum(high))
        return replace(self, width_px=min(width, MOST), height_px=min(height, MOST), size_field="image2")


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
        self._sizes: dict[str, Size] = {}
        self._sigma_steps: dict[tuple[str, Any], float | None] = {}  # by node and output
        self._models: dict[str, ModelFile | None] = {}  # by node that takes a model or passes one on
        self._known_models: frozenset[ModelFile] = frozenset()  # those that `_models` prefers

    @cached_property
    def sizes(self) -> Mapping[str, Size]:
        """The size of every node's output, in the prompt's order."""
        return {node_id: self.size_of(node_id) for node_id in self.graph.node_ids}

    def size_of(self, node_id: str) -> Size:
        """Return the size of a node's output."""
        self._measure(node_id)
        return self._sizes[node_id]

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
            taken = [self.size_of(source) for source in self._sources(node_id)]
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

    # sizes

    def _measure(self, root: str) -> None:
        """Measure a node after all nodes whose images it takes; a link that closes a cycle counts as unknown."""
        found, stack, opened = self._sizes, [root], set[str]()
        while stack:
            node_id = stack[-1]
            if node_id in found:
                stack.pop()
                continue
            sources = self._sources(node_id)
            waiting = [source for source in sources if source not in found]
            if waiting and node_id not in opened:
                opened.add(node_id)
                stack.extend(waiting)
                continue
            found[node_id] = self._size(node_id, [found.get(source, Size()) for source in sources])
            stack.pop()

    def _sources(self, node_id: str) -> list[str]:
        """Return the nodes whose images, latents or audio a node takes; of an undeclared class the likeliest alone."""
        graph, inputs = self.graph, self.graph.inputs(node_id)
        if graph.types_of(node_id) is None and not graph.facts_of(node_id).joins:
            named = next((link for name in SOURCES if graph.linked(link := inputs.get(name)) is not None), None)
            inputs = inputs if named is None else {"": named}
        return [
            source
            for value in inputs.values()
            if (source := graph.linked(value)) is not None
            and graph.gives(source, SIZED, value[1] if isinstance(value, list) else None)
        ]

    def _size(self, node_id: str, taken: list[Size]) -> Size:
        """Return the size of a node's output for the sizes of its inputs."""
        if not self.graph.gives(node_id, SIZED):
            return Size()
        largest = max(taken, key=lambda size: size.pixels or 0.0, default=Size())
        size = Size(
            largest.width_px,
            largest.height_px,
            largest.scale,
            max((item.batch for item in taken), default=1.0),
            max((item.frames for item in taken), default=1.0),
            max((item.seconds for item in taken), default=0.0),
            any(item.is_counted for item in taken),
            frames_from=max(taken, key=lambda item: item.all_frames).frames_from if taken else None,
        )
        size = self._with_batch(self._with_sides(size, node_id, taken), node_id, taken)
        if size.frames_field or size.batch_field:
            size = replace(size, frames_from=(node_id, size.frames_field or size.batch_field))
        return self._with_seconds(size, node_id, taken)

    def _with_sides(self, size: Size, node_id: str, taken: list[Size]) -> Size:
        inputs, number, facts = self.graph.inputs(node_id), self.graph.number, self.graph.facts_of(node_id)
        for width_name, height_name in SIZE_INPUTS:
            if width_name in inputs and height_name in inputs:
                return size.with_sides(number(inputs[width_name]), number(inputs[height_name]), width_name)
        if (factor := number(inputs.get("scale_by"))) is not None:
            return size.scaled(max(0.0, factor), "scale_by")
        if (megapixels := number(inputs.get("megapixels"))) is not None:
            side = math.sqrt(max(0.0, megapixels)) * 1024
            return replace(size, width_px=side, height_px=side, size_field="megapixels")
        if (longest := number(inputs.get("largest_size"))) is not None:
            known = max(size.width_px or 0.0, size.height_px or 0.0)
            square = replace(size, width_px=longest, height_px=longest, size_field="largest_size")
            return size.scaled(longest / known, "largest_size") if known else square
        if facts.enlarges_by:
            return size.scaled(self._enlargement(inputs.get(facts.enlarges_by)), facts.enlarges_by)
        if facts.joins == "sides" and len(taken) > 1:
            return size.stitched(taken, is_row=inputs.get(facts.side_input) in ("left", "right"))
        if all(name in inputs for name in MARGIN_INPUTS) and size.width_px and size.height_px:
            left, top, right, bottom = (max(0.0, number(inputs[name]) or 0.0) for name in MARGIN_INPUTS)
            wide = min(size.width_px + left + right, MOST)
            high = min(size.height_px + top + bottom, MOST)
            return replace(size, width_px=wide, height_px=high, size_field="left")
        return size

    def _enlargement(self, link: object) -> float:
        """Return the factor of an upscale model by its file's name."""
        name = self.graph.inputs(self.graph.linked(link)).get("model_name")
        found = NAMED_ENLARGEMENT.search(name) if isinstance(name, str) else None
        return float(found.group(1) or found.group(2)) if found else ENLARGEMENT

    def _with_batch(self, size: Size, node_id: str, taken: list[Size]) -> Size:
        inputs, number, facts = self.graph.inputs(node_id), self.graph.number, self.graph.facts_of(node_id)
        is_creator = any(width in inputs and height in inputs for width, height in SIZE_INPUTS)
        batch = number(inputs.get("batch_size"))
        if batch is not None and (is_creator or not taken):
            size = replace(size, batch=max(1.0, batch), batch_field="batch_size", is_counted=True)
        for name in FRAME_INPUTS if is_creator else ():
            frames = number(inputs.get(name))
            if frames is not None:
                size = replace(size, frames=max(1.0, frames), frames_field=name, is_counted=True)
        if facts.repeats:
            amount = max(1.0, number(inputs.get(facts.repeats)) or 1.0)
            return replace(size, batch=min(size.batch * amount, MOST), batch_field=facts.repeats)
        if facts.cuts:
            return replace(size, batch=max(1.0, min(size.batch, number(inputs.get(facts.cuts)) or 1.0)))
        if facts.joins == "items" and len(taken) > 1:
            name = next(name for name, value in inputs.items() if self.graph.linked(value) is not None)
            return replace(size, batch=min(sum(item.batch for item in taken), MOST), batch_field=name)
        return size

    def _with_seconds(self, size: Size, node_id: str, taken: list[Size]) -> Size:
        if self.graph.facts_of(node_id).joins == "seconds" and len(taken) > 1:
            total = min(sum(item.seconds for item in taken), MOST)
            return replace(size, seconds=total, seconds_field="audio2")
        for name, types in SECONDS_INPUTS.items():
            seconds = self.graph.number(self.graph.inputs(node_id).get(name))
            if seconds is None or not self.graph.gives(node_id, types):
                continue
            if size.seconds:  # a part of it
                return replace(size, seconds=min(size.seconds, max(0.0, seconds)))
            if not taken:
                return replace(size, seconds=max(0.0, seconds), seconds_field=name)
        return size

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


# --- cost ------------------------------------------------------------------------------------------------------------


class DefaultSize(Protocol):
    """Parameters of an image, a video or audio that a family has by default."""

    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...
    @property
    def frames_ratio(self) -> int: ...
    @property
    def latent_frames(self) -> float: ...
    @property
    def seconds(self) -> float | None: ...
    @property
    def tflop(self) -> float: ...


class PricedFamily(Protocol):
    """A family of models: the price of a pixel, a step and a pass, relative to the default family's."""

    @property
    def pixel_cost(self) -> float: ...
    @property
    def default(self) -> DefaultSize: ...
    def attention_factor(self, pixels: float) -> float: ...


@dataclass(frozen=True, slots=True)
class SamplerWork:
    """The work of one node that samples."""

    node_id: str
    num_calls: float
    """Evaluations of the network, those of all passes at once counted as one."""

    cost: float
    tflop: float | None
    """Operations (10^12) of an evaluation; None where the model's family or its work is not known."""

    model: str = ""
    """File that the network comes from, empty where the prompt does not say it."""

    has_family: bool = False
    """True where the family of that file is known."""

    unknown_sampler: str = ""
    """Sampler whose evaluations a step are not known, empty for others."""


@dataclass(frozen=True, slots=True)
class Price:
    """The cost of a prompt, more than 0, and what it was only assumed for.

    `models` are files of no known family, priced as the default family; `samplers` those of unknown evaluations a
    step, priced as one.
    """

    cost: float
    models: tuple[str, ...] = ()
    samplers: tuple[str, ...] = ()


def price_of(work: PromptWork, families: Mapping[ModelFile, PricedFamily]) -> Price:
    """Return the price of a prompt by the families of its model files; UNIT_COST without a sampler."""
    works = sampler_works(work, families)
    models = dict.fromkeys(item.model for item in works if item.model and not item.has_family)
    samplers = dict.fromkeys(item.unknown_sampler for item in works if item.unknown_sampler)
    return Price(sum(item.cost for item in works) or UNIT_COST, tuple(models), tuple(samplers))


def sampler_works(work: PromptWork, families: Mapping[ModelFile, PricedFamily]) -> tuple[SamplerWork, ...]:
    """Return the work of each sampler of a prompt, as `price_of` takes it."""
    return tuple(_work_of(work, sampling, families) for sampling in work.samplings)


def _work_of(work: PromptWork, sampling: Sampling, families: Mapping[ModelFile, PricedFamily]) -> SamplerWork:
    file = work.model_of(sampling.node_id, families)
    family = None if file is None else families.get(file)
    evaluations, sampler = work.evaluations_of(sampling.node_id)
    steps = UNIT_STEPS if sampling.steps is None else min(max(sampling.steps, 0.0), MAX_STEPS)
    num_calls = steps * (evaluations or 1) * work.times_of(sampling.node_id)
    passes = work.passes_of(sampling.node_id)
    item_pixels, items = _sampled(sampling.size, family)
    pixels, price, tflop = item_pixels * items, 1.0, None
    if family is not None:
        default, attention = family.default, family.attention_factor(item_pixels)
        price = family.pixel_cost * attention
        share = pixels / (default.width * default.height * default.latent_frames)
        tflop = default.tflop * share * attention * passes or None
    cost = UNIT_COST * price * (pixels / UNIT_PIXELS) * (num_calls / UNIT_STEPS) * (passes / UNIT_PASSES)
    name, unknown = "" if file is None else file.name, "" if evaluations else sampler
    return SamplerWork(sampling.node_id, num_calls, cost, tflop, name, family is not None, unknown)


def operations_cost(works: Sequence[SamplerWork]) -> float:
    """Return the cost of samplers by their operations alone, without the fixed time of a step."""
    return sum(work.num_calls * (work.tflop or 0.0) for work in works) / UNIT_TFLOP * UNIT_COST


def _sampled(size: Size, family: PricedFamily | None) -> tuple[float, float]:
    """Return the pixels of one item of what is sampled, and the number of items; unknown ones are the family's default.

    Pixels of a video are those of all its latent frames; of audio as many as its share of the default's length has.
    """
    default = None if family is None else family.default
    width, height = (UNIT_SIDE_PX, UNIT_SIDE_PX) if default is None else (default.width, default.height)
    frames = 1.0 if default is None else default.latent_frames
    batch, is_items = min(size.batch, MAX_ITEMS), size.frames_from is not None and size.frames_from[1] == ITEM_FRAMES
    if size.seconds:
        usual = None if default is None else default.seconds
        share = min(max(size.seconds, 0.1), MAX_SECONDS) / usual if usual else 1.0
        return max(1.0, width * share) * height, batch
    if size.pixels is None:
        sides = _side(width * size.scale), _side(height * size.scale)
    else:
        sides = _side(size.width_px or 0.0), _side(size.height_px or 0.0)
    if is_items:
        return sides[0] * sides[1], min(batch * size.frames, MAX_ITEMS)
    if size.is_counted:
        frames_ratio = DEFAULT_FRAMES_RATIO if default is None else default.frames_ratio
        frames = min(size.latent_frames(frames_ratio), MAX_ITEMS)
    return sides[0] * sides[1] * frames, batch


def _side(length_px: float) -> float:
    return min(max(length_px, 8.0), MAX_SIDE_PX)
