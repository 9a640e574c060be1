"""SIGMAS: schedules of noise levels, and operations on them before sampling."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Annotated

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.diffusion import sigmas as schedules
from darkroom.engine.diffusion.choices import calculate_sigmas
from darkroom.engine.diffusion.gits_levels import gits_levels
from darkroom.engine.diffusion.sigma_tables import ALIGN_YOUR_STEPS, OPTIMAL_STEPS, align_your_steps, optimal_steps
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.sampling.sampling import ScheduleCombo
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.sockets import FLOAT, MODEL, SIGMAS
from darkroom.engine.nodes.widgets import Combo, Flag, Float, Int, Text

SCHEDULERS = "model/sampling/schedulers"
ARITHMETIC = "model/sampling/sigmas"
MODULE = "comfy_extras.nodes_custom_sampler"
NUMBER = re.compile(r"[-+]?(?:\d*\.*\d+)")
HIGHEST, LOWEST = 14.614642, 0.0291675  # of latent diffusion's 1000 timesteps

Steps = Annotated[int, Int(min=1, max=10000)]
Level = Annotated[float, Float(min=0.0, max=5000.0, step=0.01, round=False)]
Denoise = Annotated[float, Float(min=0.0, max=1.0, step=0.01)]


# --- schedules -------------------------------------------------------------------------------------------------------


@node("BasicScheduler", display_name=None, category=SCHEDULERS, python_module=MODULE)
def basic_scheduler(
    context: NodeContext,
    *,
    model: MODEL,
    scheduler: Annotated[str, ScheduleCombo()],
    steps: Steps = 20,
    denoise: Denoise = 1.0,
) -> SIGMAS:
    if denoise <= 0.0:
        return torch.FloatTensor([])
    total = steps if denoise >= 1.0 else int(steps / denoise)
    sigmas = calculate_sigmas(model.get_model_object("model_sampling"), scheduler, total).cpu()
    return sigmas[-(steps + 1) :]


@node(
    "KarrasScheduler",
    display_name=None,
    category=SCHEDULERS,
    python_module=MODULE,
    advanced=("sigma_max", "sigma_min", "rho"),
)
def karras_scheduler(
    context: NodeContext,
    *,
    steps: Steps = 20,
    sigma_max: Level = HIGHEST,
    sigma_min: Level = LOWEST,
    rho: Annotated[float, Float(min=0.0, max=100.0, step=0.01, round=False)] = 7.0,
) -> SIGMAS:
    return schedules.karras(steps, sigma_min, sigma_max, rho)


@node(
    "ExponentialScheduler",
    display_name=None,
    category=SCHEDULERS,
    python_module=MODULE,
    advanced=("sigma_max", "sigma_min"),
)
def exponential_scheduler(
    context: NodeContext, *, steps: Steps = 20, sigma_max: Level = HIGHEST, sigma_min: Level = LOWEST
) -> SIGMAS:
    return schedules.exponential(steps, sigma_min, sigma_max)


@node(
    "PolyexponentialScheduler",
    display_name=None,
    category=SCHEDULERS,
    python_module=MODULE,
    advanced=("sigma_max", "sigma_min", "rho"),
)
def polyexponential_scheduler(
    context: NodeContext,
    *,
    steps: Steps = 20,
    sigma_max: Level = HIGHEST,
    sigma_min: Level = LOWEST,
    rho: Annotated[float, Float(min=0.0, max=100.0, step=0.01, round=False)] = 1.0,
) -> SIGMAS:
    return schedules.polyexponential(steps, sigma_min, sigma_max, rho)


@node(
    "LaplaceScheduler",
    display_name=None,
    category=SCHEDULERS,
    python_module=MODULE,
    advanced=("sigma_max", "sigma_min", "mu", "beta"),
)
def laplace_scheduler(
    context: NodeContext,
    *,
    steps: Steps = 20,
    sigma_max: Level = HIGHEST,
    sigma_min: Level = LOWEST,
    mu: Annotated[float, Float(min=-10.0, max=10.0, step=0.1, round=False)] = 0.0,
    beta: Annotated[float, Float(min=0.0, max=10.0, step=0.1, round=False)] = 0.5,
) -> SIGMAS:
    return schedules.laplace(steps, sigma_min, sigma_max, mu, beta)


@node(
    "VPScheduler",
    display_name=None,
    category=SCHEDULERS,
    python_module=MODULE,
    advanced=("beta_d", "beta_min", "eps_s"),
)
def vp_scheduler(
    context: NodeContext,
    *,
    steps: Steps = 20,
    beta_d: Level = 19.9,
    beta_min: Level = 0.1,
    eps_s: Annotated[float, Float(min=0.0, max=1.0, step=0.0001, round=False)] = 0.001,
) -> SIGMAS:
    return schedules.variance_preserving(steps, beta_d, beta_min, eps_s)


@node("BetaSamplingScheduler", display_name=None, category=SCHEDULERS, python_module=MODULE, advanced=("alpha", "beta"))
def beta_scheduler(
    context: NodeContext,
    *,
    model: MODEL,
    steps: Steps = 20,
    alpha: Annotated[float, Float(min=0.0, max=50.0, step=0.01, round=False)] = 0.6,
    beta: Annotated[float, Float(min=0.0, max=50.0, step=0.01, round=False)] = 0.6,
) -> SIGMAS:
    return schedules.beta(model.get_model_object("model_sampling"), steps, alpha=alpha, beta=beta)


@node("SDTurboScheduler", display_name=None, category=SCHEDULERS, python_module=MODULE)
def sd_turbo_scheduler(
    context: NodeContext,
    *,
    model: MODEL,
    steps: Annotated[int, Int(min=1, max=10)] = 1,
    denoise: Annotated[float, Float(min=0, max=1.0, step=0.01)] = 1.0,
) -> SIGMAS:
    return schedules.turbo(model.get_model_object("model_sampling"), steps, denoise)


@node("AlignYourStepsScheduler", display_name=None, category=SCHEDULERS,
      python_module="comfy_extras.nodes_align_your_steps")  # fmt: skip
def align_your_steps_scheduler(
    context: NodeContext,
    *,
    model_type: Annotated[str, Combo(tuple(ALIGN_YOUR_STEPS))],
    steps: Steps = 10,
    denoise: Denoise = 1.0,
) -> SIGMAS:
    return _last_part(align_your_steps(model_type, steps), steps, denoise)


@node(
    "GITSScheduler",
    display_name=None,
    category=SCHEDULERS,
    python_module="comfy_extras.nodes_gits",
    advanced=("coeff",),
)
def gits_scheduler(
    context: NodeContext,
    *,
    coeff: Annotated[float, Float(min=0.80, max=1.50, step=0.05)] = 1.20,
    steps: Annotated[int, Int(min=2, max=1000)] = 10,
    denoise: Denoise = 1.0,
) -> SIGMAS:
    return _last_part(gits_levels(coeff, steps), steps, denoise)


@node("OptimalStepsScheduler", display_name=None, category=SCHEDULERS,
      python_module="comfy_extras.nodes_optimalsteps")  # fmt: skip
def optimal_steps_scheduler(
    context: NodeContext,
    *,
    model_type: Annotated[str, Combo(tuple(OPTIMAL_STEPS))],
    steps: Annotated[int, Int(min=3, max=1000)] = 20,
    denoise: Denoise = 1.0,
) -> SIGMAS:
    return _last_part(optimal_steps(model_type, steps), steps, denoise)


def _last_part(levels: list[float], steps: int, denoise: float) -> torch.Tensor:
    """Return the last fraction `denoise` of the steps, ending in 0.

    Unlike BasicScheduler's, `denoise` reduces the number of steps.
    """
    if denoise <= 0.0:
        return torch.FloatTensor([])
    kept = steps if denoise >= 1.0 else round(steps * denoise)
    return torch.FloatTensor([*levels[-(kept + 1) : -1], 0.0])


# --- arithmetic ------------------------------------------------------------------------------------------------------

HighSigmas = Annotated[SIGMAS, Out("high_sigmas")]
LowSigmas = Annotated[SIGMAS, Out("low_sigmas")]


@node("SplitSigmas", display_name=None, category=ARITHMETIC, python_module=MODULE, facts=NodeFacts(first_steps="step"))
def split_sigmas(
    context: NodeContext, *, sigmas: SIGMAS, step: Annotated[int, Int(min=0, max=10000)] = 0
) -> tuple[HighSigmas, LowSigmas]:
    return sigmas[: step + 1], sigmas[step:]


@node("SplitSigmasDenoise", display_name=None, category=ARITHMETIC, python_module=MODULE)
def split_sigmas_denoise(
    context: NodeContext, *, sigmas: SIGMAS, denoise: Denoise = 1.0
) -> tuple[HighSigmas, LowSigmas]:
    """Split sigmas at a denoise fraction; both parts contain the level between them.

    At a denoise of 0 the high part is empty, as in ComfyUI.
    """
    steps = round(max(sigmas.shape[-1] - 1, 0) * denoise)
    high = sigmas[:-steps] if steps else sigmas[:0]
    return high, sigmas[-(steps + 1) :]


@node("FlipSigmas", display_name=None, category=ARITHMETIC, python_module=MODULE)
def flip_sigmas(context: NodeContext, *, sigmas: SIGMAS) -> SIGMAS:
    """Reverse sigmas, for sampling back to noise.

    A first level of 0 becomes 0.0001, since sampling would stop there.
    """
    flipped = sigmas.flip(0)
    if len(flipped) and flipped[0] == 0:
        flipped[0] = 0.0001
    return flipped


@node("SetFirstSigma", display_name=None, category=ARITHMETIC, python_module=MODULE)
def set_first_sigma(
    context: NodeContext,
    *,
    sigmas: SIGMAS,
    sigma: Annotated[float, Float(min=0.0, max=20000.0, step=0.001, round=False)] = 136.0,
) -> SIGMAS:
    changed = sigmas.clone()
    changed[0] = sigma
    return changed


SPACINGS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "linear": lambda share: share,
    "cosine": lambda share: torch.sin(share * math.pi / 2),
    "sine": lambda share: 1 - torch.cos(share * math.pi / 2),
}


@node("ExtendIntermediateSigmas", display_name=None, category=ARITHMETIC, python_module=MODULE)
def extend_intermediate_sigmas(
    context: NodeContext,
    *,
    sigmas: SIGMAS,
    steps: Annotated[int, Int(min=1, max=100)] = 2,
    start_at_sigma: Annotated[float, Float(min=-1.0, max=20000.0, step=0.01, round=False)] = -1.0,
    end_at_sigma: Annotated[float, Float(min=0.0, max=20000.0, step=0.01, round=False)] = 12.0,
    spacing: Annotated[str, Combo(tuple(SPACINGS))],
) -> SIGMAS:
    """Split every step that begins between the two levels into `steps` steps. A negative start means no limit."""
    highest = math.inf if start_at_sigma < 0 else start_at_sigma
    shares = SPACINGS[spacing](torch.linspace(0, 1, steps + 1, device=sigmas.device)[1:-1])
    extended: list[float] = []
    for current, following in zip(sigmas[:-1], sigmas[1:], strict=True):
        extended.append(float(current))
        if end_at_sigma <= current <= highest:
            extended.extend((shares * (following - current) + current).tolist())
    return torch.FloatTensor([*extended, *sigmas[-1:].tolist()])


@node("SamplingPercentToSigma", display_name=None, category=ARITHMETIC, python_module=MODULE)
def sampling_percent_to_sigma(
    context: NodeContext,
    *,
    model: MODEL,
    sampling_percent: Annotated[float, Float(min=0.0, max=1.0, step=0.0001)] = 0.0,
    return_actual_sigma: Annotated[bool, Flag()] = False,
) -> Annotated[FLOAT, Out("sigma_value")]:
    """Return the noise level at a fraction of sampling.

    At the ends it is the value that ranges are checked against, or the actual level with `return_actual_sigma`.
    """
    sampling = model.get_model_object("model_sampling")
    if return_actual_sigma and sampling_percent in (0.0, 1.0):
        return float(sampling.sigma_max if sampling_percent == 0.0 else sampling.sigma_min)
    return float(sampling.percent_to_sigma(sampling_percent))


@node("ManualSigmas", display_name=None, category="model/sampling/sigmas", python_module=MODULE, experimental=True,
      comfyui_version="0.30.0")  # fmt: skip
def manual_sigmas(context: NodeContext, *, sigmas: Annotated[str, Text(multiline=False)] = "1, 0.5") -> SIGMAS:
    """Return the numbers in a text, in its order, float32."""
    return torch.FloatTensor([float(number) for number in NUMBER.findall(sigmas)])


NODES = (
    basic_scheduler, karras_scheduler, exponential_scheduler, polyexponential_scheduler, laplace_scheduler,
    vp_scheduler, beta_scheduler, sd_turbo_scheduler, align_your_steps_scheduler, gits_scheduler,
    optimal_steps_scheduler, split_sigmas,
    split_sigmas_denoise, flip_sigmas, set_first_sigma, extend_intermediate_sigmas, sampling_percent_to_sigma,
    manual_sigmas,
)  # fmt: skip
