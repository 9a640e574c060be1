"""Sizes of the outputs of a prompt's nodes: pixels, items, frames and seconds, followed along the links. Pure.

Every node is measured once, without recursion. What only a run can determine (the size of an uploaded image, a number
that a node computes) is unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from darkroom.contract.graph.prompt_graph import MOST, PromptGraph
from darkroom.contract.unit import UNIT_PIXELS

DEFAULT_FRAMES_RATIO: Final = 4  # frames of a latent frame, where the family is not known
AUDIO_PIXELS_PER_SECOND: Final = 1400.0  # of a latent of audio, as the cells of Stable Audio are counted
ENLARGEMENT: Final = 4.0  # by an upscale model whose name says none
NAMED_ENLARGEMENT: Final = re.compile(r"(?i)(?:^|[^0-9])([1248])x|x([1248])(?:[^0-9]|$)")

SIZED: Final = frozenset({"IMAGE", "LATENT", "MASK", "VIDEO", "AUDIO", "*"})
"""Types of outputs that have a size in pixels or seconds."""

SECONDS_INPUTS: Final[Mapping[str, frozenset[str]]] = {
    "seconds": frozenset({"LATENT", "AUDIO"}),
    "duration": frozenset({"AUDIO"}),
}
"""Inputs that set the seconds of audio, with the types of outputs of which they do."""

SIZE_INPUTS: Final = (
    ("width", "height"),
    ("target_width", "target_height"),
    ("empty_latent_width", "empty_latent_height"),
)
ITEM_FRAMES: Final = "video_frames"  # each of which is an item of the latent's batch
FRAME_INPUTS: Final = ("length", "frames", "num_frames", ITEM_FRAMES, "frame_count", "frames_number")
MARGIN_INPUTS: Final = ("left", "top", "right", "bottom")
SAMPLED_INPUTS: Final = ("latent_image", "samples", "latent", "image")
SOURCES: Final = (*SAMPLED_INPUTS[:3], "pixels", "image", "images", "samples1", "samples_to", "input")
"""Names of inputs that pass a latent or an image through a node of an undeclared class, the likeliest first."""


def latent_frames_of(frames: float, frames_ratio: int = DEFAULT_FRAMES_RATIO) -> float:
    """Return the number of latent frames of a video: one for its first frame, one for each `frames_ratio` behind it."""
    return (frames - 1) // frames_ratio + 1


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


class OutputSizes:
    """Sizes of the outputs of one prompt's nodes, each measured when it is first asked for."""

    def __init__(self, graph: PromptGraph) -> None:
        self._graph = graph
        self._found: dict[str, Size] = {}

    def of(self, node_id: str) -> Size:
        """Return the size of a node's output."""
        self._measure(node_id)
        return self._found[node_id]

    def _measure(self, root: str) -> None:
        """Measure a node after all nodes whose images it takes; a link that closes a cycle counts as unknown."""
        found, stack, opened = self._found, [root], set[str]()
        while stack:
            node_id = stack[-1]
            if node_id in found:
                stack.pop()
                continue
            sources = self.sources(node_id)
            waiting = [source for source in sources if source not in found]
            if waiting and node_id not in opened:
                opened.add(node_id)
                stack.extend(waiting)
                continue
            found[node_id] = self._size(node_id, [found.get(source, Size()) for source in sources])
            stack.pop()

    def sources(self, node_id: str) -> list[str]:
        """Return the nodes whose images, latents or audio a node takes; of an undeclared class the likeliest alone."""
        graph, inputs = self._graph, self._graph.inputs(node_id)
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
        if not self._graph.gives(node_id, SIZED):
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
        inputs, number, facts = self._graph.inputs(node_id), self._graph.number, self._graph.facts_of(node_id)
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
        name = self._graph.inputs(self._graph.linked(link)).get("model_name")
        found = NAMED_ENLARGEMENT.search(name) if isinstance(name, str) else None
        return float(found.group(1) or found.group(2)) if found else ENLARGEMENT

    def _with_batch(self, size: Size, node_id: str, taken: list[Size]) -> Size:
        inputs, number, facts = self._graph.inputs(node_id), self._graph.number, self._graph.facts_of(node_id)
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
            name = next(name for name, value in inputs.items() if self._graph.linked(value) is not None)
            return replace(size, batch=min(sum(item.batch for item in taken), MOST), batch_field=name)
        return size

    def _with_seconds(self, size: Size, node_id: str, taken: list[Size]) -> Size:
        if self._graph.facts_of(node_id).joins == "seconds" and len(taken) > 1:
            total = min(sum(item.seconds for item in taken), MOST)
            return replace(size, seconds=total, seconds_field="audio2")
        for name, types in SECONDS_INPUTS.items():
            seconds = self._graph.number(self._graph.inputs(node_id).get(name))
            if seconds is None or not self._graph.gives(node_id, types):
                continue
            if size.seconds:  # a part of it
                return replace(size, seconds=min(size.seconds, max(0.0, seconds)))
            if not taken:
                return replace(size, seconds=max(0.0, seconds), seconds_field=name)
        return size
