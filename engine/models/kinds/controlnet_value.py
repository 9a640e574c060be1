"""CONTROL_NET: a network that controls the UNet by an image. Copies share the weights, not the image and range.

`B` batch, `H W` pixels, `h w` latent cells. Several nets form a chain by `previous_controlnet`; their additions add up.
The classes are made and derived from as ComfyUI's are (`comfy.controlnet`): packs build controls of their own on them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import torch

from darkroom.engine.diffusion.conditions import repeat_to_batch_size
from darkroom.engine.diffusion.host_levels import on_host
from darkroom.engine.diffusion.options import Options
from darkroom.engine.images.pixels import resize
from darkroom.engine.log_context import report_warning
from darkroom.engine.models.kinds.load_controlnet import SteeringKind
from darkroom.engine.models.network_in_use import NetworkInUse
from darkroom.engine.models.patching.module_patcher import ModulePatcher
from darkroom.engine.models.weight_handle import Network, WeightHandle

PLACES = ("input", "middle", "output")
PIXELS_PER_CELL = 8
NETWORK_PREFIX = "diffusion_model."

log = logging.getLogger(__name__)

Control = dict[str, list[torch.Tensor | None]]  # place -> additions, first to last
Additions = Mapping[str, Sequence[torch.Tensor | None]]


class StrengthType(Enum):
    """Effect of a net's strength on its additions."""

    CONSTANT = 1
    LINEAR_UP = 2  # it is raised to the power of how many additions come from this one on


def _unchanged(image: torch.Tensor) -> torch.Tensor:
    return image


