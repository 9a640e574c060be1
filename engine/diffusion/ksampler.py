"""A KSampler's work: a MODEL, a sampler and a schedule by name, and which of the steps are made.

The functions and the class have ComfyUI's names and parameters, as custom nodes call them and put others in their place
(`replacements.py`). Noise and latents `[B, C, h, w]`, latents unscaled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from darkroom.engine.diffusion.choices import calculate_sigmas, current_choices
from darkroom.engine.diffusion.conditions import repeat_to_batch_size
from darkroom.engine.diffusion.host_levels import brought, on_host
from darkroom.engine.diffusion.nested_latent import streams_of
from darkroom.engine.diffusion.options import Conditioning, OptionDict
from darkroom.engine.diffusion.replacements import replaceable, replacement_of
from darkroom.engine.diffusion.sample import Guider, SampledModel, Sampler
from darkroom.engine.diffusion.steps_reported import ProgressCallback

CELL_PX = 8  # a side, of most families' latents


@replaceable
def ksampler(
    sampler_name: str, extra_options: OptionDict | None = None, inpaint_options: OptionDict | None = None
) -> Sampler:
    """Return the sampler function of that name, with options for it. Raises ValueError for an unknown name."""
    choices = current_choices()
    function = choices.functions.get(sampler_name)
    if function is None:
        raise ValueError(f"there is no sampler {sampler_name!r}; there are {', '.join(choices.samplers)}")
    return replacement_of(Sampler)(function, extra_options or {}, inpaint_options or {})


@replaceable
def sampler_object(name: str) -> Sampler:
    """Return the sampler that nodes offer under a name. Raises ValueError for an unknown name.

    ddim shows noise of its own outside of an inpainting mask; the others show the noise they started from.
    """
    return ksampler("euler", inpaint_options={"random": True}) if name == "ddim" else ksampler(name)


class KSampler:
    """A sampler, a schedule and a number of steps for one MODEL.

    With a `denoise` below 1 the levels are the last ones of a longer schedule. A sampler or scheduler that is not among
    the choices becomes the first of them, as in ComfyUI.
    """

    # These take the last two levels in one step, so their schedule has one more level and loses the last but one.
    DISCARD_PENULTIMATE_SIGMA_SAMPLERS = {"dpm_2", "dpm_2_ancestral", "uni_pc", "uni_pc_bh2"}

    def __init__(
        self,
        model: SampledModel,
        steps: int,
        device: Any,
        sampler: str | None = None,
        scheduler: str | None = None,
        denoise: float | None = None,
        model_options: dict[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.device = device
        samplers, schedules = self.offered()
        self.sampler = samplers[0] if sampler is None or sampler not in samplers else sampler
        self.scheduler = schedules[0] if scheduler is None or scheduler not in schedules else scheduler
        self.denoise = denoise
        self.model_options = {} if model_options is None else model_options
        self.set_steps(steps, denoise)

    def offered(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return the names of the samplers and of the schedules to choose from."""
        choices = current_choices()
        return choices.samplers, choices.schedules

    def calculate_sigmas(self, steps: int) -> torch.Tensor:
        """Return the whole schedule `[steps + 1]`."""
        model_sampling = self.model.get_model_object("model_sampling")
        if self.sampler not in self.DISCARD_PENULTIMATE_SIGMA_SAMPLERS:
            return calculate_sigmas(model_sampling, self.scheduler, steps)
        sigmas = calculate_sigmas(model_sampling, self.scheduler, steps + 1)
        return torch.cat([sigmas[:-2], sigmas[-1:]])

    def set_steps(self, steps: int, denoise: float | None = None) -> None:
        self.steps = steps
        if denoise is None or denoise > 0.9999:
            self.sigmas = brought(self.calculate_sigmas(steps), self.device)
        elif denoise <= 0.0:
            self.sigmas = torch.FloatTensor([])
        else:
            self.sigmas = brought(self.calculate_sigmas(int(steps / denoise))[-(steps + 1) :], self.device)

    def sample(
        self,
        noise: torch.Tensor,
        positive: Conditioning,
        negative: Conditioning,
        cfg: float,
        latent_image: torch.Tensor | None = None,
        start_step: int | None = None,
        last_step: int | None = None,
        force_full_denoise: bool = False,
        denoise_mask: torch.Tensor | None = None,
        sigmas: torch.Tensor | None = None,
        callback: ProgressCallback | None = None,
        disable_pbar: bool = False,
        seed: int | None = None,
    ) -> torch.Tensor:
        """Return the unscaled latent, on the model's device.

        Steps before `start_step` and after `last_step` are left out; `force_full_denoise` then makes the last one end
        at 0. Where no step is left the latent comes back as it is.
        """
        levels = on_host(self.sigmas if sigmas is None else sigmas)
        if last_step is not None and last_step < len(levels) - 1:
            levels = levels[: last_step + 1]
            if force_full_denoise:
                levels[-1] = 0
        if start_step is not None:
            if start_step >= len(levels) - 1:
                return torch.zeros_like(noise) if latent_image is None else latent_image
            levels = levels[start_step:]
        return sample_guided(
            self.model, noise, positive, negative, cfg, self.device, sampler_object(self.sampler), levels,
            self.model_options, latent_image=latent_image, denoise_mask=denoise_mask, callback=callback,
            disable_pbar=disable_pbar, seed=seed,
        )  # fmt: skip


