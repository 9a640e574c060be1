"""Sampling in whole steps: each a function of tensors alone, so that it can be captured and replayed.

A step is the guided evaluation of the network and the sampler's arithmetic. Noise levels, timesteps, random numbers and
the network's inputs are tensors that come from outside; what branches is decided before. So a step draws the bits of
the sampler's own loop, of which it calls the same functions. `engine/tuning` implements the runner of steps.

Shapes: `x`, `denoised` and `noise` `[B, C, h, w]`, `timestep` `[B]`, levels `[]` or few in a row.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch

from darkroom.engine.diffusion.conditions import Condition, ConstantInput, RegularInput
from darkroom.engine.diffusion.guidance import BATCH_MARGIN, calc_cond_batch, cfg_function, sampling_function
from darkroom.engine.diffusion.model_sampling_variants import RectifiedFlow
from darkroom.engine.diffusion.noise import NoiseSampler, default_noise_sampler
from darkroom.engine.diffusion.options import KNOWN_TIMESTEP, RECORDING_STEP, Network, OptionDict, Options
from darkroom.engine.diffusion.replacements import replacement_of
from darkroom.engine.diffusion.samplers.base import (
    ModelFunction,
    SamplerFunction,
    StepCallback,
    get_ancestral_step,
    report,
)
from darkroom.engine.diffusion.samplers.ode import dpmpp_2m_factors, dpmpp_2m_step, euler_ancestral_step, sample_euler
from darkroom.engine.diffusion.samplers.registry import declared_samplers
from darkroom.engine.diffusion.sampling_run import run_in
from darkroom.engine.diffusion.wrappers import APPLY_MODEL, CALC_COND_BATCH, DIFFUSION_MODEL, PREDICT_NOISE, wrappers_of

Tensors = dict[str, torch.Tensor]

FACTORS = "factors"  # of a step's tensors: the numbers that it takes of the levels [k]
CONSTANTS = (bool, int, float, str, type(None))
BRANCHING = ("area", "mask", "control", "gligen", "hooks", "timestep_start", "timestep_end", "default")
CFG_FUNCTIONS = (
    "sampler_cfg_function", "sampler_pre_cfg_function", "sampler_post_cfg_function", "sampler_calc_cond_batch_function",
    "model_function_wrapper", "context_handler", "registered_hooks",
)  # fmt: skip
WRAPPERS_IN_STEP = (PREDICT_NOISE, CALC_COND_BATCH, APPLY_MODEL, DIFFUSION_MODEL)


class StepRunner(Protocol):
    """Runner of the steps of one network."""

    def run(
        self, key: Hashable, tensors: Tensors, options: Options, work: Callable[[Tensors], torch.Tensor]
    ) -> torch.Tensor | None:
        """Return the result of `work` for the tensors; None where the caller is to call it.

        `key` has all besides the tensors and the transformer options that `work` depends on.
        """
        ...

    def refuse(self, reason: str) -> None:
        """Log why the steps of a run are none of tensors alone."""
        ...


@dataclass(frozen=True, slots=True)
class StepForm:
    """Form of a sampler as whole steps.

    `factors` are the numbers [] of step `i` from the levels [n + 1], both in the host's memory, as the sampler's own
    loop computes them. `given` returns the branch that the step takes, by its factors, and its further tensors, of the
    last denoised latent and the source of noise. `step` returns the next x and the denoised latent; `FACTORS` [k] are
    on the device then.
    """

    factors: Callable[[int, torch.Tensor], tuple[torch.Tensor, ...]]
    given: Callable[[tuple[torch.Tensor, ...], torch.Tensor | None, NoiseSampler], tuple[str, Tensors]]
    step: Callable[[ModelFunction, str, Tensors], tuple[torch.Tensor, torch.Tensor]]
    for_flow: bool = True


def _euler_factors(i: int, levels: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return levels[i], levels[i + 1]


def _euler_given(
    factors: tuple[torch.Tensor, ...], last: torch.Tensor | None, noise: NoiseSampler
) -> tuple[str, Tensors]:
    return "", {}


def _euler(model: ModelFunction, branch: str, given: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    seen: list[torch.Tensor] = []
    x = sample_euler(model, given["x"], given[FACTORS], callback=lambda state: seen.append(state["denoised"]))
    return x, seen[0]


def _ancestral_factors(i: int, levels: torch.Tensor) -> tuple[torch.Tensor, ...]:
    down, up = get_ancestral_step(levels[i], levels[i + 1])
    assert isinstance(up, torch.Tensor)
    return levels[i], levels[i + 1], down, up


def _ancestral_given(
    factors: tuple[torch.Tensor, ...], last: torch.Tensor | None, noise: NoiseSampler
) -> tuple[str, Tensors]:
    level, next_level, down, _ = factors
    return ("last", {}) if down == 0 else ("", {"noise": noise(level, next_level)})


def _ancestral(model: ModelFunction, branch: str, given: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    x = given["x"]
    level, _, down, up = given[FACTORS].unbind()
    denoised = model(x, level * x.new_ones([x.shape[0]]))
    if branch == "last":
        return denoised, denoised
    return euler_ancestral_step(x, denoised, level, down, given["noise"], up, 1.0), denoised


def _dpmpp_2m_factors(i: int, levels: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return levels[i], levels[i + 1], *dpmpp_2m_factors(levels[i - 1], levels[i], levels[i + 1])


def _dpmpp_2m_given(
    factors: tuple[torch.Tensor, ...], last: torch.Tensor | None, noise: NoiseSampler
) -> tuple[str, Tensors]:
    return ("first order", {}) if last is None or factors[1] == 0 else ("", {"last": last})


def _dpmpp_2m(model: ModelFunction, branch: str, given: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    x = given["x"]
    level, _, decay, gain, share = given[FACTORS].unbind()
    denoised = model(x, level * x.new_ones([x.shape[0]]))
    return dpmpp_2m_step(x, denoised, given.get("last"), decay, gain, share), denoised


FORMS: Mapping[SamplerFunction, StepForm] = {
    declared_samplers()[name].function: form
    for name, form in {
        "euler": StepForm(_euler_factors, _euler_given, _euler),
        "euler_ancestral": StepForm(_ancestral_factors, _ancestral_given, _ancestral, for_flow=False),
        "dpmpp_2m": StepForm(_dpmpp_2m_factors, _dpmpp_2m_given, _dpmpp_2m),
    }.items()
}
"""By the sampler function, called without options of its own."""


def obstacle(
    guider: Any, function: SamplerFunction, x: torch.Tensor, options: Options, *, is_plain: bool
) -> str | None:
    """Return the reason why a run's steps depend on more than tensors, or None; then its working memory is reserved.

    `is_plain` is False where the guider, the sampler's options or a mask are none of the usual ones.
    """
    form, inner = FORMS.get(function), options.get("transformer_options", {})
    network = guider.inner_model
    if form is None or (not form.for_flow and isinstance(network.model_sampling, RectifiedFlow)):
        return "the sampler has no form of whole steps"
    if not is_plain:
        return "the guider, a mask or options of the sampler are not the usual ones"
    if any(options.get(name) for name in CFG_FUNCTIONS):
        return "nodes have put functions into the guidance"
    if any(wrappers_of(kind, inner) for kind in WRAPPERS_IN_STEP) or any(inner.get("callbacks", {}).values()):
        return "the model has wrappers or callbacks"
    if any(replacement_of(item) is not item for item in (sampling_function, calc_cond_batch, cfg_function)):
        return "a node pack has replaced the guidance"
    run = run_in(options)
    if run.has_company:
        return "steps are shared with other requests"
    if run.record is not None:
        return "the steps are recorded to be resumed"
    return _obstacle_in(guider.conds) or _obstacle_in_memory(guider, x)


def _obstacle_in(conds: Mapping[str, Sequence[Condition]]) -> str | None:
    for condition in (item for side in conds.values() for item in side):
        if any(condition.get(name) is not None for name in BRANCHING) or condition.get("strength", 1.0) != 1.0:
            return "conditions have areas, masks, controls, hooks, strengths or ranges of steps"
        for value in condition["model_conds"].values():
            is_constant = type(value) is ConstantInput and _is_plain(value.cond)
            if not is_constant and not isinstance(value, RegularInput):
                return "the network has inputs that are no single tensors"
    return None


def _is_plain(value: object) -> bool:
    """Return True for a number or a text, or for tuples of these, which are the same where they read the same."""
    return all(map(_is_plain, value)) if type(value) is tuple else isinstance(value, CONSTANTS)


def _obstacle_in_memory(guider: Any, x: torch.Tensor) -> str | None:
    network: Network = guider.inner_model
    num_conditions = sum(len(side) for side in guider.conds.values())
    shape = [num_conditions * x.shape[0], *x.shape[1:]]
    if network.memory_required(shape) * BATCH_MARGIN >= network.current_patcher.free_bytes():
        return "memory is short for all conditions in one batch"
    network.current_patcher.begin_batch(shape, is_split=False)
    return None


def sample_in_steps(
    runner: StepRunner, guider: Any, function: SamplerFunction, x: torch.Tensor, sigmas: torch.Tensor,
    levels: torch.Tensor, options: OptionDict, seed: int | None, callback: StepCallback,
) -> torch.Tensor:  # fmt: skip
    """Return the latent at the last level, as `function` does, which has a form here.

    `sigmas` `[n + 1]` are on the latent's device, `levels` the same in the host's memory. What each step takes of them
    goes to the device once, for all steps.
    """
    form, num_steps = FORMS[function], len(levels) - 1
    factors = [form.factors(i, levels) for i in range(num_steps)]
    rows = torch.stack([torch.stack(row) for row in factors]).to(x.device) if factors else None  # [n, k]
    timesteps = guider.inner_model.model_sampling.timestep(sigmas).to(x.device)  # [n + 1]
    inputs, structure = _inputs_of(guider.conds)
    noise = default_noise_sampler(x, seed=seed)
    key = (function.__qualname__, form.step.__qualname__, float(guider.cfg), structure, _constants_of(options))
    last: torch.Tensor | None = None
    alone = replace(run_in(options), sharing=None)  # a step is made as a whole, also where other runs come meanwhile
    options = alone.in_options(options)
    for i, row in enumerate(() if rows is None else rows):
        guider.model_patcher.check_cancelled()
        branch, given = form.given(factors[i], last, noise)
        tensors = {**given, FACTORS: row, "x": x, "timestep": timesteps[i].expand(x.shape[0]).contiguous(), **inputs}
        work = partial(_step, form, branch, guider.inner_model, guider.conds, guider.cfg, options, seed)
        found = runner.run((key, branch), tensors, options["transformer_options"], partial(work, is_captured=True))
        after, last = (work(tensors) if found is None else found).unbind()
        report(callback, i, x, levels[i], levels[i], last)
        x = after
    return x


def _step(
    form: StepForm, branch: str, network: Network, conds: Mapping[str, Sequence[Condition]], cfg: float,
    options: OptionDict, seed: int | None, given: Tensors, *, is_captured: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Return the next x and the denoised latent `[2, B, C, h, w]` from a step's tensors."""
    own = _with_inputs(conds, given)
    known = {KNOWN_TIMESTEP: given["timestep"], RECORDING_STEP: is_captured}
    inner = {**options, "transformer_options": {**options["transformer_options"], **known}}

    def model(x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        return sampling_function(
            network, x, sigma, own.get("negative"), own.get("positive"), cfg, model_options=inner, seed=seed
        )

    return torch.stack(form.step(model, branch, given))


def _inputs_of(conds: Mapping[str, Sequence[Condition]]) -> tuple[Tensors, Hashable]:
    """Return the tensors of all conditions, and what else they are made of."""
    tensors: Tensors = {}
    rest: list[Hashable] = []
    for side, number, name, value in _values_of(conds):
        if isinstance(value, ConstantInput):
            rest.append((side, number, name, str(value.cond)))
        else:
            tensors[_place(side, number, name)] = value.cond
            rest.append((side, number, name, type(value).__qualname__))
    return tensors, tuple(rest)


def _values_of(conds: Mapping[str, Sequence[Condition]]) -> list[tuple[str, int, str, Any]]:
    return [
        (side, number, name, value)
        for side, conditions in sorted(conds.items())
        for number, condition in enumerate(conditions)
        for name, value in condition["model_conds"].items()
    ]


def _place(side: str, number: int, name: str) -> str:
    return f"{side}.{number}.{name}"


def _with_inputs(conds: Mapping[str, Sequence[Condition]], given: Tensors) -> dict[str, list[Condition]]:
    """Return the conditions with these tensors as the network's inputs."""
    changed: dict[str, list[Condition]] = {side: [dict(item) for item in items] for side, items in conds.items()}
    for side, number, name, value in _values_of(conds):
        if not isinstance(value, ConstantInput):
            own = changed[side][number]
            own["model_conds"] = {**own["model_conds"], name: type(value)(given[_place(side, number, name)])}
    return changed


def _constants_of(options: Options) -> Hashable:
    return tuple(sorted((key, str(value)) for key, value in options.items() if isinstance(value, CONSTANTS)))