class ControlBase:
    """Interface that guidance and nodes use for any control.

    Call `set_cond_hint` and `pre_run` before `get_control`.
    """

    def __init__(self) -> None:
        self.cond_hint_original: torch.Tensor | None = None  # [B, 3, H, W] of 0..1, as given
        self.cond_hint: torch.Tensor | None = None  # at the latent's size, for the batch in hand
        self.strength = 1.0
        self.timestep_percent_range = (0.0, 1.0)
        self.timestep_range: tuple[float, float] | None = None
        self.latent_format: Any = None
        self.vae: Any = None
        self.global_average_pooling = False
        self.compression_ratio = PIXELS_PER_CELL
        self.upscale_algorithm = "nearest-exact"
        self.extra_args: dict[str, Any] = {}
        self.previous_controlnet: Any = None
        self.extra_conds: list[str] = []
        self.strength_type = StrengthType.CONSTANT
        self.concat_mask = False
        self.extra_concat_orig: list[torch.Tensor] = []
        self.extra_concat: Any = None
        self.extra_hooks: Any = None
        self.preprocess_image: Callable[[torch.Tensor], torch.Tensor] = _unchanged

    def set_cond_hint(
        self,
        cond_hint: torch.Tensor,
        strength: float = 1.0,
        timestep_percent_range: tuple[float, float] = (0.0, 1.0),
        vae: Any = None,
        extra_concat: Sequence[torch.Tensor] = (),
    ) -> ControlBase:
        """Set the image `[B, 3, H, W]`. `vae` and `extra_concat` are for networks that do not read pixels.

        A network that reads a mask beside the image gets one of ones unless `extra_concat` has one.
        """
        self.cond_hint_original = cond_hint
        self.strength = strength
        self.timestep_percent_range = timestep_percent_range
        if self.latent_format is not None:
            if vae is None:
                message = "no VAE provided to the controlnet apply node when this controlnet requires one."
                report_warning(log, "control_without_vae", message)
            self.vae = vae
        self.extra_concat_orig = list(extra_concat)
        if self.concat_mask and not self.extra_concat_orig:
            self.extra_concat_orig.append(torch.ones(1, 1, 1, 1))
        return self

    def set_previous_controlnet(self, controlnet: Any) -> ControlBase:
        self.previous_controlnet = controlnet
        return self

    def set_extra_arg(self, argument: str, value: object = None) -> None:
        self.extra_args[argument] = value

    def pre_run(self, model: Network, percent_to_timestep_function: Callable[[float], float]) -> None:
        """Prepare for sampling: convert percentages to noise levels."""
        start, end = self.timestep_percent_range
        self.timestep_range = (percent_to_timestep_function(start), percent_to_timestep_function(end))
        if self.previous_controlnet is not None:
            self.previous_controlnet.pre_run(model, percent_to_timestep_function)

    def cleanup(self) -> None:
        """Release state after sampling."""
        if self.previous_controlnet is not None:
            self.previous_controlnet.cleanup()
        self.cond_hint = None
        self.extra_concat = None
        self.timestep_range = None

    def get_models(self) -> list[ModulePatcher]:
        """Return the models of the whole chain that have to be on the device."""
        return [] if self.previous_controlnet is None else list(self.previous_controlnet.get_models())

    def get_extra_hooks(self) -> list[object]:
        before = [] if self.previous_controlnet is None else self.previous_controlnet.get_extra_hooks()
        return [*([] if self.extra_hooks is None else [self.extra_hooks]), *before]

    def inference_memory_requirements(self, dtype: torch.dtype) -> int:
        """Return the bytes needed beyond the weights and the UNet's own working memory."""
        before = self.previous_controlnet
        required: int = 0 if before is None else before.inference_memory_requirements(dtype)
        return required

    def copy_to(self, c: Any) -> None:
        """Copy every setting to `c`, except the network, the chain and the state of sampling."""
        c.cond_hint_original = self.cond_hint_original
        c.strength = self.strength
        c.timestep_percent_range = self.timestep_percent_range
        c.latent_format = self.latent_format
        c.vae = self.vae
        c.global_average_pooling = self.global_average_pooling
        c.compression_ratio = self.compression_ratio
        c.upscale_algorithm = self.upscale_algorithm
        c.extra_args = dict(self.extra_args)
        c.extra_conds = list(self.extra_conds)
        c.strength_type = self.strength_type
        c.concat_mask = self.concat_mask
        c.extra_concat_orig = list(self.extra_concat_orig)
        c.extra_hooks = self.extra_hooks.clone() if self.extra_hooks else None
        c.preprocess_image = self.preprocess_image

    def before(
        self,
        x_noisy: torch.Tensor,
        t: torch.Tensor,
        cond: Options,
        batched_number: int,
        transformer_options: Options,
    ) -> Control | None:
        """Return the additions of the nets before this one in the chain."""
        if self.previous_controlnet is None:
            return None
        control: Control | None = self.previous_controlnet.get_control(
            x_noisy, t, cond, batched_number, transformer_options
        )
        return control

    def is_in_range(self, t: torch.Tensor) -> bool:
        """Return True where the net takes part at noise levels `t` [B]."""
        if self.timestep_range is None:
            return True
        level = on_host(t)[0]
        return bool(self.timestep_range[1] <= level <= self.timestep_range[0])

    def control_merge(
        self, control: Additions, control_prev: Control | None, output_dtype: torch.dtype | None
    ) -> Control:
        """Return the network's additions at this net's strength, plus those of the chain."""
        merged: Control = {place: [] for place in PLACES}
        made: dict[tuple[int, float], torch.Tensor] = {}  # one addition may be there for several blocks
        for place, additions in control.items():
            for index, addition in enumerate(additions):
                if addition is None:
                    merged[place].append(None)
                    continue
                if self.global_average_pooling:
                    addition = addition.mean(dim=(2, 3), keepdim=True).expand_as(addition)
                is_constant = self.strength_type is StrengthType.CONSTANT
                strength = self.strength if is_constant else self.strength ** float(len(additions) - index)
                key = id(additions[index]), strength
                if key not in made:
                    made[key] = (addition * strength).to(output_dtype or addition.dtype)
                merged[place].append(made[key])
        for place, previous in [] if control_prev is None else control_prev.items():
            own = merged[place]
            for index, value in enumerate(previous):
                if index >= len(own):
                    own.append(value)
                elif value is not None:
                    mine = own[index]
                    own[index] = value if mine is None else value + mine
        return merged


