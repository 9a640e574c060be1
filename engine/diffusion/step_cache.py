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

    def may_skip(self, change: torch.Tensor | None, *, is_known: bool = True) -> bool:
        """Add a predicted change; return True while their sum since the last evaluation is below the threshold.

        A step is evaluated, and the sum begins anew, where a difference to add is not `is_known`.
        """
        if change is None or self.last_norm is None or self.rate is None:
            return False
        self.passed = self.passed + self.rate * change / self.last_norm
        if is_known and bool(self.passed < self.threshold):
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
    differences: dict[Any, tuple[torch.Tensor, ...]] = field(default_factory=dict)
    """Output less input of each stream of the latent, by condition; None: of the guided prediction."""

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
    found: CacheSettings | CacheRun = options["transformer_options"][KEY]
    settings = found.settings if isinstance(found, CacheRun) else found  # of two such nodes the last one counts
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
            return x + run.differences[None][0].to(x.device)
    output = evaluate()
    run.watch.learn(change, _sampled(output))
    run.differences[None] = (output - x,)
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
    sigma, conditions = options["sigmas"], options["uuids"]

    def evaluate() -> Any:
        return executor(x, timesteps, context, y, control, options, **kwargs)

    if run.is_over(sigma):
        whole: torch.Tensor | list[torch.Tensor] = evaluate()
        return whole
    streams = [x] if isinstance(x, torch.Tensor) else x
    leads, change = run.leader is not None and run.leader in conditions, None
    if run.has_begun(sigma):
        run.check_shape(streams[0], tuple(streams[0].shape[1:]))
        is_known = all(condition in run.differences for condition in conditions)
        if run.leader is None:
            run.leader = conditions[0]
        leads = run.leader in conditions
        if leads and not run.is_skipping:
            change = run.watch.input_change(_sampled(_part(streams[0], conditions, run.leader)))
            run.is_skipping = run.watch.may_skip(change, is_known=is_known)
            if run.is_skipping:
                run.tell("step skipped, change %s of %s", run.watch.passed, run.watch.threshold)
        if run.is_skipping and is_known:
            approximated = _with_differences(run, streams, conditions)
            return approximated[0] if isinstance(x, torch.Tensor) else approximated
    output: torch.Tensor | list[torch.Tensor] = evaluate()
    outputs = [output] if isinstance(output, torch.Tensor) else output
    parts = [
        (after - before[:, : after.shape[1]]).chunk(len(conditions))
        for before, after in zip(streams, outputs, strict=False)  # a network gives no empty stream
    ]
    run.differences |= dict(zip(conditions, zip(*parts, strict=True), strict=True))
    if leads:
        sampled = _sampled(_part(outputs[0], conditions, run.leader))
        run.watch.learn(change, sampled)
        run.watch.keep(_sampled(_part(streams[0], conditions, run.leader)), sampled, outputs[0])
    return output


def _sampled(latent: torch.Tensor) -> torch.Tensor:
    return latent[..., ::STRIDE_CELLS, ::STRIDE_CELLS]


def _part(batch: torch.Tensor, conditions: list[object], condition: object) -> torch.Tensor:
    return batch.chunk(len(conditions))[conditions.index(condition)]


def _with_differences(run: CacheRun, streams: list[torch.Tensor], conditions: list[object]) -> list[torch.Tensor]:
    """Return an approximation of the network's output: each condition's part with its own difference.

    It takes the place of the network's input. Where that is the noisy latent itself, a flow's in float32, the denoised
    latent is computed from it as well, as by ComfyUI; other networks get a copy of the latent.
    """
    if run.leader in conditions:
        run.num_skipped += 1
    return [
        stream[:, : parts[0].shape[1]].add_(torch.cat([part.to(stream.device) for part in parts]))
        for stream, *parts in zip(streams, *(run.differences[condition] for condition in conditions), strict=False)
    ]
