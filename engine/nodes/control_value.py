"""CONTROL_NET: a network that steers the UNet by a picture. Copies share the weights; each has its picture and range.

`B` batch, `H W` pixels, `h w` latent cells. Several nets form a chain by `previous_controlnet`; their additions add up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from engine.images.pixels import resize
from engine.nodes.model_value import Model, WeightHandle

PLACES = ("input", "middle", "output")
PIXELS_PER_CELL = 8

Control = dict[str, list[torch.Tensor | None]]  # place -> additions, first to last


class ControlNet:
    """CONTROL_NET with ComfyUI's members."""

    compression_ratio = PIXELS_PER_CELL
    upscale_algorithm = "nearest-exact"
    concat_mask = False
    latent_format = None

    def __init__(self, weights: WeightHandle, global_average_pooling: bool = False) -> None:
        self.control_model_wrapped = Model(weights)
        self.global_average_pooling = global_average_pooling
        self.cond_hint_original: torch.Tensor | None = None  # [B, 3, H, W] of 0..1, as given
        self.cond_hint: torch.Tensor | None = None  # at the latent's size, for the batch in hand
        self.strength = 1.0
        self.timestep_percent_range = (0.0, 1.0)
        self.timestep_range: tuple[float, float] | None = None
        self.extra_args: dict[str, Any] = {}
        self.extra_hooks: Any = None
        self.vae: Any = None
        self.previous_controlnet: Any = None
        self.model_sampling_current: Any = None

    @property
    def control_model(self) -> Any:
        """The network itself (`engine/models/controlnet.py::ControlNetModel`)."""
        return self.control_model_wrapped.model

    @property
    def load_device(self) -> torch.device:
        return self.control_model_wrapped.load_device

    def copy(self) -> ControlNet:
        """Another one of the same weights, without the chain and what sampling has set."""
        other = self.__class__(self.control_model_wrapped.weights, self.global_average_pooling)
        other.cond_hint_original = self.cond_hint_original
        other.strength = self.strength
        other.timestep_percent_range = self.timestep_percent_range
        other.extra_args = dict(self.extra_args)
        other.extra_hooks = self.extra_hooks.clone() if self.extra_hooks else None
        other.vae = self.vae
        return other

    def set_cond_hint(
        self,
        cond_hint: torch.Tensor,
        strength: float = 1.0,
        timestep_percent_range: tuple[float, float] = (0.0, 1.0),
        vae: Any = None,
        extra_concat: Sequence[torch.Tensor] = (),
    ) -> ControlNet:
        """The picture `[B, 3, H, W]`. Networks of SD1 read pixels: `vae` and `extra_concat` are for those of others."""
        self.cond_hint_original = cond_hint
        self.strength = strength
        self.timestep_percent_range = timestep_percent_range
        return self

    def set_previous_controlnet(self, controlnet: Any) -> ControlNet:
        self.previous_controlnet = controlnet
        return self

    def set_extra_arg(self, argument: str, value: Any = None) -> None:
        self.extra_args[argument] = value

    def pre_run(self, model: Any, percent_to_timestep_function: Callable[[float], float]) -> None:
        """Before sampling: what is given in percent becomes noise levels."""
        start, end = self.timestep_percent_range
        self.timestep_range = (percent_to_timestep_function(start), percent_to_timestep_function(end))
        self.model_sampling_current = model.model_sampling
        if self.previous_controlnet is not None:
            self.previous_controlnet.pre_run(model, percent_to_timestep_function)

    def cleanup(self) -> None:
        """After sampling."""
        if self.previous_controlnet is not None:
            self.previous_controlnet.cleanup()
        self.cond_hint = None
        self.timestep_range = None
        self.model_sampling_current = None

    def get_models(self) -> list[Model]:
        """The models that have to be on the device, of the whole chain."""
        before = [] if self.previous_controlnet is None else self.previous_controlnet.get_models()
        return [*before, self.control_model_wrapped]

    def get_extra_hooks(self) -> list[Any]:
        before = [] if self.previous_controlnet is None else self.previous_controlnet.get_extra_hooks()
        return [*([] if self.extra_hooks is None else [self.extra_hooks]), *before]

    def inference_memory_requirements(self, dtype: torch.dtype) -> int:
        """Bytes beyond the weights and the UNet's own working memory."""
        before = self.previous_controlnet
        required: int = 0 if before is None else before.inference_memory_requirements(dtype)
        return required

    def get_control(
        self,
        x_noisy: torch.Tensor,
        t: torch.Tensor,
        cond: Mapping[str, Any],
        batched_number: int,
        transformer_options: Mapping[str, Any],
    ) -> Control | None:
        """What the chain adds to the UNet for `x_noisy` [B, C, h, w] at sigmas `t` [B]; None for nothing.

        The batch holds `batched_number` conditions one after the other; `cond` are the UNet's inputs.
        """
        before: Control | None = None
        if self.previous_controlnet is not None:
            before = self.previous_controlnet.get_control(x_noisy, t, cond, batched_number, transformer_options)
        if self.timestep_range is not None and not self.timestep_range[1] <= t[0] <= self.timestep_range[0]:
            return before
        control = self.additions(x_noisy, t, cond, batched_number)
        return self.control_merge(control, before)

    def additions(
        self, x_noisy: torch.Tensor, t: torch.Tensor, cond: Mapping[str, Any], batched_number: int
    ) -> Mapping[str, Sequence[torch.Tensor | None]]:
        """What this net alone adds, at strength 1."""
        network = self.control_model
        dtype = network.dtype
        hint = self._hint(x_noisy, dtype, batched_number)
        context = cond.get("crossattn_controlnet", cond["c_crossattn"]).to(x_noisy.device, dtype)
        timesteps = self.model_sampling_current.timestep(t)
        scaled = self.model_sampling_current.calculate_input(t, x_noisy)
        control: Mapping[str, Sequence[torch.Tensor | None]] = network(
            x=scaled.to(dtype), hint=hint, timesteps=timesteps.to(dtype), context=context, **self.extra_args
        )
        return control

    def _hint(self, x_noisy: torch.Tensor, dtype: torch.dtype, batched_number: int) -> torch.Tensor:
        assert self.cond_hint_original is not None, "a ControlNet without a picture"
        height, width = (cells * self.compression_ratio for cells in x_noisy.shape[2:])
        if self.cond_hint is None or self.cond_hint.shape[2:] != (height, width):
            hint = resize(self.cond_hint_original, width, height, self.upscale_algorithm, "center")
            self.cond_hint = hint.to(x_noisy.device, dtype)
        if self.cond_hint.shape[0] != x_noisy.shape[0]:
            # The result replaces what it was made of, so later batches of another size start from it, as in ComfyUI.
            self.cond_hint = broadcast_image_to(self.cond_hint, x_noisy.shape[0], batched_number)
        return self.cond_hint

    def control_merge(self, control: Mapping[str, Sequence[torch.Tensor | None]], before: Control | None) -> Control:
        """The network's additions at this net's strength, plus those of the chain."""
        merged: Control = {place: [] for place in PLACES}
        for place, additions in control.items():
            for addition in additions:
                if addition is None:
                    merged[place].append(None)
                    continue
                if self.global_average_pooling:
                    addition = addition.mean(dim=(2, 3), keepdim=True).expand_as(addition)
                merged[place].append(addition * self.strength)
        for place, previous in [] if before is None else before.items():
            own = merged[place]
            for index, value in enumerate(previous):
                if index >= len(own):
                    own.append(value)
                elif value is not None:
                    mine = own[index]
                    own[index] = value if mine is None else value + mine
        return merged