class ControlNet(ControlBase):
    """CONTROL_NET with ComfyUI's members. `control_model_wrapped` holds the network through the pool."""

    def __init__(
        self,
        control_model: Any = None,
        global_average_pooling: bool = False,
        compression_ratio: int = PIXELS_PER_CELL,
        latent_format: Any = None,
        load_device: Any = None,
        manual_cast_dtype: torch.dtype | None = None,
        extra_conds: Sequence[str] = ("y",),
        strength_type: StrengthType = StrengthType.CONSTANT,
        concat_mask: bool = False,
        preprocess_image: Callable[[torch.Tensor], torch.Tensor] = _unchanged,
    ) -> None:
        super().__init__()
        self.control_model = control_model
        self.control_model_wrapped: ModulePatcher | None = None
        self.load_device = load_device
        self.manual_cast_dtype = manual_cast_dtype
        self.model_sampling_current: Any = None
        self.steering: SteeringKind | None = None  # None for one that a pack made
        self._borrowed: dict[str, torch.Tensor] = {}  # weights of the steered network
        self.compression_ratio = compression_ratio
        self.global_average_pooling = global_average_pooling
        self.latent_format = latent_format
        self.extra_conds += extra_conds
        self.strength_type = strength_type
        self.concat_mask = concat_mask
        self.preprocess_image = preprocess_image

    @classmethod
    def of(cls, weights: WeightHandle, kind: SteeringKind, *, global_average_pooling: bool = False) -> ControlNet:
        wrapped, reading = ModulePatcher(weights), kind.reading
        made = cls(
            weights.module,
            global_average_pooling,
            PIXELS_PER_CELL if reading.latent_format is None else 1,
            reading.latent_format,
            wrapped.load_device,
            extra_conds=reading.inputs,
            concat_mask=reading.takes_mask,
            preprocess_image=reading.prepare,
        )
        made.control_model_wrapped, made.steering = wrapped, kind
        return made

    def copy(self) -> ControlNet:
        """Return a copy with the same weights, without the chain and the state of sampling."""
        other = ControlNet(self.control_model, load_device=self.load_device, manual_cast_dtype=self.manual_cast_dtype)
        other.control_model_wrapped, other.steering = self.control_model_wrapped, self.steering
        self.copy_to(other)
        return other

    def pre_run(self, model: Network, percent_to_timestep_function: Callable[[float], float]) -> None:
        """Prepare for sampling. Raises ValueError for a model that the network does not steer."""
        super().pre_run(model, percent_to_timestep_function)
        self.model_sampling_current = model.model_sampling
        if self.steering is not None:
            _check_steers(self.steering, model)
            if self.steering.reading.borrowed is not None:
                self._borrowed = _borrowed_weights(self.steering.reading.borrowed, model)

    def cleanup(self) -> None:
        self.model_sampling_current = None
        self._borrowed = {}
        super().cleanup()

    def get_models(self) -> list[ModulePatcher]:
        return [*super().get_models(), *([] if self.control_model_wrapped is None else [self.control_model_wrapped])]

    def get_control(
        self,
        x_noisy: torch.Tensor,
        t: torch.Tensor,
        cond: Options,
        batched_number: int,
        transformer_options: Options,
    ) -> Control | None:
        """Return the chain's additions to the UNet for `x_noisy` [B, C, h, w] at sigmas `t` [B]; None for no additions.

        The batch holds `batched_number` conditions one after the other; `cond` are the UNet's inputs.
        """
        before = self.before(x_noisy, t, cond, batched_number, transformer_options)
        if not self.is_in_range(t):
            return before
        dtype = self.manual_cast_dtype or self.control_model.dtype
        hint = self._hint(x_noisy, dtype, batched_number)
        context = cond.get("crossattn_controlnet", cond["c_crossattn"]).to(x_noisy.device, dtype)
        more: dict[str, Any] = {
            name: cond[name].to(x_noisy.device, dtype) for name in self.extra_conds if cond.get(name) is not None
        }
        if self._borrowed:
            self._borrowed = {name: weight.to(x_noisy.device, dtype) for name, weight in self._borrowed.items()}
            more["borrowed"] = self._borrowed
        timesteps = self.model_sampling_current.timestep(t)
        scaled = self.model_sampling_current.calculate_input(t, x_noisy)
        control = self.control_model(
            x=scaled.to(dtype), hint=hint, timesteps=timesteps.to(dtype), context=context, **self.extra_args, **more
        )
        return self.control_merge(control, before, None)

    def _hint(self, x_noisy: torch.Tensor, dtype: torch.dtype, batched_number: int) -> torch.Tensor:
        height, width = x_noisy.shape[-2:]
        wanted = (height * self.compression_ratio, width * self.compression_ratio)
        if self.cond_hint is None or self.cond_hint.shape[-2:] != wanted:
            self.cond_hint = self._prepared_hint(width, height).to(x_noisy.device, dtype)
        if self.cond_hint.shape[0] != x_noisy.shape[0]:
            # The result replaces what it was made of, so later batches of another size start from it, as in ComfyUI.
            self.cond_hint = broadcast_image_to(self.cond_hint, x_noisy.shape[0], batched_number)
        return self.cond_hint

    def _prepared_hint(self, width: int, height: int) -> torch.Tensor:
        """Return the image at the size of a latent of so many cells, encoded where the network reads latents."""
        assert self.cond_hint_original is not None, "a ControlNet without an image"
        ratio = self.compression_ratio
        if self.vae is not None:
            ratio *= self.vae.spacial_compression_encode()
        elif self.latent_format is not None:
            raise ValueError("ControlNet: it reads latents; got no VAE, expected one at the node that applies it")
        hint = resize(self.cond_hint_original, width * ratio, height * ratio, self.upscale_algorithm, "center")
        hint = self.preprocess_image(hint)
        if self.vae is not None:
            hint = self.vae.encode(hint.movedim(1, -1))
        if self.latent_format is not None:
            hint = self.latent_format.process_in(hint)
        parts = [hint]
        for extra in self.extra_concat_orig:
            part = resize(extra.to(hint.device), hint.shape[-1], hint.shape[-2], self.upscale_algorithm, "center")
            if part.ndim < hint.ndim:
                part = repeat_to_batch_size(part.unsqueeze(2), hint.shape[2], dim=2)
            parts.append(repeat_to_batch_size(part, hint.shape[0]))
        return torch.cat(parts, dim=1) if len(parts) > 1 else hint


