"""Cost of a prompt, by the work of its samplers and the families of their models. Pure.

The unit of cost is that of the start-up benchmark (`contract/unit.py`): a cost divided by the benchmark's costs per
second is a time in seconds. Attention compares every cell of an image or a video with every other one, so a pixel of a
longer video is dearer; each family has the share of its network's work that this is.

Sizes and steps that are unknown before a run are the family's default. A model of an unknown family and a sampler of
unknown evaluations are priced as the default family and as one evaluation a step, and `Price` names them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from darkroom.contract.graph.output_sizes import DEFAULT_FRAMES_RATIO, ITEM_FRAMES, Size
from darkroom.contract.graph.prompt_graph import ModelFile
from darkroom.contract.graph.work import PromptWork, Sampling
from darkroom.contract.unit import UNIT_PASSES, UNIT_PIXELS, UNIT_SIDE_PX, UNIT_STEPS, UNIT_WORKLOAD

UNIT_COST: Final = UNIT_WORKLOAD
UNIT_TFLOP: Final = 32.2  # of the sampling of the unit of work
MAX_SIDE_PX: Final = 16384.0  # of the sizes that a cost counts
MAX_STEPS: Final = 10_000.0
MAX_ITEMS: Final = 4096.0
MAX_SECONDS: Final = 10_000.0


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
