"""Sampling put together: a sampler and a guider. `ksampler.py` makes them from names.

What the model is, and whether to stop, comes in as `SampledModel` (`engine/models/model.py::Model`), progress as
a callable. Shapes: noise and latents `[B, C, h, w]`; latents unscaled outside of `Guider.inner_sample`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from darkroom.engine.diffusion.conditions import (
    Condition,
    convert_conditioning,
    prepare_conditions,
    repeat_to_batch_size,
)
from darkroom.engine.diffusion.guidance import BATCH_MARGIN, sampling_function
from darkroom.engine.diffusion.host_levels import brought, on_host
from darkroom.engine.diffusion.nested_latent import (
    StreamShapes,
    by_stream,
    nested,
    nested_callback,
    packed,
    packed_mask,
    shapes_of,
    streams_of,
    unpacked,
)
from darkroom.engine.diffusion.options import SAMPLING_RUN, OptionDict, Options
from darkroom.engine.diffusion.record_obstacles import obstacle_to_record
from darkroom.engine.diffusion.recorded_steps import SamplingStart
from darkroom.engine.diffusion.replacements import replaceable, replacement_of
from darkroom.engine.diffusion.samplers.base import SamplerFunction
from darkroom.engine.diffusion.samplers.cfg_pp import sample_euler_cfg_pp_alternative
from darkroom.engine.diffusion.samplers.registry import declared_samplers
from darkroom.engine.diffusion.samplers.stochastic import sample_lcm_upscale
from darkroom.engine.diffusion.sampling_run import SamplingRun, run_in, sampling_run
from darkroom.engine.diffusion.steps_reported import ProgressCallback, StepsReported
from darkroom.engine.diffusion.whole_steps import StepRunner, obstacle, sample_in_steps
from darkroom.engine.diffusion.windowed_batches import CONTEXT_HANDLER, ContextWindows
from darkroom.engine.diffusion.wrappers import (
    OUTER_SAMPLE,
    PREDICT_NOISE,
    SAMPLER_SAMPLE,
    copy_options,
    merge_options,
    wrapped,
)


class SampledModel(Protocol):
    """Model as sampling uses it."""

    model_options: dict[str, Any]
    callbacks: Any
    wrappers: Any

    @property
    def load_device(self) -> torch.device: ...

    def get_model_object(self, name: str) -> Any: ...

    def in_use(self, *, working_bytes: int = 0, together_with: Sequence[Any] = ()) -> AbstractContextManager[Any]: ...

    def hooks_registered(
        self, conds: Mapping[str, Sequence[Condition]], model_options: dict[str, object]
    ) -> AbstractContextManager[None]: ...

    def get_nested_additional_models(self) -> list[Any]: ...

    def memory_required(self, input_shape: Sequence[int], references: Sequence[Sequence[int]] = ()) -> float: ...

    @property
    def memory_savings(self) -> Any: ...

    def pre_run(self) -> None: ...

    def check_cancelled(self) -> None:
        """Raise when the run that samples is to stop."""
        ...

    def cleanup(self) -> None: ...


class InpaintDenoiser:
    """The guided model as samplers call it; outside of the mask it shows them the given image.

    `denoise_mask` is 1 where the sampler may paint. ComfyUI's name for it is `KSamplerX0Inpaint`.
    """

    def __init__(self, model: Guider, sigmas: torch.Tensor) -> None:
        self.inner_model = model
        self.sigmas = sigmas
        self.latent_image: torch.Tensor
        self.noise: torch.Tensor

    def __call__(
        self,
        x: torch.Tensor,
        sigma: torch.Tensor,
        denoise_mask: torch.Tensor | None = None,
        model_options: OptionDict | None = None,
        seed: int | None = None,
    ) -> torch.Tensor:
        options = model_options or {}
        if denoise_mask is None:
            return self.inner_model(x, sigma, model_options=options, seed=seed)
        if "denoise_mask_function" in options:
            extra = {"model": self.inner_model, "sigmas": self.sigmas}
            denoise_mask = options["denoise_mask_function"](sigma, denoise_mask, extra_options=extra)
        kept = 1.0 - denoise_mask
        given = self.inner_model.inner_model.scale_latent_inpaint(
            x=x, sigma=sigma, noise=self.noise, latent_image=self.latent_image, denoise_mask=denoise_mask,
            latent_shapes=getattr(self.inner_model, "stream_shapes", ()),
        )  # fmt: skip
        x = x * denoise_mask + given * kept
        denoised = self.inner_model(x, sigma, model_options=options, seed=seed)
        return denoised * denoise_mask + self.latent_image * kept


GUIDED_BY = ("__call__", "outer_predict_noise", "predict_noise")  # methods that a guider of another kind overrides
OF_NODES = (sample_lcm_upscale, sample_euler_cfg_pp_alternative)
BUILT_IN = frozenset((*(item.function for item in declared_samplers().values()), *OF_NODES))
"""Samplers that take noise levels of the host's memory."""


