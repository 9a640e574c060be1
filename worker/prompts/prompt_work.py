"""The work of a prompt: sizes of its pictures, batches, frames, seconds and sampling steps. Pure.

A number is read from the node, or from a primitive node that the input is linked to through any number of reroutes.
Sizes are followed through the links of pictures, latents and sounds, so sizes after scaling, repeating or stitching are
known too. Values that only a run can determine (the size of an uploaded picture, a number that a node computes) are
unknown and exempt from limits. Every node is visited once, without recursion. No prompt makes this raise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from worker.json.values import JsonObject, object_at
from worker.prompts.output_size import MOST, Picture, stitched, with_sides

PICTURES: Final = frozenset({"IMAGE", "LATENT", "MASK", "VIDEO", "AUDIO", "*"})
"""Types of outputs that have a size in pixels or seconds."""

SOUND_INPUTS: Final[Mapping[str, frozenset[str]]] = {
    "seconds": frozenset({"LATENT", "AUDIO"}),
    "duration": frozenset({"AUDIO"}),
}
"""Inputs that set the seconds of a sound, with the types of outputs of which they do."""

PRIMITIVE_INPUTS: Final = ("value", "int", "float", "number", "Number", "string")
SIZE_INPUTS: Final = (
    ("width", "height"),
    ("target_width", "target_height"),
    ("empty_latent_width", "empty_latent_height"),
)
FRAME_INPUTS: Final = ("length", "frames", "num_frames", "video_frames", "frame_count", "frames_number")
MARGIN_INPUTS: Final = ("left", "top", "right", "bottom")
REPEATERS: Final = frozenset({"RepeatLatentBatch", "RepeatImageBatch"})
CUTTERS: Final = frozenset({"LatentFromBatch", "ImageFromBatch"})
RATE_INPUTS: Final = ("fps", "frame_rate", "frames_per_second")
SOUND_JOINERS: Final = frozenset({"AudioConcat"})
JOINERS: Final = frozenset({"LatentBatch", "ImageBatch", "LatentBatchSeedBehavior"})
UPSCALE_MODEL_FACTOR: Final = 4.0


@dataclass(frozen=True, slots=True)
class Sampling:
    """The steps of one node that samples. `field` is the input that sets them."""

    node_id: str
    field: str
    steps: float
    picture: Picture


@dataclass(frozen=True, slots=True)
class VideoLength:
    """The seconds of a video that one node makes of frames. `field` of `node_id` is the input to change."""

    node_id: str
    field: str
    seconds: float


class PromptWork:
    """Sizes and steps of a prompt in ComfyUI's API form. `object_info` declares the outputs of its nodes."""

    def __init__(self, prompt: JsonObject, object_info: JsonObject) -> None:
        self._prompt = prompt
        self._object_info = object_info
        self._numbers: dict[str, float | None] = {}  # values of primitive nodes
        self._sigma_steps: dict[tuple[str, Any], float | None] = {}  # by node and output
        self.pictures: dict[str, Picture] = {}
        for node_id in prompt:
            self._measure(node_id)

    def class_of(self, node_id: str) -> str:
        node = self._prompt.get(node_id)
        return str(node.get("class_type")) if isinstance(node, Mapping) else ""

    def samplings(self) -> Iterator[Sampling]:
        """Yield every node that samples: it returns a picture or latent, and takes steps or sigmas."""
        for node_id in self._prompt:
            inputs = self._inputs(node_id)
            if not self._gives_picture(node_id):
                continue
            if "steps" in inputs:
                steps, field = self._own_steps(inputs), "steps"
            elif self._linked(inputs.get("sigmas")) is not None:
                steps, field = self._steps_of_sigmas(inputs["sigmas"]), "sigmas"
            else:
                continue
            if steps is not None:
                yield Sampling(node_id, field, steps, self.pictures[node_id])

    @property
    def pixel_steps(self) -> int:
        """Sum of pixels times steps over all nodes that sample."""
        return math.ceil(sum(item.picture.sampled_pixels * item.steps for item in self.samplings()))

    def video_lengths(self) -> Iterator[VideoLength]:
        """Yield the length of the video of every node that takes pictures and a frame rate."""
        for node_id in self._prompt:
            inputs = self._inputs(node_id)
            field = next((name for name in RATE_INPUTS if name in inputs), None)
            rate = self._number(inputs[field]) if field is not None else None
            taken = [self.pictures[source] for source in self._sources(node_id)]
            if field is None or not rate or rate < 0 or not taken:
                continue
            longest = max(taken, key=lambda picture: picture.all_frames)
            place = longest.frames_from or (node_id, field)
            yield VideoLength(*place, longest.all_frames / rate)

    # steps

    def _own_steps(self, inputs: Mapping[str, object]) -> float | None:
        steps = self._number(inputs["steps"])
        if steps is None:
            return None
        begin = self._number(inputs.get("start_at_step")) or 0.0
        end = self._number(inputs.get("end_at_step"))
        return max(0.0, min(steps, steps if end is None else end) - max(0.0, begin))

    def _steps_of_sigmas(self, link: Any) -> float | None:
        """Return the steps of the scheduler at the end of a chain of nodes that take and return sigmas."""
        passed: dict[tuple[str, Any], float] = {}  # each with the most steps that it passes on
        steps: float | None = None
        while (node_id := self._linked(link)) is not None:
            place = (node_id, str(link[1]))
            if place in self._sigma_steps or place in passed:
                steps = self._sigma_steps.get(place)
                break
            inputs = self._inputs(node_id)
            passed[place] = self._most_steps(node_id, inputs, link[1])
            if "steps" in inputs:
                steps = self._own_steps(inputs)
                break
            link = inputs.get("sigmas")
            if isinstance(link, str):  # literal
                steps = float(link.count(","))
                break
        for place, most in reversed(passed.items()):
            steps = self._sigma_steps[place] = None if steps is None else min(steps, most)
        return steps

    def _most_steps(self, node_id: str, inputs: JsonObject, slot: object) -> float:
        """Return the most steps that one output of a node which splits sigmas has."""
        is_first_part = self.class_of(node_id) == "SplitSigmas" and slot == 0
        first_steps = self._number(inputs.get("step")) if is_first_part else None
        return math.inf if first_steps is None else max(0.0, first_steps)

    # sizes

    def _measure(self, root: str) -> None:
        """Measure a node after all nodes whose pictures it takes; a link that closes a cycle counts as unknown."""
        stack, opened = [root], set[str]()
        while stack:
            node_id = stack[-1]
            if node_id in self.pictures:
                stack.pop()
                continue
            sources = self._sources(node_id)
            waiting = [source for source in sources if source not in self.pictures]
            if waiting and node_id not in opened:
                opened.add(node_id)
                stack.extend(waiting)
                continue
            self.pictures[node_id] = self._made(node_id, [self.pictures.get(source, Picture()) for source in sources])
            stack.pop()

    def _sources(self, node_id: str) -> list[str]:
        """Return the nodes whose pictures or latents a node takes."""
        found = []
        for value in self._inputs(node_id).values():
            source = self._linked(value)
            if source is not None and isinstance(value, list) and self._gives_picture(source, value[1]):
                found.append(source)
        return found

    def _made(self, node_id: str, taken: list[Picture]) -> Picture:
        """Return the size of a node's output for the sizes of its inputs."""
        if not self._gives_picture(node_id):
            return Picture()
        inputs, kind = self._inputs(node_id), self.class_of(node_id)
        largest = max(taken, key=lambda picture: picture.pixels or 0.0, default=Picture())
        picture = Picture(
            largest.width_px,
            largest.height_px,
            max((item.batch for item in taken), default=1.0),
            max((item.frames for item in taken), default=1.0),
            max((item.seconds for item in taken), default=0.0),
            frames_from=max(taken, key=lambda item: item.all_frames).frames_from if taken else None,
        )
        picture = self._with_batch(self._with_size(picture, inputs, kind, taken), inputs, kind, taken)
        if picture.frames_field or picture.batch_field:
            picture = replace(picture, frames_from=(node_id, picture.frames_field or picture.batch_field))
        return self._with_seconds(picture, inputs, kind, taken)

    def _with_size(self, picture: Picture, inputs: Mapping[str, object], kind: str, taken: list[Picture]) -> Picture:
        for width_name, height_name in SIZE_INPUTS:
            if width_name in inputs and height_name in inputs:
                width, height = self._number(inputs[width_name]), self._number(inputs[height_name])
                return with_sides(picture, width, height, width_name)
        if (factor := self._number(inputs.get("scale_by"))) is not None:
            return picture.scaled(max(0.0, factor), "scale_by")
        if (megapixels := self._number(inputs.get("megapixels"))) is not None:
            side = math.sqrt(max(0.0, megapixels)) * 1024
            return replace(picture, width_px=side, height_px=side, size_field="megapixels")
        if (longest := self._number(inputs.get("largest_size"))) is not None:
            known = max(picture.width_px or 0.0, picture.height_px or 0.0)
            square = replace(picture, width_px=longest, height_px=longest, size_field="largest_size")
            return picture.scaled(longest / known, "largest_size") if known else square
        if kind == "ImageUpscaleWithModel":
            return picture.scaled(UPSCALE_MODEL_FACTOR, "upscale_model")
        if kind == "ImageStitch" and len(taken) > 1:
            return stitched(picture, taken, is_beside=inputs.get("direction") in ("left", "right"))
        if all(name in inputs for name in MARGIN_INPUTS) and picture.width_px and picture.height_px:
            left, top, right, bottom = (max(0.0, self._number(inputs[name]) or 0.0) for name in MARGIN_INPUTS)
            wide = min(picture.width_px + left + right, MOST)
            high = min(picture.height_px + top + bottom, MOST)
            return replace(picture, width_px=wide, height_px=high, size_field="left")
        return picture

    def _with_batch(self, picture: Picture, inputs: Mapping[str, object], kind: str, taken: list[Picture]) -> Picture:
        is_creator = any(width in inputs and height in inputs for width, height in SIZE_INPUTS)
        batch = self._number(inputs.get("batch_size"))
        if batch is not None and (is_creator or not taken):
            picture = replace(picture, batch=max(1.0, batch), batch_field="batch_size")
        for name in FRAME_INPUTS if is_creator else ():
            frames = self._number(inputs.get(name))
            if frames is not None:
                picture = replace(picture, frames=max(1.0, frames), frames_field=name)
        if kind in REPEATERS:
            amount = max(1.0, self._number(inputs.get("amount")) or 1.0)
            return replace(picture, batch=min(picture.batch * amount, MOST), batch_field="amount")
        if kind in CUTTERS:
            return replace(picture, batch=max(1.0, min(picture.batch, self._number(inputs.get("length")) or 1.0)))
        if kind in JOINERS and len(taken) > 1:
            name = next(name for name, value in inputs.items() if self._linked(value) is not None)
            return replace(picture, batch=min(sum(item.batch for item in taken), MOST), batch_field=name)
        return picture

    def _with_seconds(self, picture: Picture, inputs: JsonObject, kind: str, taken: list[Picture]) -> Picture:
        if kind in SOUND_JOINERS and len(taken) > 1:
            total = min(sum(item.seconds for item in taken), MOST)
            return replace(picture, seconds=total, seconds_field="audio2")
        for name, types in SOUND_INPUTS.items():
            seconds = self._number(inputs.get(name))
            if seconds is None or not self._gives(kind, types):
                continue
            if picture.seconds:  # a part of it
                return replace(picture, seconds=min(picture.seconds, max(0.0, seconds)))
            if not taken:
                return replace(picture, seconds=max(0.0, seconds), seconds_field=name)
        return picture

    # the graph

    def _inputs(self, node_id: str) -> JsonObject:
        return object_at(self._prompt, node_id, "inputs")

    def _linked(self, value: object) -> str | None:
        """Return the node that a link refers to."""
        if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], str):
            return None
        return value[0] if value[0] in self._prompt else None

    def _gives_picture(self, node_id: str, slot: object = None) -> bool:
        """Return True for a node with a picture or latent as an output, or at the given one; unknown classes count."""
        declared = self._object_info.get(self.class_of(node_id))
        if not isinstance(declared, Mapping):
            return True
        types = declared.get("output") or ()
        if isinstance(slot, int) and 0 <= slot < len(types):
            types = (types[slot],)
        return any(isinstance(item, str) and not PICTURES.isdisjoint(item.split(",")) for item in types)

    def _gives(self, kind: str, types: frozenset[str]) -> bool:
        """Return True for a class with an output of one of the types; unknown classes count."""
        declared = self._object_info.get(kind)
        if not isinstance(declared, Mapping):
            return True
        return any(isinstance(item, str) and item in types for item in declared.get("output") or ())

    def _number(self, value: object) -> float | None:
        """Return a literal number, or that of a primitive node upstream; None if there is none or it is unknown."""
        passed: dict[str, None] = {}
        while (node_id := self._linked(value)) is not None:
            if node_id in self._numbers:
                value = self._numbers[node_id]
                break
            if node_id in passed:
                value = None
                break
            passed[node_id] = None
            inputs = self._inputs(node_id)
            name = next((name for name in PRIMITIVE_INPUTS if name in inputs), None)
            value = inputs[name] if name is not None else next(iter(inputs.values())) if len(inputs) == 1 else None
        number = _finite(value)
        self._numbers.update(dict.fromkeys(passed, number))
        return number


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return min(max(number, -MOST), MOST) if math.isfinite(number) else None
