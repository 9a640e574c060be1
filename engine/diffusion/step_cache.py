"""Steps that are skipped because little would change: EasyCache (Zhou et al. 2025, arXiv 2507.02860) and LazyCache.

Both watch how fast the output moves with the input (the relative transformation rate) and, while the change that this
predicts adds up to less than a threshold, give the input plus the last known difference instead of an evaluation.
EasyCache does so for the network and each condition, LazyCache (ComfyUI's) for the whole guided prediction. Both are
wrappers (`wrappers.py`); their state lives for one sampling run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from darkroom.engine.diffusion.host_levels import on_host
from darkroom.engine.diffusion.wrappers import copy_options

LOGGER = logging.getLogger(__name__)
KEY = "easycache"  # in transformer_options; ComfyUI's name for both kinds
STRIDE_CELLS = 8  # changes are measured on every eighth cell
IMAGE_DIMENSIONS = 4  # of a latent


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """From `start_percent` to `end_percent` of the way steps may be skipped."""

    name: str
    reuse_threshold: float
    start_percent: float
    end_percent: float
    is_verbose: bool


@dataclass(slots=True)
class ChangeWatch:
    """Rate of change of outputs with inputs, and the predicted change skipped since the last evaluation."""

    threshold: float
    rate: torch.Tensor | float | None = None  # output change per input change
    passed: torch.Tensor | float = 0.0
    last_input: torch.Tensor | None = None  # sampled
    last_output: torch.Tensor | None = None  # sampled
    last_norm: torch.Tensor | None = None  # mean magnitude of the whole output

    def input_change(self, sampled: torch.Tensor) -> torch.Tensor | None:
        return None if self.last_input is None else (sampled - self.last_input).abs().mean()

    def may_skip(self, change: torch.Tensor | None) -> bool:
        """Add a predicted change; return True while their sum since the last evaluation is below the threshold."""
        if change is None or self.last_norm is None or self.rate is None:
            return False
        self.passed = self.passed + self.rate * change / self.last_norm
        if bool(self.passed < self.threshold):
            return True
        self.passed = 0.0
        return False

    def learn(self, change: torch.Tensor | None, sampled_output: torch.Tensor) -> None:
        """Set the rate of this step, once there are two to compare."""
        if change is not None and self.last_output is not None:
            self.rate = (sampled_output - self.last_output).abs().mean() / change

    def keep(self, sampled_input: torch.Tensor, sampled_output: torch.Tensor, output: torch.Tensor) -> None:
        self.last_input, self.last_output = sampled_input.clone(), sampled_output.clone()
        self.last_norm = output.abs().mean()


@dataclass(slots=True)
class CacheRun:
    """The state of one sampling run."""

    settings: CacheSettings
    start_sigma: float
    end_sigma: float
    watch: ChangeWatch
    differences: dict[Any, torch.Tensor] = field(default_factory=dict)  # condition (None: guided) -> output less input
    leader: Any = None  # the condition whose change decides for all
    is_skipping: bool = False
    num_skipped: int = 0
    shape: Any = None

    def is_over(self, sigma: torch.Tensor) -> bool:
        return float(on_host(sigma)[0]) <= self.end_sigma

    def has_begun(self, sigma: torch.Tensor) -> bool:
        return float(on_host(sigma)[0]) <= self.start_sigma

    def check_shape(self, x: torch.Tensor, shape: tuple[int, ...]) -> None:
        """Begin anew for a run whose latent changes its shape (an upscaling sampler)."""
        found = (x.device, x.dtype, shape)
        if self.shape is not None and found != self.shape:
            LOGGER.warning("%s: the latent changed its shape, device or type; begun anew", self.settings.name)
            # A rate of 0, not an unknown one, is ComfyUI's: the step after the first is skipped in any case.
            self.watch = ChangeWatch(self.watch.threshold, rate=0.0)
            self.differences, self.leader, self.is_skipping, self.num_skipped = {}, None, False, 0
            self.shape = None
            return
        self.shape = found

    def tell(self, text: str, *values: object) -> None:
        if self.settings.is_verbose:
            LOGGER.info("%s [verbose] - " + text, self.settings.name, *values)


def wrap_run(executor: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a whole sampling run with a fresh state."""
    guider = executor.class_obj
    options = guider.model_options
    settings: CacheSettings = options["transformer_options"][KEY]
    sampling = guider.model_patcher.get_model_object("model_sampling")
    run = CacheRun(
        settings,
        start_sigma=sampling.percent_to_sigma(settings.start_percent),
        end_sigma=sampling.percent_to_sigma(settings.end_percent),
        watch=ChangeWatch(settings.reuse_threshold),
    )
    guider.model_options = copy_options(options)
    guider.model_options["transformer_options"][KEY] = run
    try:
        return executor(*args, **kwargs)
    finally:
        guider.model_options = options
        LOGGER.info("%s - skipped %d of %d steps", settings.name, run.num_skipped, len(args[3]) - 1)