class Sampler:
    """SAMPLER: a sampler function with its options (ComfyUI's `KSAMPLER`)."""

    def __init__(
        self,
        sampler_function: SamplerFunction,
        extra_options: Mapping[str, object] | None = None,
        inpaint_options: Mapping[str, object] | None = None,
    ) -> None:
        self.sampler_function = sampler_function
        self.extra_options = dict(extra_options or {})
        self.inpaint_options = dict(inpaint_options or {})

    def max_denoise(self, model_wrap: Any, sigmas: torch.Tensor) -> bool:
        """Return True where sampling starts from pure noise."""
        highest = float(model_wrap.inner_model.model_sampling.sigma_max)
        first = float(on_host(sigmas)[0])
        return math.isclose(highest, first, rel_tol=1e-05) or first > highest

    def sample(
        self,
        model_wrap: Any,
        sigmas: torch.Tensor,
        extra_args: dict[str, Any],
        callback: ProgressCallback | None,
        noise: torch.Tensor,
        latent_image: torch.Tensor,
        denoise_mask: torch.Tensor | None = None,
        disable_pbar: bool = False,
    ) -> torch.Tensor:
        """Return the scaled latent at the last sigma's noise level, from unit noise and the scaled latent at first."""
        extra_args["denoise_mask"] = denoise_mask
        model = replacement_of(InpaintDenoiser)(model_wrap, sigmas)
        model.latent_image = latent_image
        model.noise = self._inpaint_noise(noise, extra_args.get("seed"))
        model_sampling = model_wrap.inner_model.model_sampling
        x = model_sampling.noise_scaling(sigmas[0], noise, latent_image, self.max_denoise(model_wrap, sigmas))
        num_steps = len(sigmas) - 1

        def on_step(state: OptionDict) -> None:
            if callback is not None:
                callback(state["i"], state["denoised"], state["x"], num_steps)

        levels = on_host(sigmas) if self.sampler_function in BUILT_IN else sigmas
        runner = self._step_runner(model_wrap, model, x, extra_args)
        if runner is not None:
            options, seed = extra_args["model_options"], extra_args.get("seed")
            samples = sample_in_steps(
                runner, model_wrap, self.sampler_function, x, sigmas, levels, options, seed, on_step
            )  # fmt: skip
        else:
            samples = self.sampler_function(
                model, x, levels, extra_args=extra_args, callback=on_step, disable=disable_pbar, **self.extra_options
            )
        final: torch.Tensor = model_sampling.inverse_noise_scaling(sigmas[-1], samples)
        return final

    def _step_runner(
        self, guider: Any, model: InpaintDenoiser, x: torch.Tensor, extra_args: dict[str, Any]
    ) -> StepRunner | None:
        """Return the runner of whole steps, None where there is none or the steps are none of tensors alone."""
        runner: StepRunner | None = getattr(getattr(guider, "inner_model", None), "step_runner", None)
        if runner is None:
            return None
        is_plain = (
            isinstance(guider, Guider)
            and all(getattr(type(guider), name) is getattr(Guider, name) for name in GUIDED_BY)
            and type(model) is InpaintDenoiser
            and extra_args["denoise_mask"] is None
            and not self.extra_options
        )
        reason = obstacle(guider, self.sampler_function, x, extra_args.get("model_options", {}), is_plain=is_plain)
        if reason is not None:
            runner.refuse(reason)
        return runner if reason is None else None

    def _inpaint_noise(self, noise: torch.Tensor, seed: int | None) -> torch.Tensor:
        if not self.inpaint_options.get("random", False):
            return noise
        generator = torch.manual_seed((41 if seed is None else seed) + 1)
        return torch.randn(noise.shape, generator=generator, device="cpu").to(noise)


