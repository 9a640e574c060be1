"""One evaluation of the guided model: conditions in batches, their results weighed together, then guidance.

Shapes: `x` and every prediction `[B, C, h, w]`, `sigma` `[B]`. The dictionaries that functions of nodes get carry
ComfyUI's keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, Condition, narrow_to_area
from darkroom.engine.diffusion.host_levels import on_host, repeated
from darkroom.engine.diffusion.options import Network, Options
from darkroom.engine.diffusion.replacements import replaceable
from darkroom.engine.diffusion.sampling_run import run_in
from darkroom.engine.diffusion.windowed_batches import CONTEXT_HANDLER
from darkroom.engine.diffusion.wrappers import CALC_COND_BATCH, callbacks_of, merge_options, wrapped

FEATHER_CELLS = 8  # how far the edges of an area without a mask fade
BOX_PATCHES = "gligen_patches"  # of a prepared condition: what was made of its boxes, by shape and device
EPSILON = 1e-37  # keeps cells that no condition covers from being 0 / 0


@dataclass(frozen=True, slots=True)
class Part:
    """One condition's share in one evaluation. `weight` is None where it would be 1 everywhere."""

    x: torch.Tensor
    weight: torch.Tensor | None
    inputs: Mapping[str, BatchedInput]
    area: tuple[int, ...] | None
    control: Any
    patches: Mapping[str, list[Any]] | None
    uuid: Any
    hooks: object

    @property
    def input_x(self) -> torch.Tensor:
        """The part of the latent that it computes, by ComfyUI's name."""
        return self.x

    @property
    def mult(self) -> torch.Tensor:
        """The weight of each cell, by ComfyUI's name."""
        return torch.ones_like(self.x) if self.weight is None else self.weight

    @property
    def conditioning(self) -> Mapping[str, BatchedInput]:
        """The inputs of the network, by ComfyUI's name."""
        return self.inputs

    def can_join(self, other: Part) -> bool:
        """Return True where both can go through the network in one batch."""
        return (
            self.x.shape == other.x.shape
            and self.control is other.control
            and self.patches is other.patches
            and self.inputs.keys() == other.inputs.keys()
            and all(value.can_concat(other.inputs[name]) for name, value in self.inputs.items())
        )


@replaceable
def part_of(condition: Condition, x: torch.Tensor, sigma: torch.Tensor) -> Part | None:
    """Return the part that a condition computes at this noise level; None outside its range of noise levels."""
    if "timestep_start" in condition and on_host(sigma)[0] > condition["timestep_start"]:
        return None
    if "timestep_end" in condition and on_host(sigma)[0] < condition["timestep_end"]:
        return None
    area = _clipped_area(condition["area"], x.shape[2:]) if "area" in condition else None
    inner = x if area is None else narrow_to_area(x, area)
    inputs = {
        name: value.process_cond(batch_size=x.shape[0], area=area) for name, value in condition["model_conds"].items()
    }
    return Part(
        x=inner,
        weight=_weight(condition, inner, area, x.shape[2:]),
        inputs=inputs,
        area=area,
        control=condition.get("control"),
        patches=_gligen_patches(condition, inner),
        uuid=condition.get("uuid"),
        hooks=condition.get("hooks"),
    )


def _clipped_area(area: Sequence[int], dims: Sequence[int]) -> tuple[int, ...]:
    """Return the part of an area (sizes, then offsets) that is in the image, in all frames of a video."""
    half, num_dims = len(area) // 2, len(dims)
    if half < num_dims:
        missing = num_dims - half
        area, half = (*dims[:missing], *area[:half], *(0,) * missing, *area[half:]), num_dims
    offsets = [area[half + i] for i in range(num_dims)]
    return (*(min(dims[i] - offsets[i], area[i]) for i in range(num_dims)), *offsets)