@replaceable
def sample_guided(
    model: SampledModel,
    noise: torch.Tensor,
    positive: object,
    negative: object,
    cfg: float,
    device: object,
    sampler: object,
    sigmas: torch.Tensor,
    model_options: dict[str, object] | None = None,
    latent_image: torch.Tensor | None = None,
    denoise_mask: torch.Tensor | None = None,
    callback: ProgressCallback | None = None,
    disable_pbar: bool = False,
    seed: int | None = None,
) -> torch.Tensor:
    """Sample under classifier-free guidance over the levels: the unscaled latent, on the model's device.

    `device` and `model_options` say nothing that the model does not: ComfyUI has them too, and does not read them.
    """
    guider = replacement_of(Guider)(model)
    guider.set_conds(positive, negative)
    guider.set_cfg(cfg)
    start = torch.zeros_like(noise) if latent_image is None else latent_image
    return guider.sample(noise, start, sampler, sigmas, denoise_mask, callback, disable_pbar, seed)


@replaceable
def sample(
    model: SampledModel,
    noise: torch.Tensor,
    steps: int,
    cfg: float,
    sampler_name: str,
    scheduler: str,
    positive: Conditioning,
    negative: Conditioning,
    latent_image: torch.Tensor,
    denoise: float = 1.0,
    disable_noise: bool = False,
    start_step: int | None = None,
    last_step: int | None = None,
    force_full_denoise: bool = False,
    noise_mask: torch.Tensor | None = None,
    sigmas: torch.Tensor | None = None,
    callback: ProgressCallback | None = None,
    disable_pbar: bool = False,
    seed: int | None = None,
) -> torch.Tensor:
    """Sample as `KSampler.sample` does, with the result on the CPU. `disable_noise` adds nothing to `noise`."""
    made = replacement_of(KSampler)(
        model, steps=steps, device=model.load_device, sampler=sampler_name, scheduler=scheduler, denoise=denoise,
        model_options=model.model_options,
    )  # fmt: skip
    samples = made.sample(
        noise, positive, negative, cfg=cfg, latent_image=latent_image, start_step=start_step, last_step=last_step,
        force_full_denoise=force_full_denoise, denoise_mask=noise_mask, sigmas=sigmas, callback=callback,
        disable_pbar=disable_pbar, seed=seed,
    )  # fmt: skip
    return samples.to("cpu")