def wrap_prediction(
    executor: Any, x: torch.Tensor, sigma: torch.Tensor, options: dict[str, Any], *args: Any, **kwargs: Any
) -> torch.Tensor:
    """Run a guided prediction through LazyCache."""
    run: CacheRun = options["transformer_options"][KEY]
    evaluate: Callable[[], torch.Tensor] = lambda: executor(x, sigma, options, *args, **kwargs)  # noqa: E731
    if run.is_over(sigma):
        return evaluate()
    change: torch.Tensor | None = None
    if run.has_begun(sigma):
        run.check_shape(x, tuple(x.shape))
        change = run.watch.input_change(_sampled(x))
        if run.watch.may_skip(change):
            run.num_skipped += 1
            run.tell("step skipped, change %s of %s", run.watch.passed, run.watch.threshold)
            return x + run.differences[None].to(x.device)
    output = evaluate()
    run.watch.learn(change, _sampled(output))
    run.differences[None] = output - x
    run.watch.keep(_sampled(x), _sampled(output), output)
    return output


def wrap_batch(executor: Any, *args: Any, **kwargs: Any) -> Any:
    """Run all conditions of one evaluation through EasyCache: none has decided yet."""
    args[-1]["transformer_options"][KEY].is_skipping = False
    return executor(*args, **kwargs)


def wrap_network(
    executor: Any,
    x: torch.Tensor | list[torch.Tensor],
    timesteps: torch.Tensor,
    context: Any,
    y: Any,
    control: Any,
    options: dict[str, Any],
    **kwargs: Any,
) -> torch.Tensor | list[torch.Tensor]:
    """Run one call of the network through EasyCache, of one or several conditions (`options["uuids"]`).

    Of a latent of several streams the first one decides.
    """
    run: CacheRun = options[KEY]

    def evaluate(given: Any = x) -> Any:
        return executor(given, timesteps, context, y, control, options, **kwargs)

    if run.is_over(options["sigmas"]):
        whole: torch.Tensor | list[torch.Tensor] = evaluate()
        return whole
    if isinstance(x, torch.Tensor):
        return _cached(run, x, options, evaluate)
    first, *others = x
    others_after: list[torch.Tensor] = []

    def evaluate_first() -> torch.Tensor:
        found = evaluate()
        others_after.extend(found[1:])
        return found[0]  # type: ignore[no-any-return]

    conditions = options["uuids"]
    output = _cached(run, first, options, evaluate_first)
    if not others_after:  # the step is skipped
        return [output, *(_each_with_its_own(run, i, item, conditions) for i, item in enumerate(others))]
    for i, (before, after) in enumerate(zip(others, others_after, strict=True)):
        for condition, part in zip(conditions, (after - before).chunk(len(conditions)), strict=True):
            run.differences[i, condition] = part
    return [output, *others_after]


def _each_with_its_own(run: CacheRun, stream: int, x: torch.Tensor, conditions: list[object]) -> torch.Tensor:
    """Return an approximation of the network's output of a further stream."""
    return x + torch.cat([run.differences[stream, condition].to(x.device) for condition in conditions])


def _cached(
    run: CacheRun, x: torch.Tensor, options: dict[str, Any], evaluate: Callable[[], torch.Tensor]
) -> torch.Tensor:
    """Return the network's output for one latent, from its last one where little has changed since."""
    sigma, conditions = options["sigmas"], options["uuids"]
    leads, change = run.leader is not None and run.leader in conditions, None
    if run.has_begun(sigma):
        run.check_shape(x, tuple(x.shape[1:]))
        if run.is_skipping:
            return _with_differences(run, x, conditions)
        if run.leader is None:
            run.leader = conditions[0]
        leads = run.leader in conditions
        if leads:
            change = run.watch.input_change(_sampled(_part(x, conditions, run.leader)))
            if run.watch.may_skip(change):
                run.is_skipping = True
                run.tell("step skipped, change %s of %s", run.watch.passed, run.watch.threshold)
                return _with_differences(run, x, conditions)
    output = evaluate()
    fed = x[:, : output.shape[1]] if x.shape[1] > output.shape[1] else x
    for condition, part in zip(conditions, (output - fed).chunk(len(conditions)), strict=True):
        run.differences[condition] = part
    if leads:
        sampled = _sampled(_part(output, conditions, run.leader))
        run.watch.learn(change, sampled)
        run.watch.keep(_sampled(_part(x, conditions, run.leader)), sampled, output)
    return output


def _sampled(latent: torch.Tensor) -> torch.Tensor:
    return latent[..., ::STRIDE_CELLS, ::STRIDE_CELLS]


def _part(batch: torch.Tensor, conditions: list[object], condition: object) -> torch.Tensor:
    return batch.chunk(len(conditions))[conditions.index(condition)]


def _with_differences(run: CacheRun, x: torch.Tensor, conditions: list[object]) -> torch.Tensor:
    """Return an approximation of the network's output.

    Odd but ComfyUI's: of a batch of several conditions each part gets the differences of all of them.
    """
    if run.leader in conditions:
        run.num_skipped += 1
    own = [run.differences[condition].to(x.device) for condition in conditions]
    fed = x[:, : own[0].shape[1]] if x.shape[1] > own[0].shape[1] else x
    if x.ndim > IMAGE_DIMENSIONS:
        return fed + torch.cat(own)
    total = torch.stack(own).sum(dim=0)
    return fed + total.repeat(len(conditions), *(1,) * (total.ndim - 1))