class Guider:
    """GUIDER: classifier-free guidance over a MODEL's conditions (ComfyUI's `CFGGuider`)."""

    def __init__(self, model_patcher: SampledModel) -> None:
        self.model_patcher = model_patcher
        self.model_options = model_patcher.model_options
        self.original_conds: dict[str, list[Condition]] = {}
        self.conds: dict[str, list[Condition]] = {}
        self.cfg = 1.0
        self.inner_model: Any = None
        self.stream_shapes: StreamShapes = ()  # of the packed latent that is sampled; empty for a plain one

    def set_conds(self, positive: object, negative: object) -> None:
        self.inner_set_conds({"positive": positive, "negative": negative})

    def set_cfg(self, cfg: float) -> None:
        self.cfg = cfg

    def inner_set_conds(self, conds: Options) -> None:
        for side, conditioning in conds.items():
            self.original_conds[side] = convert_conditioning(conditioning)

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.model_patcher.check_cancelled()
        return self.outer_predict_noise(*args, **kwargs)

    def outer_predict_noise(
        self,
        x: torch.Tensor,
        timestep: torch.Tensor,
        model_options: dict[str, object] | None = None,
        seed: int | None = None,
    ) -> torch.Tensor:
        predict = wrapped(PREDICT_NOISE, self.model_options.get("transformer_options", {}), self.predict_noise, self)
        denoised: torch.Tensor = predict(x, timestep, model_options or {}, seed)
        return denoised

    def predict_noise(
        self,
        x: torch.Tensor,
        timestep: torch.Tensor,
        model_options: dict[str, object] | None = None,
        seed: int | None = None,
    ) -> torch.Tensor:
        """Return the denoised latent (its name in ComfyUI notwithstanding); subclasses override this."""
        negative, positive = self.conds.get("negative"), self.conds.get("positive")
        return sampling_function(
            self.inner_model, x, timestep, negative, positive, self.cfg, model_options=model_options, seed=seed
        )

    def inner_sample(
        self,
        noise: torch.Tensor,
        latent_image: torch.Tensor,
        device: torch.device,
        sampler: Any,
        sigmas: torch.Tensor,
        denoise_mask: torch.Tensor | None,
        callback: ProgressCallback | None,
        disable_pbar: bool,
        seed: int | None,
    ) -> torch.Tensor:
        shapes = self.stream_shapes
        latent_image = self._prepare(noise, latent_image, device, denoise_mask, seed)
        options = copy_options(self.model_options)
        options.setdefault("transformer_options", {})["sample_sigmas"] = sigmas
        extra_args = {"model_options": options, "seed": seed}
        run = wrapped(SAMPLER_SAMPLE, options["transformer_options"], sampler.sample, sampler)

        def start() -> SamplingStart:
            obstacle = obstacle_to_record(options, list(self.conds.values()))
            name = type(sampler).__qualname__
            return SamplingStart(noise, latent_image, sigmas, denoise_mask, seed, name, obstacle)

        with run_in(options).recorded(start) as recorded:
            extra_args["model_options"] = recorded.in_options(options)
            samples = run(self, sigmas, extra_args, callback, noise, latent_image, denoise_mask, disable_pbar)
        return by_stream(self.inner_model.process_latent_out, samples.to(torch.float32), shapes)

    def _prepare(
        self,
        noise: torch.Tensor,
        latent_image: torch.Tensor,
        device: torch.device,
        denoise_mask: torch.Tensor | None,
        seed: int | None,
    ) -> torch.Tensor:
        """Prepare the conditions for a run, and return the latent as the network takes it."""
        scaled, self.conds = self._prepared_for(
            self.inner_model, self.conds, noise, latent_image, device, denoise_mask, seed
        )
        return scaled

    def _prepared_for(
        self,
        network: Any,
        sides: Mapping[str, Sequence[Condition]],
        noise: torch.Tensor,
        latent_image: torch.Tensor,
        device: torch.device,
        denoise_mask: torch.Tensor | None,
        seed: int | None,
    ) -> tuple[torch.Tensor, dict[str, list[Condition]]]:
        """Return the latent in the scale of a network, an empty one as it is, and conditions prepared for it."""
        shapes, scaled = self.stream_shapes, latent_image
        if torch.count_nonzero(latent_image) > 0:
            scaled = by_stream(network.process_latent_in, latent_image, shapes)
        # A plain latent has no such argument, which functions that packs put in the place of ours may not take.
        streams = {"latent_shapes": shapes} if shapes else {}
        return scaled, prepare_conditions(network, noise, sides, device, scaled, denoise_mask, seed, **streams)

    def _others_in_use(self) -> AbstractContextManager[None]:
        """Keep further models that the guider calls on their devices; it calls none."""
        return nullcontext()

    def outer_sample(
        self,
        noise: torch.Tensor,
        latent_image: torch.Tensor,
        sampler: object,
        sigmas: torch.Tensor,
        denoise_mask: torch.Tensor | None = None,
        callback: ProgressCallback | None = None,
        disable_pbar: bool = False,
        seed: int | None = None,
        latent_shapes: Sequence[Sequence[int]] | None = None,
    ) -> torch.Tensor:
        """Sample within the wrappers, which get the shapes of the latent's streams; these are `stream_shapes` here."""
        device = self.model_patcher.load_device
        if denoise_mask is not None:
            denoise_mask = prepare_mask(denoise_mask, noise.shape, device)
        windows = self.model_options.get(CONTEXT_HANDLER)
        evaluated = windows.shape_at_once(noise.shape) if isinstance(windows, ContextWindows) else noise.shape
        shape = [evaluated[0] * 2, *evaluated[1:]]
        references = self._reference_shapes()
        beside = (references,) if references else ()
        estimate = self.model_patcher.memory_required(shape, *beside)
        working_bytes = int(estimate * BATCH_MARGIN) + 1 + self._control_bytes()
        slices = self.model_patcher.memory_savings.attention_slices
        if slices > 1:
            self.model_options = merge_options(
                self.model_options, {"transformer_options": {"attention_slices": slices}}
            )
        own = self.model_options.get(SAMPLING_RUN) or sampling_run()
        with (
            self._others_in_use(),
            own.shared_sampling(self.model_patcher, self.model_options),
            self.model_patcher.in_use(working_bytes=working_bytes, together_with=self._other_models()) as inner_model,
        ):
            self.inner_model = inner_model
            try:
                self.model_patcher.pre_run()
                with own.tuned_network(self.model_patcher, inner_model, self.model_options):
                    return self.inner_sample(
                        noise.to(device), latent_image.to(device), device, sampler, brought(sigmas, device),
                        denoise_mask, callback, disable_pbar, seed,
                    )  # fmt: skip
            finally:
                self.model_patcher.cleanup()
                for control in self._controls():
                    control.cleanup()
                self.inner_model = None

    def _controls(self) -> list[Any]:
        found: dict[int, Any] = {}
        for conditions in self.conds.values():
            for condition in conditions:
                if "control" in condition:
                    found[id(condition["control"])] = condition["control"]
        return list(found.values())

    def _reference_shapes(self) -> list[Sequence[int]]:
        """Return the shapes of the reference latents of all conditions, which run in one batch where they fit."""
        conditions = (condition for side in self.conds.values() for condition in side)
        return [latent.shape for condition in conditions for latent in condition.get("reference_latents") or ()]

    def _control_bytes(self) -> int:
        """Return the bytes that controls need beyond the weights they bring along."""
        dtype = self.model_patcher.get_model_object("compute_dtype")
        return sum(int(control.inference_memory_requirements(dtype)) for control in self._controls())

    def _other_models(self) -> list[Any]:
        """Return everything that has to be on the device with the model."""
        models = [model for control in self._controls() for model in control.get_models()]
        for conditions in self.conds.values():
            for condition in conditions:
                if "gligen" in condition:
                    models.append(condition["gligen"][1])
                models.extend(condition.get("additional_models", ()))
        registered = self.model_options.get("registered_hooks")
        for hook in () if registered is None else registered.hooks:
            models.extend(getattr(hook, "models", ()))
        return [*models, *self.model_patcher.get_nested_additional_models()]

    @torch.no_grad()
    def sample(
        self,
        noise: torch.Tensor,
        latent_image: torch.Tensor,
        sampler: object,
        sigmas: torch.Tensor,
        denoise_mask: torch.Tensor | None = None,
        callback: ProgressCallback | None = None,
        disable_pbar: bool = False,
        seed: int | None = None,
    ) -> torch.Tensor:
        """Return the unscaled latent on `load_device`, from unit noise and the unscaled latent to start from.

        Without a sigma nothing happens to the latent. A `NestedLatent` is sampled in its packed form, from noise in
        the same form, and returned as one; `denoise_mask` is that of its first stream or nested, too.
        """
        if sigmas.shape[-1] == 0:
            return latent_image
        streams = streams_of(latent_image)
        self.stream_shapes = shapes = shapes_of(streams)
        if streams:
            noise, latent_image = packed(streams_of(noise)), packed(streams)
            denoise_mask = None if denoise_mask is None else packed_mask(denoise_mask, shapes, self._prepared_mask)
            callback = None if callback is None else nested_callback(callback, shapes)
        reported = StepsReported(callback, self.model_patcher.check_cancelled)
        try:
            samples = sampling_run().attempt(
                self.model_patcher,
                lambda run: self._sample(
                    run, noise, latent_image, sampler, sigmas, denoise_mask, reported.of_attempt(), disable_pbar, seed
                ),
            )
        finally:
            self.stream_shapes = ()
        return nested(unpacked(samples, shapes)) if shapes else samples

    def _prepared_mask(self, mask: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        return prepare_mask(mask, shape, self.model_patcher.load_device)

    def _sample(
        self,
        own: SamplingRun,
        noise: torch.Tensor,
        latent_image: torch.Tensor,
        sampler: object,
        sigmas: torch.Tensor,
        denoise_mask: torch.Tensor | None,
        callback: ProgressCallback | None,
        disable_pbar: bool,
        seed: int | None,
    ) -> torch.Tensor:
        """Sample once as a part of the run; leave the conditions and options as they were."""
        self.conds = {side: [dict(item) for item in items] for side, items in self.original_conds.items()}
        original_options = self.model_options
        registries = {"wrappers": self.model_patcher.wrappers, "callbacks": self.model_patcher.callbacks}
        options = merge_options(original_options, {"transformer_options": registries})
        try:
            self.model_options = own.options_for(self.model_patcher, options)
            with self.model_patcher.hooks_registered(self.conds, self.model_options):
                run = wrapped(OUTER_SAMPLE, self.model_options["transformer_options"], self.outer_sample, self)
                shapes = self.stream_shapes or [latent_image.shape]
                samples: torch.Tensor = run(
                    noise, latent_image, sampler, sigmas, denoise_mask, callback, disable_pbar, seed,
                    latent_shapes=shapes,
                )  # fmt: skip
                return samples
        finally:
            self.model_options = original_options
            self.conds = {}


@replaceable
def prepare_mask(noise_mask: torch.Tensor, shape: torch.Size, device: torch.device) -> torch.Tensor:
    """Resize a mask to the latent's shape as `resized_mask` does, on the device."""
    return resized_mask(noise_mask, shape).to(device)


def resized_mask(noise_mask: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Resize a mask `[B, 1, H, W]` (or `[B, H, W]`, `[H, W]`) to the latent's shape.

    For a latent of videos `[B, C, F, h, w]` the masks of a batch are those of the frames of a video. For one of audio
    `[B, C, L]` a mask `[B, 1, L]` is along time, as is an image's from left to right, by the mean of its rows.
    """
    plane = noise_mask.shape[-2:]
    if len(shape) == 3:
        along = noise_mask.mean(dim=2) if noise_mask.ndim == 4 else noise_mask.reshape(-1, *plane)
        mask = torch.nn.functional.interpolate(along, size=tuple(shape[2:]), mode="linear")
    elif len(shape) == 5:
        frames = noise_mask if noise_mask.ndim == 5 else noise_mask.reshape((1, 1, -1, *plane))
        mask = torch.nn.functional.interpolate(frames, size=tuple(shape[2:]), mode="trilinear")
    else:
        mask = torch.nn.functional.interpolate(
            noise_mask.reshape((-1, 1, *plane)), size=tuple(shape[2:]), mode="bilinear"
        )
    if mask.shape[1] < shape[1]:
        mask = mask.repeat(1, shape[1], *(1,) * (mask.ndim - 2))[:, : shape[1]]
    return repeat_to_batch_size(mask, shape[0])
