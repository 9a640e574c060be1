"""Conditions: what a prompt asks of the network, where in the image, how strongly and when.

A condition is ComfyUI's dictionary (`cross_attn`, `area`, `mask`, `strength`, `start_percent`, `control`, `hooks`,
`default`, `model_conds`, ...). Before sampling every list of them is prepared for the latent's size; areas are
`(height, width, y, x)` in latent cells.
"""

from __future__ import annotations

import copy
import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from darkroom.engine.diffusion.options import Conditioning, Network, Options
from darkroom.engine.diffusion.replacements import replaceable

Condition = dict[str, Any]


def repeat_to_batch_size(tensor: torch.Tensor, batch_size: int, dim: int = 0) -> torch.Tensor:
    """Cut or repeated to that many items along `dim`."""
    if tensor.shape[dim] > batch_size:
        return tensor.narrow(dim, 0, batch_size)
    if tensor.shape[dim] < batch_size:
        times = [1] * tensor.ndim
        times[dim] = math.ceil(batch_size / tensor.shape[dim])
        return tensor.repeat(times).narrow(dim, 0, batch_size)
    return tensor


def spread_to_batch_size(tensor: torch.Tensor, batch_size: int) -> torch.Tensor:
    """Return that many items in order: fewer are repeated for equal stretches, of more evenly spaced ones are taken."""
    count = tensor.shape[0]
    if count == batch_size or batch_size <= 1:
        return tensor[:batch_size]
    if count > batch_size:
        places = [round(i * ((count - 1) / (batch_size - 1))) for i in range(batch_size)]
    else:
        places = [math.floor((i + 0.5) * (count / batch_size)) for i in range(batch_size)]
    return tensor[[min(place, count - 1) for place in places]]


# --- inputs of the network, batched ----------------------------------------------------------------------------------


class BatchedInput(Protocol):
    """One named input of the network, which can be cut to an area and joined with those of other conditions."""

    cond: Any

    def process_cond(self, batch_size: int, area: Sequence[int] | None = None, **kwargs: object) -> BatchedInput: ...

    def can_concat(self, other: BatchedInput) -> bool: ...

    def concat(self, others: Sequence[BatchedInput]) -> object: ...

    def size(self) -> list[int]: ...


class RegularInput:
    """A tensor `[B, ...]` that has nothing to do with places."""

    def __init__(self, cond: torch.Tensor) -> None:
        self.cond = cond

    def process_cond(self, batch_size: int, area: Sequence[int] | None = None, **kwargs: object) -> RegularInput:
        return self.__class__(repeat_to_batch_size(self.cond, batch_size))

    def can_concat(self, other: Any) -> bool:
        return bool(self.cond.shape == other.cond.shape and self.cond.device == other.cond.device)

    def concat(self, others: Sequence[Any]) -> torch.Tensor:
        return torch.cat([self.cond, *(other.cond for other in others)])

    def size(self) -> list[int]:
        return list(self.cond.shape)


class NoiseShapedInput(RegularInput):
    """A tensor `[B, C, h, w]` of the latent's size, cut where the latent is cut."""

    def process_cond(self, batch_size: int, area: Sequence[int] | None = None, **kwargs: object) -> NoiseShapedInput:
        data = self.cond if area is None else narrow_to_area(self.cond, area)
        return self.__class__(repeat_to_batch_size(data, batch_size))