def _weight(
    condition: Condition, inner: torch.Tensor, area: Sequence[int] | None, dims: Sequence[int]
) -> torch.Tensor | None:
    strength = condition.get("strength", 1.0)
    if "mask" in condition:
        mask: torch.Tensor = condition["mask"][: inner.shape[0]]
        if area is not None:
            mask = narrow_to_area(mask, area, first_dim=1)
        mask = (mask * condition.get("mask_strength", 1.0)).unsqueeze(1)
        repeats = (inner.shape[0] // mask.shape[0], inner.shape[1]) + (1,) * (mask.ndim - 2)
        masked: torch.Tensor = mask.repeat(repeats) * strength
        return masked
    if area is None:
        return None if strength == 1.0 else torch.full_like(inner, strength)
    weight = torch.full_like(inner, strength)
    _feather(weight, area, dims)
    return weight


def _feather(weight: torch.Tensor, area: Sequence[int], dims: Sequence[int]) -> None:
    """Fade the edges that are not on the image's border, in place."""
    for i, size in enumerate(dims):
        width = min(FEATHER_CELLS, weight.shape[2 + i] // 4)
        for cell in range(width):
            factor = (1.0 / width) * (cell + 1)
            if area[len(dims) + i] != 0:
                weight.narrow(i + 2, cell, 1).mul_(factor)
            if area[i] + area[len(dims) + i] < size:
                weight.narrow(i + 2, area[i] - 1 - cell, 1).mul_(factor)


def _gligen_patches(condition: Condition, inner: torch.Tensor) -> dict[str, list[object]] | None:
    """Return the patch of a condition's boxes, which is made once a run for each shape of the latent."""
    if "gligen" not in condition:
        return None
    made: dict[Any, dict[str, list[object]]] = condition.setdefault(BOX_PATCHES, {})
    key = inner.shape, inner.device
    if key not in made:
        kind, patcher, *rest = condition["gligen"]
        model = patcher.model
        patch = (
            model.set_position(inner.shape, rest[0], inner.device)
            if kind == "position"
            else model.set_empty(inner.shape, inner.device)
        )
        made[key] = {"middle_patch": [patch]}
    return made[key]


# --- all conditions of all sides -------------------------------------------------------------------------------------

Waiting = dict[Any, list[tuple[Part, int]]]  # hooks -> (part, index of its side)


@replaceable
def calc_cond_batch(
    model: Network,
    conds: Sequence[Sequence[Condition] | None],
    x_in: torch.Tensor,
    timestep: torch.Tensor,
    model_options: Options,
) -> list[torch.Tensor]:
    """Return the denoised latent of each side: its conditions' predictions averaged by weight. None gives zeros.

    `timestep` is sigma (ComfyUI's name for it). Conditions that fit together run in one batch.
    """
    return run_in(model_options).answers(
        conds, x_in, model_options, lambda options: _windowed_batch(model, conds, x_in, timestep, options)
    )


def _windowed_batch(
    model: Network,
    conds: Sequence[Sequence[Condition] | None],
    x_in: torch.Tensor,
    timestep: torch.Tensor,
    model_options: Options,
) -> list[torch.Tensor]:
    handler = model_options.get(CONTEXT_HANDLER)
    if handler is not None and handler.should_use_context(model, conds, x_in, timestep, model_options):
        results: list[torch.Tensor] = handler.execute(_wrapped_batch, model, conds, x_in, timestep, model_options)
        return results
    return _wrapped_batch(model, conds, x_in, timestep, model_options)


def _wrapped_batch(
    model: Network,
    conds: Sequence[Sequence[Condition] | None],
    x_in: torch.Tensor,
    timestep: torch.Tensor,
    model_options: Options,
) -> list[torch.Tensor]:
    options = model_options.get("transformer_options", {})
    results: list[torch.Tensor] = wrapped(CALC_COND_BATCH, options, _calc_cond_batch)(
        model, conds, x_in, timestep, model_options
    )
    return results


def _calc_cond_batch(
    model: Network,
    conds: Sequence[Sequence[Condition] | None],
    x_in: torch.Tensor,
    timestep: torch.Tensor,
    model_options: Options,
) -> list[torch.Tensor]:
    waiting = _collect_parts(conds, x_in, timestep)
    _prepare_hooks(waiting, model, timestep, model_options)
    for callback in callbacks_of("on_prepare_state", model_options.get("transformer_options", {})):
        callback(model.current_patcher, timestep)
    results: list[list[tuple[torch.Tensor, Part]]] = [[] for _ in conds]
    for hooks, parts in waiting.items():
        while parts:
            batch = _take_batch(parts, model)
            outputs = _run_batch(model, batch, timestep, model_options, hooks)
            for (part, side), output in zip(batch, outputs, strict=True):
                results[side].append((output, part))
    return [_average(found, x_in) for found in results]


def _collect_parts(conds: Sequence[Sequence[Condition] | None], x: torch.Tensor, sigma: torch.Tensor) -> Waiting:
    waiting: Waiting = {}
    defaults: list[list[Condition]] = []
    for side, conditions in enumerate(conds):
        defaults.append([item for item in conditions or () if "default" in item])
        for condition in conditions or ():
            if "default" in condition:
                continue
            part = part_of(condition, x, sigma)
            if part is not None:
                waiting.setdefault(part.hooks, []).append((part, side))
    for side, conditions in enumerate(defaults):
        if conditions:
            _add_defaults(waiting, side, conditions, x, sigma)
    return waiting


def _prepare_hooks(waiting: Waiting, model: Network, sigma: torch.Tensor, model_options: Options) -> None:
    """Bring hooks to the strengths they have at this noise level."""
    for hooks in waiting:
        if hooks is not None:
            model.current_patcher.prepare_hook_patches_current_keyframe(sigma, hooks, model_options)


def _add_defaults(
    waiting: Waiting, side: int, conditions: Sequence[Condition], x: torch.Tensor, sigma: torch.Tensor
) -> None:
    """Weigh default conditions of a side by the share that its other ones leave."""
    rest = torch.ones_like(x)
    for part, part_side in [entry for parts in waiting.values() for entry in parts]:
        if part_side == side:
            place = rest if part.area is None else narrow_to_area(rest, part.area)
            place -= 1.0 if part.weight is None else part.weight
    rest = rest.relu_()
    if not bool(rest.any()):
        return
    for condition in conditions:
        found = part_of(condition, x, sigma)
        if found is not None:
            waiting.setdefault(found.hooks, []).append((replace(found, weight=rest), side))


REFERENCES = "ref_latents"  # the input of a network that sees reference images
BATCH_MARGIN = 1.5  # how many times the estimate has to be free for conditions to run in one batch


def _take_batch(parts: list[tuple[Part, int]], model: object) -> list[tuple[Part, int]]:
    """Take the first part and all that can join it, as far as memory allows, last first (ComfyUI's order)."""
    first = parts[0][0]
    joining = [index for index, (part, _) in enumerate(parts) if part.can_join(first)][::-1]
    chosen = joining[: _num_together(model, first, len(joining))]
    shape = [len(chosen) * first.x.shape[0], *first.x.shape[1:]]
    _tell_patcher(model, shape, _reference_shapes(first, len(chosen)), is_split=len(chosen) < len(joining))
    return [parts.pop(index) for index in chosen]


def _num_together(model: object, first: Part, num_joining: int) -> int:
    """Return the number of parts, of those that can join the first one, that fit into memory at once.

    Decided once while the model is in use: asking a device takes as long as a good part of a small step, and a run that
    fails is repeated.
    """
    patcher = getattr(model, "current_patcher", None)
    if patcher is None or num_joining == 1:
        return num_joining
    decided: dict[Any, int] = patcher.batch_sizes
    if first.hooks is not None:
        decided.clear()  # hooks may keep patched weights on the device, which leaves less room to all
        return _largest_fitting(model, first, num_joining, float(patcher.free_bytes()))
    key = (first.x.shape, num_joining)
    if key not in decided:
        decided[key] = _largest_fitting(model, first, num_joining, float(patcher.free_bytes()))
    return decided[key]


def _largest_fitting(model: Network, part: Part, num_joining: int, free_bytes: float) -> int:
    """Return the number, or its half, third and so on, whose working memory fits; at the least one."""
    for divisor in range(1, num_joining):
        num_parts = num_joining // divisor
        shape = [num_parts * part.x.shape[0], *part.x.shape[1:]]
        references = _reference_shapes(part, num_parts)
        beside = {"cond_shapes": {REFERENCES: references}} if references else {}
        if model.memory_required(shape, **beside) * BATCH_MARGIN < free_bytes:
            return num_parts
    return 1


def _reference_shapes(part: Part, num_parts: int) -> list[Sequence[int]]:
    """Return the shapes of the reference latents of so many parts like this one."""
    found = part.inputs.get(REFERENCES)
    return [] if found is None else [latent.shape for latent in found.cond] * num_parts


def _tell_patcher(model: object, shape: list[int], references: list[Sequence[int]], *, is_split: bool) -> None:
    patcher = getattr(model, "current_patcher", None)
    if patcher is not None:
        beside = {"references": references} if references else {}
        patcher.begin_batch(shape, is_split=is_split, **beside)


def _run_batch(
    model: Network, batch: Sequence[tuple[Part, int]], sigma: torch.Tensor, model_options: Options, hooks: object
) -> Iterable[torch.Tensor]:
    x = torch.cat([part.x for part, _ in batch])
    sigmas = repeated(sigma, len(batch))
    sides = [side for _, side in batch]
    first = batch[0][0]
    arguments = {
        name: value.concat([part.inputs[name] for part, _ in batch[1:]]) for name, value in first.inputs.items()
    }
    patcher = getattr(model, "current_patcher", None)
    hooked = {} if patcher is None else patcher.apply_hooks(hooks=hooks)
    options = merge_options(hooked, model_options.get("transformer_options", {}))
    if batch[-1][0].patches is not None:
        options = merge_options(options, {"patches": batch[-1][0].patches})
    options["cond_or_uncond"] = sides
    options["uuids"] = [part.uuid for part, _ in batch]
    options["sigmas"] = sigma
    arguments["transformer_options"] = options
    if first.control is not None:
        arguments["control"] = first.control.get_control(x, sigmas, arguments, len(batch), options)
    wrapper: Callable[..., Any] | None = model_options.get("model_function_wrapper")

    def evaluate() -> torch.Tensor:
        if wrapper is not None:
            call = {"input": x, "timestep": sigmas, "c": arguments, "cond_or_uncond": sides}
            output: torch.Tensor = wrapper(model.apply_model, call)
        else:
            output = model.apply_model(x, sigmas, **arguments)
        return output

    run = run_in(model_options)
    return run.evaluated(model, x, sigmas, arguments, model_options, evaluate).chunk(len(batch))


def _average(found: Sequence[tuple[torch.Tensor, Part]], x: torch.Tensor) -> torch.Tensor:
    """Average predictions by weight. A single one of weight 1 is its own average, to the bit."""
    if len(found) == 1 and found[0][1].area is None and found[0][1].weight is None:
        return found[0][0]
    total, weights = torch.zeros_like(x), torch.full_like(x, EPSILON)
    for output, part in found:
        weight = torch.ones_like(output) if part.weight is None else part.weight
        (total if part.area is None else narrow_to_area(total, part.area)).add_(output * weight)
        (weights if part.area is None else narrow_to_area(weights, part.area)).add_(weight)
    return total.div_(weights)


# --- guidance --------------------------------------------------------------------------------------------------------


@replaceable
def cfg_function(
    model: Network,
    cond_pred: torch.Tensor,
    uncond_pred: torch.Tensor,
    cond_scale: float,
    x: torch.Tensor,
    timestep: torch.Tensor,
    model_options: Options | None = None,
    cond: object = None,
    uncond: object = None,
) -> torch.Tensor:
    """Guide without a classifier (Ho and Salimans 2022, arXiv 2207.12598) in x0, or by a node's own function."""
    options = model_options or {}
    common = {
        "cond_scale": cond_scale, "input": x, "sigma": timestep, "cond_denoised": cond_pred,
        "uncond_denoised": uncond_pred, "model": model, "model_options": options,
    }  # fmt: skip
    if "sampler_cfg_function" in options:
        noise = {"cond": x - cond_pred, "uncond": x - uncond_pred, "timestep": timestep}
        arguments = {**common, **noise, "input_cond": cond, "input_uncond": uncond}
        result: torch.Tensor = x - options["sampler_cfg_function"](arguments)
    else:
        result = uncond_pred + (cond_pred - uncond_pred) * cond_scale
    for function in options.get("sampler_post_cfg_function", ()):
        result = function({**common, "denoised": result, "cond": cond, "uncond": uncond})
    return result


@replaceable
def sampling_function(
    model: Network,
    x: torch.Tensor,
    timestep: torch.Tensor,
    uncond: Sequence[Condition] | None,
    cond: Sequence[Condition] | None,
    cond_scale: float,
    model_options: Options | None = None,
    seed: int | None = None,
) -> torch.Tensor:
    """Return the denoised latent under guidance. At scale 1 the negative side is computed only if a node needs it."""
    options = model_options or {}
    skips_uncond = math.isclose(cond_scale, 1.0) and not options.get("disable_cfg1_optimization", False)
    conds = [cond, None if skips_uncond else uncond]
    common = {"conds": conds, "input": x, "sigma": timestep, "model": model, "model_options": options}
    if "sampler_calc_cond_batch_function" in options:
        out = options["sampler_calc_cond_batch_function"](common)
    else:
        out = calc_cond_batch(model, conds, x, timestep, options)
    for function in options.get("sampler_pre_cfg_function", ()):
        out = function({**common, "conds_out": out, "cond_scale": cond_scale, "timestep": timestep})
    return cfg_function(model, out[0], out[1], cond_scale, x, timestep, options, cond=conds[0], uncond=conds[1])