class T2IAdapter(ControlNet):
    """A T2I-Adapter: it reads only the picture, so what it adds is computed once for a batch and size."""

    def __init__(self, weights: WeightHandle, global_average_pooling: bool = False) -> None:
        super().__init__(weights, global_average_pooling)
        self.control_input: Mapping[str, Sequence[torch.Tensor | None]] = {}
        self._made_for: tuple[int, ...] = ()  # batch and latent size

    def cleanup(self) -> None:
        super().cleanup()
        self.control_input, self._made_for = {}, ()

    def additions(
        self, x_noisy: torch.Tensor, t: torch.Tensor, cond: Mapping[str, Any], batched_number: int
    ) -> Mapping[str, Sequence[torch.Tensor | None]]:
        size = (x_noisy.shape[0], *x_noisy.shape[2:])
        if self._made_for != size:
            picture = broadcast_image_to(self._picture(x_noisy), x_noisy.shape[0], batched_number)
            self.control_input, self._made_for = self.control_model(picture), size
        return self.control_input

    def _picture(self, x_noisy: torch.Tensor) -> torch.Tensor:
        """The picture at the latent's size in pixels, rounded up to what the network can fold."""
        assert self.cond_hint_original is not None, "a T2I-Adapter without a picture"
        network = self.control_model
        dtype = next(network.parameters()).dtype
        unit = network.unshuffle_amount
        height, width = (math.ceil(cells * self.compression_ratio / unit) * unit for cells in x_noisy.shape[2:])
        picture = resize(self.cond_hint_original, width, height, self.upscale_algorithm, "center")
        if network.input_channels == 1 and picture.shape[1] > 1:
            picture = picture.mean(dim=1, keepdim=True)
        return picture.to(x_noisy.device, dtype)


def broadcast_image_to(image: torch.Tensor, batch_size: int, batched_number: int) -> torch.Tensor:
    """Pictures for a batch of `batched_number` conditions: each condition's items get the pictures in turn.

    A single picture stays as it is, since it fits every batch.
    """
    if image.shape[0] == 1:
        return image
    per_condition = batch_size // batched_number
    image = image[:per_condition]
    if per_condition > image.shape[0]:
        repeats, rest = divmod(per_condition, image.shape[0])
        image = torch.cat([image] * repeats + [image[:rest]])
    return image if image.shape[0] == batch_size else torch.cat([image] * batched_number)