class T2IAdapter(ControlBase):
    """A T2I-Adapter, or a ControlNet of Stable Cascade.

    It reads only the image, so its additions are computed once per batch and size.
    """

    def __init__(
        self,
        t2i_model: Any,
        channels_in: int,
        compression_ratio: int = PIXELS_PER_CELL,
        upscale_algorithm: str = "nearest-exact",
        device: Any = None,
    ) -> None:
        super().__init__()
        self.t2i_model = t2i_model
        self.channels_in = channels_in
        self.compression_ratio = compression_ratio
        self.upscale_algorithm = upscale_algorithm
        self.device = device
        self.control_input: Additions | None = None
        self._made_from: torch.Tensor | None = None

    @classmethod
    def of(cls, weights: WeightHandle) -> T2IAdapter:
        patcher = ModulePatcher(weights)
        model: Any = patcher.model
        return cls(
            NetworkInUse(patcher),
            model.input_channels,
            model.compression_ratio,
            model.upscale_algorithm,
            device=patcher.load_device,
        )

    def copy(self) -> T2IAdapter:
        """Return a copy with the same weights, without the chain and the state of sampling."""
        other = T2IAdapter(self.t2i_model, self.channels_in, device=self.device)
        self.copy_to(other)
        return other

    def cleanup(self) -> None:
        super().cleanup()
        self.control_input = self._made_from = None

    def get_models(self) -> list[ModulePatcher]:
        own = [self.t2i_model.patcher] if isinstance(self.t2i_model, NetworkInUse) else []
        return [*super().get_models(), *own]

    def scale_image_to(self, width: int, height: int) -> tuple[int, int]:
        """Return the size rounded up to a multiple that the network can fold."""
        unit = self.t2i_model.unshuffle_amount
        return math.ceil(width / unit) * unit, math.ceil(height / unit) * unit

    def get_control(
        self,
        x_noisy: torch.Tensor,
        t: torch.Tensor,
        cond: Options,
        batched_number: int,
        transformer_options: Options,
    ) -> Control | None:
        """Return the chain's additions, as `ControlNet.get_control`."""
        before = self.before(x_noisy, t, cond, batched_number, transformer_options)
        if not self.is_in_range(t):
            return before
        hint = self._hint(x_noisy, batched_number)
        if self.control_input is None or self._made_from is not hint:
            self.control_input, self._made_from = self.t2i_model(hint), hint
        copied = {
            place: [None if item is None else item.clone() for item in items]
            for place, items in self.control_input.items()
        }
        return self.control_merge(copied, before, x_noisy.dtype)

    def _hint(self, x_noisy: torch.Tensor, batched_number: int) -> torch.Tensor:
        """Return the image at the latent's size in pixels, rounded up. Raises ValueError for other channels."""
        assert self.cond_hint_original is not None, "a T2I-Adapter without an image"
        height, width = (cells * self.compression_ratio for cells in x_noisy.shape[2:])
        wanted = self.scale_image_to(width, height)
        if self.cond_hint is None or self.cond_hint.shape[:1:-1] != wanted:
            image = resize(self.cond_hint_original, *wanted, self.upscale_algorithm, "center")
            if self.channels_in == 1 and image.shape[1] > 1:
                image = image.mean(dim=1, keepdim=True)
            if image.shape[1] != self.channels_in:
                raise ValueError(
                    f"control image: wrong number of channels; got {image.shape[1]}, expected {self.channels_in} "
                    "(JoinImageWithAlpha adds a mask as the fourth)"
                )
            dtype = next(self.t2i_model.parameters()).dtype
            self.cond_hint = image.to(x_noisy.device, dtype)
        if self.cond_hint.shape[0] != x_noisy.shape[0]:
            self.cond_hint = broadcast_image_to(self.cond_hint, x_noisy.shape[0], batched_number)
        return self.cond_hint