class CrossAttentionInput(RegularInput):
    """Tokens `[B, T, D]`. Lengths may differ: repeating keys and values leaves attention unchanged."""

    MAX_REPEATS = 4  # beyond that, padding costs more than a second call

    def can_concat(self, other: Any) -> bool:
        ours, theirs = self.cond.shape, other.cond.shape
        if self.cond.device != other.cond.device or ours[0] != theirs[0] or ours[2] != theirs[2]:
            return False
        return bool(math.lcm(ours[1], theirs[1]) // min(ours[1], theirs[1]) <= self.MAX_REPEATS)

    def concat(self, others: Sequence[Any]) -> torch.Tensor:
        tokens = [self.cond, *(other.cond for other in others)]
        length = math.lcm(*(item.shape[1] for item in tokens))
        return torch.cat(
            [item.repeat(1, length // item.shape[1], 1) if item.shape[1] < length else item for item in tokens]
        )


class ListInput:
    """Several tensors `[B, ...]`, each of a shape of its own."""

    def __init__(self, cond: Sequence[torch.Tensor]) -> None:
        self.cond = list(cond)

    def process_cond(self, batch_size: int, area: Sequence[int] | None = None, **kwargs: object) -> ListInput:
        return self.__class__([repeat_to_batch_size(item, batch_size) for item in self.cond])

    def can_concat(self, other: Any) -> bool:
        return [item.shape for item in self.cond] == [item.shape for item in other.cond]

    def concat(self, others: Sequence[Any]) -> list[torch.Tensor]:
        return [torch.cat(items) for items in zip(self.cond, *(other.cond for other in others), strict=True)]

    def size(self) -> list[int]:
        """Return the size of one tensor with as many numbers as all have, of the last one's channels."""
        channels = self.cond[-1].shape[1]
        return [1, channels, sum(item.numel() for item in self.cond) // channels]


class ConstantInput:
    """A value that is the same for the whole batch."""

    def __init__(self, cond: object) -> None:
        self.cond = cond

    def process_cond(self, batch_size: int, area: Sequence[int] | None = None, **kwargs: object) -> ConstantInput:
        return self

    def can_concat(self, other: Any) -> bool:
        return bool(self.cond == other.cond)

    def concat(self, others: Sequence[object]) -> object:
        return self.cond

    def size(self) -> list[int]:
        return [1]


# --- areas -----------------------------------------------------------------------------------------------------------


def narrow_to_area(tensor: torch.Tensor, area: Sequence[int], first_dim: int = 2) -> torch.Tensor:
    """Return the view of `tensor` that an area (sizes, then offsets) covers."""
    num_dims = len(area) // 2
    for dim in range(num_dims):
        tensor = tensor.narrow(dim + first_dim, area[num_dims + dim], area[dim])
    return tensor


def _resolve_area(condition: Condition, dims: Sequence[int]) -> Condition:
    """Convert an area given in shares of the image to latent cells."""
    area = condition.get("area")
    if area is None or area[0] != "percentage":
        return condition
    shares = area[1:]
    half = len(shares) // 2
    sizes = tuple(max(1, round(shares[i] * size)) for i, size in enumerate(dims))
    offsets = tuple(round(shares[half + i] * size) for i, size in enumerate(dims))
    return {**condition, "area": sizes + offsets}


def _resolve_mask(condition: Condition, dims: torch.Size, device: torch.device) -> Condition:
    """Resize a mask to the latent's size on its device; add an area just around it where that is asked for."""
    if "mask" not in condition:
        return condition
    mask = condition["mask"].to(device=device)
    if mask.ndim == len(dims):
        mask = mask.unsqueeze(0)
    if mask.shape[1:] != dims:
        planes = mask.unsqueeze(1) if mask.ndim < 4 else mask
        planes = torch.nn.functional.interpolate(planes, size=(dims[-2], dims[-1]), mode="bilinear")
        mask = planes.squeeze(1) if mask.ndim < 4 else planes
    resolved = {**condition, "mask": mask}
    if condition.get("set_area_to_bounds", False):
        resolved["area"] = _bounds(torch.max(torch.abs(mask), dim=0).values)
    return resolved


def _bounds(mask: torch.Tensor) -> tuple[int, int, int, int]:
    """Return the smallest area that covers all non-zero cells, at least 8 cells a side; an empty mask needs no more."""
    rows, columns = torch.where(mask)
    if rows.numel() == 0:
        return (8, 8, 0, 0)
    top, left = int(rows.min()), int(columns.min())
    return (max(8, int(rows.max()) - top + 1), max(8, int(columns.max()) - left + 1), top, left)


def _is_inside(area: Sequence[int], other: Sequence[int]) -> bool:
    half = len(area) // 2
    starts = all(area[half + i] >= other[half + i] for i in range(half))
    return starts and all(area[i] + area[half + i] <= other[i] + other[half + i] for i in range(half))


def _add_opposite_of(area_condition: Condition, others: list[Condition]) -> None:
    """Give the other side a condition of the same area, so that both can go through the network in one batch.

    Its content is that of the other side's smallest condition around the area.
    """
    area = area_condition.get("area")
    if area is None:
        return
    smallest: Condition | None = None
    for other in others:
        if "area" not in other:
            smallest = other if smallest is None else smallest
        elif _is_inside(area, other["area"]) and (
            smallest is None
            or "area" not in smallest
            or math.prod(smallest["area"][: len(smallest["area"]) // 2])
            > math.prod(other["area"][: len(other["area"]) // 2])
        ):
            smallest = other
    if smallest is None or smallest.get("area") == area:
        return
    others.append({**area_condition, "model_conds": dict(smallest["model_conds"])})


# --- preparing -------------------------------------------------------------------------------------------------------


@replaceable
def convert_conditioning(conditioning: Conditioning) -> list[Condition]:
    """Convert CONDITIONING as nodes pass it to conditions as guidance takes them."""
    conditions = []
    for tokens, options in conditioning:
        condition = dict(options)
        if tokens is not None:
            condition["cross_attn"] = tokens
        condition["model_conds"] = condition.get("model_conds", {})
        condition["uuid"] = uuid.uuid4()
        conditions.append(condition)
    return conditions


def _with_timestep_range(condition: Condition, model_sampling: Any) -> Condition:
    """Convert percentages of the way to noise levels."""
    start, end = condition.get("start_percent"), condition.get("end_percent")
    if "clip_start_percent" in condition:
        start = max(condition["clip_start_percent"], condition.get("start_percent", 0.0))
        end = min(condition["clip_end_percent"], condition.get("end_percent", 1.0))
    ranged = dict(condition)
    if start is not None:
        ranged["timestep_start"] = model_sampling.percent_to_sigma(start)
    if end is not None:
        ranged["timestep_end"] = model_sampling.percent_to_sigma(end)
    return ranged


def with_model_inputs(
    condition: Condition, model: Network, noise: torch.Tensor, device: torch.device, side: str, extra: Options
) -> Condition:
    """Add the network's inputs made from the condition (`model_conds`), on the device: no step brings them."""
    arguments = {**extra, **condition}
    arguments["device"] = device
    arguments["noise"] = noise
    arguments.setdefault("width", noise.shape[3] * 8 if noise.ndim > 3 else None)
    arguments.setdefault("height", noise.shape[2] * 8)
    arguments.setdefault("prompt_type", side)
    inputs = {**condition["model_conds"], **model.extra_conds(**arguments)}
    return {**condition, "model_conds": {name: on_device(value, device) for name, value in inputs.items()}}


def on_device(given: BatchedInput, device: torch.device) -> BatchedInput:
    """Return an input of the network with its tensors on the device; the one that is given stays as it is."""
    cond = getattr(given, "cond", None)
    moved = _moved(cond, device)
    if moved is cond:
        return given
    found = copy.copy(given)
    found.cond = moved
    return found


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if type(value) not in (list, tuple) or not any(isinstance(item, torch.Tensor) for item in value):
        return value
    return type(value)(_moved(item, device) for item in value)


def _spread_to_plain(given: Sequence[Condition], others: list[Condition], name: str) -> None:
    """Let conditions of the other side without `name` take part in it, as many as there are; see `control`."""
    values = [item[name] for item in given if "area" not in item and item.get(name) is not None]
    plain = [(index, item) for index, item in enumerate(others) if "area" not in item and item.get(name) is None]
    if not plain or any("area" not in item and item.get(name) is not None for item in others):
        return
    # With more values than plain conditions a later value takes the place of an earlier one: odd, but ComfyUI's.
    for turn, value in enumerate(values):
        index, item = plain[turn % len(plain)]
        others[index] = {**item, name: value}


@replaceable
def prepare_controls(model: Network, conditions: Sequence[Condition]) -> None:
    """Let the controls of conditions prepare for a run."""
    for condition in conditions:
        if "control" in condition:
            condition["control"].pre_run(model, model.model_sampling.percent_to_sigma)


@replaceable
def prepare_conditions(
    model: Network,
    noise: torch.Tensor,
    sides: Mapping[str, Sequence[Condition]],
    device: torch.device,
    latent_image: torch.Tensor | None = None,
    denoise_mask: torch.Tensor | None = None,
    seed: int | None = None,
    latent_shapes: Sequence[Sequence[int]] | None = None,
) -> dict[str, list[Condition]]:
    """Prepare the conditions of every side (`positive`, `negative`, ...) for `guidance.calc_cond_batch`.

    Resolves areas and masks to the latent's size, percentages to noise levels, makes the network's inputs, adds
    conditions of equal area to the other sides, and lets controls prepare. `latent_shapes` are those of the streams of
    a packed latent.
    """
    extra: dict[str, object] = {"latent_image": latent_image, "denoise_mask": denoise_mask, "seed": seed}
    if latent_shapes:
        extra["latent_shapes"] = latent_shapes
    prepared: dict[str, list[Condition]] = {}
    for side, conditions in sides.items():
        located = [_resolve_mask(_resolve_area(item, noise.shape[2:]), noise.shape[2:], device) for item in conditions]
        timed = [_with_timestep_range(item, model.model_sampling) for item in located]
        prepared[side] = [with_model_inputs(item, model, noise, device, side, extra) for item in timed]
    for side in prepared:
        for condition in list(prepared[side]):
            for other in prepared:
                if other != side:
                    _add_opposite_of(condition, prepared[other])
    for conditions in prepared.values():
        for condition in conditions:
            if condition.get("hooks") is not None:
                for hook in condition["hooks"].hooks:
                    hook.initialize_timesteps(model)
    for conditions in prepared.values():
        prepare_controls(model, conditions)
    for side, conditions in prepared.items():
        if side != "positive":
            positive = prepared.get("positive", [])
            both_sided = [item for item in positive if item.get("control_apply_to_uncond", False)]
            _spread_to_plain(both_sided, conditions, "control")
            _spread_to_plain(positive, conditions, "gligen")
    return prepared