@replaceable
def sample_custom(
    model: SampledModel,
    noise: torch.Tensor,
    cfg: float,
    sampler: object,
    sigmas: torch.Tensor,
    positive: object,
    negative: object,
    latent_image: torch.Tensor,
    noise_mask: torch.Tensor | None = None,
    callback: ProgressCallback | None = None,
    disable_pbar: bool = False,
    seed: int | None = None,
) -> torch.Tensor:
    """Sample with any sampler and levels: the unscaled latent, on the CPU."""
    samples = sample_guided(
        model, noise, positive, negative, cfg, model.load_device, sampler, sigmas, model_options=model.model_options,
        latent_image=latent_image, denoise_mask=noise_mask, callback=callback, disable_pbar=disable_pbar, seed=seed,
    )  # fmt: skip
    return samples.to("cpu")


@replaceable
def fix_empty_latent_channels(
    model: SampledModel,
    latent_image: torch.Tensor,
    downscale_ratio_spacial: float | None = None,
    downscale_ratio_temporal: float | None = None,
) -> torch.Tensor:
    """Return an empty latent with the channels and cells that the model takes, and any latent with its dimensions.

    `downscale_ratio_spacial` are the pixels a side of a cell of `latent_image`, `downscale_ratio_temporal` the samples
    at 44.1 kHz of a cell of audio [B, C, L]: an empty one gets as many of the model's cells as the same image or audio
    has. None keeps the size. A format whose latents have several streams adds those that an empty one lacks.

    Raises ValueError for an image's latent of other channels: that of another family's VAE; for one stream alone of a
    latent that has several; and for several streams where the model takes one.
    """
    latent_format = model.get_model_object("latent_format")
    if streams_of(latent_image):
        if not getattr(latent_format, "takes_streams", True):  # those of packs may not say
            raise ValueError(
                "latent_image: a latent of several streams, of which the model takes one; got a video and its audio, "
                "expected either (LTXVSeparateAVLatent)"
            )
        return latent_image
    is_empty = torch.count_nonzero(latent_image) == 0
    channels = latent_format.latent_channels
    stream_channels = getattr(latent_format, "stream_channels", ())
    if latent_image.shape[1] not in (channels, *stream_channels) and is_empty:
        latent_image = repeat_to_batch_size(latent_image, channels, dim=1)
    if is_empty:
        latent_image = _in_cells_of(latent_format, latent_image, downscale_ratio_spacial, downscale_ratio_temporal)
    if latent_image.shape[1] not in (channels, *stream_channels):
        raise ValueError(
            f"latent_image: a latent of another VAE than the model's; got {latent_image.shape[1]} channels, expected "
            f"{channels}"
        )
    if stream_channels and not is_empty:
        raise ValueError(
            "latent_image: a latent of one stream; got a plain latent, expected a video and its audio in one "
            "(LTXVConcatAVLatent)"
        )
    if getattr(latent_format, "latent_dimensions", 2) == 3 and latent_image.ndim == 4:
        latent_image = latent_image.unsqueeze(2)
    complete = getattr(latent_format, "fix_empty_latent", None) if is_empty else None  # those of packs may lack it
    return latent_image if complete is None else complete(latent_image)


def _in_cells_of(
    latent_format: Any, empty: torch.Tensor, cell_px: float | None, cell_samples: float | None
) -> torch.Tensor:
    """Return an empty latent with as many of a format's cells as the same image, video or audio has."""
    own_px = getattr(latent_format, "spacial_downscale_ratio", CELL_PX)  # those of packs may lack it
    if cell_px is not None and cell_px != own_px:
        sides = [max(1, round(side * (cell_px / own_px))) for side in empty.shape[-2:]]
        empty = empty.new_zeros(*empty.shape[:-2], *sides)
    own_samples = getattr(latent_format, "temporal_downscale_ratio", 1)
    if getattr(latent_format, "latent_dimensions", 2) == 1 and cell_samples is not None and cell_samples != own_samples:
        empty = empty.new_zeros(*empty.shape[:2], max(1, round(empty.shape[2] * (cell_samples / own_samples))))
    return empty