def _check_steers(kind: SteeringKind, model: Network) -> None:
    config = getattr(model.diffusion_model, "config", None)
    if config is None or kind.steers(config):  # a pack's network has no configuration of ours
        return
    family = model.model_config.family
    label = "a model of another kind" if family is None else family.label
    detail = " of other widths" if family is kind.family else ""
    raise ValueError(f"ControlNet: it does not fit the model; got {label}{detail}, expected {kind.family.label}")


def _borrowed_weights(prefix: str, model: Network) -> dict[str, torch.Tensor]:
    """Return the model's weights with this prefix, patches included, by their names behind it."""
    patcher = model.current_patcher
    start = NETWORK_PREFIX + prefix
    return {
        name.removeprefix(start): patcher.weights.current_weight(name)
        for name in model.state_dict()
        if name.startswith(start)
    }


def broadcast_image_to(image: torch.Tensor, batch_size: int, batched_number: int) -> torch.Tensor:
    """Repeat images for a batch of `batched_number` conditions: each condition's items get the images in turn.

    A single image stays unchanged, since it fits every batch.
    """
    if image.shape[0] == 1:
        return image
    per_condition = batch_size // batched_number
    image = image[:per_condition]
    if per_condition > image.shape[0]:
        repeats, rest = divmod(per_condition, image.shape[0])
        image = torch.cat([image] * repeats + [image[:rest]])
    return image if image.shape[0] == batch_size else torch.cat([image] * batched_number)
