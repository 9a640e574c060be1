"""A network with its parameterisation: noisy latent in, denoised latent out (ComfyUI's `BaseModel`).

`x` `[B, C, h, w]` float32 in latent units, `sigma` `[B]`; the network computes in its own dtype.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from darkroom.engine.diffusion.conditions import (
    BatchedInput,
    ConstantInput,
    CrossAttentionInput,
    NoiseShapedInput,
    RegularInput,
    spread_to_batch_size,
)
from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.diffusion.model_sampling import EpsDiscrete
from darkroom.engine.diffusion.model_type import model_type_of
from darkroom.engine.diffusion.nested_latent import StreamShapes, packed, unpacked
from darkroom.engine.diffusion.options import KNOWN_TIMESTEP, Options
from darkroom.engine.diffusion.stored_dtype import stored_dtype
from darkroom.engine.diffusion.wrappers import APPLY_MODEL, DIFFUSION_MODEL, wrapped

log = logging.getLogger(__name__)

Tensors = dict[str, torch.Tensor]

TEXT, POOLED = "cross_attn", "pooled_output"  # ComfyUI's names of a text's tokens and of their summary


@dataclass(frozen=True)
class ModelConfig:
    """The properties of a model that nodes ask for (`model.model_config`).

    `family` is its `ModelFamily`, `variant` the one of the family's variants that it is.
    """

    family: Any = None
    variant: str = ""
    unet_config: Mapping[str, Any] = field(default_factory=dict)
    sampling_settings: Mapping[str, Any] = field(default_factory=dict)
    latent_format: LatentFormat = field(default_factory=LatentFormat)
    memory_usage_factor: float = 1.0
    unet_extra_config: Mapping[str, Any] = field(default_factory=lambda: {"num_heads": -1, "num_head_channels": 64})
    supported_inference_dtypes: Sequence[torch.dtype] = (torch.float16, torch.bfloat16, torch.float32)
    optimizations: Mapping[str, Any] = field(default_factory=lambda: {"fp8": False})
    manual_cast_dtype: torch.dtype | None = None
    custom_operations: Any = None
    quant_config: Any = None
    scaled_fp8: torch.dtype | None = None
    noise_aug_config: Any = None

    def __getattr__(self, name: str) -> None:
        """Return None for a property that no model has, with a warning, as ComfyUI does."""
        if name.startswith("__"):
            raise AttributeError(name)
        log.warning("a model's configuration has no %s", name)

    def inpaint_model(self) -> bool:
        """Return True for a network that is given the mask and the image around it."""
        return bool(self.variant) and "mask" in self.family.variants.get(self.variant, ())

    def process_unet_state_dict(self, state_dict: Tensors) -> Tensors:
        """Return a checkpoint's weights of the network, under the network's names: those that it was given."""
        return state_dict

    def process_unet_state_dict_for_saving(self, state_dict: Tensors) -> Tensors:
        """Return weights of the network under the names that a checkpoint of the family has for them."""
        return dict(self.family.denoiser.saved(state_dict))

    def process_vae_state_dict_for_saving(self, state_dict: Tensors) -> Tensors:
        """Return weights of the VAE under the names that a checkpoint of the family has for them."""
        return dict(self.family.vae.saved(state_dict))

    def process_clip_state_dict_for_saving(self, state_dict: Tensors) -> Tensors:
        """Return weights of the text encoder set under the names that a checkpoint of the family has for them."""
        tensors: Tensors = {}
        for encoder in self.family.text:
            prefix = f"{encoder.encoding.key}.transformer."
            own = {name.removeprefix(prefix): item for name, item in state_dict.items() if name.startswith(prefix)}
            tensors |= encoder.network.saved(own)
        return tensors

    def process_clip_vision_state_dict_for_saving(self, state_dict: Tensors) -> Tensors:
        """Return weights of the image encoder under the names that a checkpoint of the family has for them."""
        prefix = self.family.vision_prefix or ""
        return {prefix + name: tensor for name, tensor in state_dict.items()}


class Denoiser(torch.nn.Module):
    """`diffusion_model(x, timesteps, context=, control=, transformer_options=, **)` under `model_sampling`.

    `manual_cast_dtype` is what the network computes in where its weights are kept in another type: whoever keeps them
    casts them, layer by layer. With `concat_keys` the input has further channels: an inpainting network's (`mask`,
    `masked_image`) or those of a network that edits an image (`edited_image`, `scaled_edited_image` as the network's
    own latents are scaled).
    """

    comfy_name: ClassVar[str] = "BaseModel"  # in `comfy.model_base`, where packs find the class
    uncast_inputs: tuple[str, ...] = ()  # inputs that keep their type, whatever the network computes in
    memory_usage_factor_conds: tuple[str, ...] = ()  # inputs that count for the memory with the noisy latent
    takes_streams = False  # latents of several streams, such as a video and its audio
    model_lowvram = False  # weights that are not on the device are brought there by model memory
    lowvram_patch_counter = 0
    current_weight_patches_uuid: Any = None
    step_runner: Any = None  # a `whole_steps.StepRunner` while a strategy of tuning sets it

    def __init__(
        self,
        diffusion_model: torch.nn.Module,
        *,
        model_sampling: Any = None,
        config: ModelConfig | None = None,
        concat_keys: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.diffusion_model = diffusion_model
        self.model_config = config or ModelConfig()
        self.model_sampling = EpsDiscrete(self.model_config) if model_sampling is None else model_sampling
        self.model_type = model_type_of(self.model_sampling)
        self.latent_format = self.model_config.latent_format
        self.concat_keys = concat_keys
        self.manual_cast_dtype: torch.dtype | None = None
        self.memory_usage_factor = self.model_config.memory_usage_factor
        self.adm_channels = 0
        self.current_patcher: Any = None  # the MODEL that is sampling now

    def get_dtype(self) -> torch.dtype:
        """Return the type that the weights are stored in."""
        return stored_dtype(self.diffusion_model)

    @property
    def compute_dtype(self) -> torch.dtype:
        own: torch.dtype | None = getattr(self.diffusion_model, "dtype", None)
        return self.manual_cast_dtype or own or self.get_dtype()

    def apply_model(
        self,
        x: torch.Tensor,
        t: torch.Tensor,
        c_concat: torch.Tensor | None = None,
        c_crossattn: torch.Tensor | None = None,
        control: Any = None,
        transformer_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Return the denoised latent, float32. `t` is sigma (ComfyUI's name for it)."""
        options = {} if transformer_options is None else transformer_options
        apply = wrapped(APPLY_MODEL, options, self._apply_model, self)
        denoised: torch.Tensor = apply(x, t, c_concat, c_crossattn, control, options, **kwargs)
        return denoised

    def _apply_model(
        self,
        x: torch.Tensor,
        t: torch.Tensor,
        c_concat: torch.Tensor | None = None,
        c_crossattn: torch.Tensor | None = None,
        control: Any = None,
        transformer_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        options = {} if transformer_options is None else transformer_options
        dtype = self.compute_dtype
        scaled = self.model_sampling.calculate_input(t, x)
        if c_concat is not None:
            scaled = torch.cat([scaled, c_concat.to(scaled)], dim=1)
        scaled = scaled.to(dtype)
        context = None if c_crossattn is None else c_crossattn.to(device=scaled.device, dtype=dtype)
        extra = {
            name: value if name in self.uncast_inputs else _cast(value, scaled.device, dtype)
            for name, value in kwargs.items()
        }
        timesteps = self.process_timestep(self._timestep(t, options).float(), x=x, **extra)
        shapes = extra.pop("latent_shapes", ())
        streams = unpacked(scaled, shapes) if shapes else scaled
        network: Any = self.diffusion_model
        if getattr(network, "is_wrapped", True):  # some families' networks call no wrappers, as in ComfyUI
            network = wrapped(DIFFUSION_MODEL, options, network, network)
        # By position: so wrappers of custom nodes find them.
        output = network(streams, timesteps, context, extra.pop("y", None), control, options, **extra)
        output = packed(output) if shapes else output
        denoised: torch.Tensor = self.model_sampling.calculate_denoised(t, output.float(), x)
        return denoised

    def _timestep(self, t: torch.Tensor, options: Options) -> torch.Tensor:
        """Return the timesteps `[B]` of sigmas; those looked up before, where there are some, are of one condition."""
        known: torch.Tensor | None = options.get(KNOWN_TIMESTEP)
        if known is not None:
            return known.repeat(t.shape[0] // known.shape[0])
        found: torch.Tensor = self.model_sampling.timestep(t)
        return found

    def process_timestep(self, timestep: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return timestep

    @property
    def device(self) -> torch.device:
        """The device of the weights: that on which it computes, while it is in use."""
        return next((weight.device for weight in self.diffusion_model.parameters()), torch.device("cpu"))

    def get_dtype_inference(self) -> torch.dtype:
        """Return the type that the network computes in."""
        return self.manual_cast_dtype or self.get_dtype()

    def load_model_weights(self, sd: Tensors, unet_prefix: str = "", assign: bool = False) -> Denoiser:
        """Load those weights behind a prefix that the network has, and take them out of `sd`."""
        taken = {name.removeprefix(unet_prefix): sd.pop(name) for name in [*sd] if name.startswith(unet_prefix)}
        self.diffusion_model.load_state_dict(self.model_config.process_unet_state_dict(taken), strict=False)
        return self

    def extra_conds_shapes(self, **kwargs: Any) -> dict[str, list[int]]:
        """Return the shapes of further inputs that take memory as the noisy latent does: none."""
        return {}

    def set_inpaint(self) -> None:
        """Give the network the mask and the image around it, as further channels of its input."""
        self.concat_keys = ("mask", "masked_image")

    def state_dict_for_saving(
        self,
        unet_state_dict: Tensors,
        clip_state_dict: Tensors | None = None,
        vae_state_dict: Tensors | None = None,
        clip_vision_state_dict: Tensors | None = None,
    ) -> Tensors:
        """Return the weights of these networks under the names that a checkpoint of the family has for them."""
        config = self.model_config
        tensors = dict(config.process_unet_state_dict_for_saving(unet_state_dict))
        if self.model_type.name == "V_PREDICTION":
            tensors["v_pred"] = torch.tensor([])
        for weights, saved in (
            (clip_state_dict, config.process_clip_state_dict_for_saving),
            (vae_state_dict, config.process_vae_state_dict_for_saving),
            (clip_vision_state_dict, config.process_clip_vision_state_dict_for_saving),
        ):
            tensors |= {} if weights is None else saved(weights)
        return tensors

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        """Return the network's inputs of one condition (its keys as keywords, with noise, device, latent_image...)."""
        inputs: dict[str, BatchedInput] = {}
        self.check_text(kwargs)
        self._check_streams(kwargs.get("latent_shapes"))
        concat = self.concat_cond(**kwargs)
        if concat is not None:
            inputs["c_concat"] = NoiseShapedInput(concat)
        adm = self.encode_adm(**kwargs)
        if adm is not None:
            inputs["y"] = RegularInput(adm)
        device = kwargs["device"]
        for name, key in (("c_crossattn", "cross_attn"), ("crossattn_controlnet", "cross_attn_controlnet")):
            if kwargs.get(key) is not None:
                inputs[name] = CrossAttentionInput(kwargs[key].to(device))
        if kwargs.get("noise_concat") is not None:
            inputs["c_concat"] = NoiseShapedInput(kwargs["noise_concat"])
        if kwargs.get("latent_shapes"):
            inputs["latent_shapes"] = ConstantInput(kwargs["latent_shapes"])
        return inputs

    def _check_streams(self, shapes: StreamShapes | None) -> None:
        """Raise ValueError for a latent of several streams where the network has one."""
        if not shapes or self.takes_streams:
            return
        family = self.model_config.family
        raise ValueError(
            f"latent_image: it has {len(shapes)} streams, such as a video and its audio; expected one of them "
            f"(LTXVSeparateAVLatent), as {'the model' if family is None else family.label} samples"
        )

    def text_widths(self) -> dict[str, int]:
        """Return the width of each part of a text that the network reads, by its key in a condition; 0 for any."""
        config = getattr(self.diffusion_model, "config", None)
        return {TEXT: getattr(config, "context_dim", 0) or getattr(config, "text_dim", 0)}

    def check_text(self, condition: Mapping[str, Any]) -> None:
        """Raise ValueError for parts of a text [..., D] of other widths than the network reads: of other encoders."""
        for key, expected in self.text_widths().items():
            tokens: torch.Tensor | None = condition.get(key)
            if tokens is None or not expected or tokens.shape[-1] == expected:
                continue
            family = self.model_config.family
            label = "the model's family" if family is None else family.label
            raise ValueError(
                f"conditioning: its text encoder does not fit the model; got {'text' if key == TEXT else key} of width "
                f"{tokens.shape[-1]}, expected {expected}, as the text encoders of {label} give it"
            )

    def encode_adm(self, **kwargs: Any) -> torch.Tensor | None:
        return None

    def concat_cond(self, **kwargs: Any) -> torch.Tensor | None:
        """Return the further channels of an inpainting network `[B, 1 + C, h, w]`, of an editing one `[B, C, h, w]`.

        None for other networks. `denoise_mask` is 1 where the sampler may paint; without it everything is painted on a
        blank image.
        """
        if not self.concat_keys:
            return None
        noise, device = kwargs["noise"], kwargs["device"]
        if self.concat_keys == ("edited_image",):
            return _edited_image(kwargs.get("concat_latent_image"), noise, device)
        if self.concat_keys == ("scaled_edited_image",):
            return self.process_latent_in(_edited_image(kwargs.get("concat_latent_image"), noise, device))
        mask = kwargs.get("concat_mask", kwargs.get("denoise_mask"))
        if mask is None:
            return torch.cat([torch.ones_like(noise)[:, :1], self.blank_inpaint_image_like(noise)], dim=1)
        image = kwargs.get("concat_latent_image")
        image = kwargs["latent_image"] if image is None else self.process_latent_in(image)
        if image.shape[1:] != noise.shape[1:]:
            image = fit(image, noise)
        mask = mask[:, :1] if mask.ndim == noise.ndim else mask
        mask = mask.reshape((-1, 1, *mask.shape[-2:]))
        if mask.shape[-2:] != noise.shape[-2:]:
            mask = fit(mask, noise)
        mask = spread_to_batch_size(mask.round(), noise.shape[0])
        image = spread_to_batch_size(image, noise.shape[0])
        return torch.cat([mask.to(device), image.to(device)], dim=1)

    def blank_inpaint_image_like(self, latent_image: torch.Tensor) -> torch.Tensor:
        colours = self.latent_format.blank or (0.0,) * latent_image.shape[1]
        blank = torch.tensor(colours, dtype=latent_image.dtype, device=latent_image.device)
        return blank.view(1, -1, *(1,) * (latent_image.ndim - 2)).expand_as(latent_image)

    def scale_latent_inpaint(
        self, sigma: torch.Tensor, noise: torch.Tensor, latent_image: torch.Tensor, **kwargs: Any
    ) -> torch.Tensor:
        """Return the image at that noise level, for the region that the sampler may not paint."""
        shaped = sigma.reshape([sigma.shape[0]] + [1] * (noise.ndim - 1))
        scaled: torch.Tensor = self.model_sampling.noise_scaling(shaped, noise, latent_image)
        return scaled

    def process_latent_in(self, latent: torch.Tensor) -> torch.Tensor:
        return self.latent_format.process_in(latent)

    def process_latent_out(self, latent: torch.Tensor) -> torch.Tensor:
        return self.latent_format.process_out(latent)

    def memory_required(
        self, input_shape: Sequence[int], cond_shapes: Mapping[str, Sequence[Sequence[int]]] | None = None
    ) -> float:
        """Estimate the working memory for an input `[B, C, h, w]`, of attention without a score matrix. Bytes.

        `cond_shapes` are those of further latents that the network works on beside it, by the input's name.
        """
        others = [shape for shapes in (cond_shapes or {}).values() for shape in shapes]
        area = sum(shape[0] * math.prod(shape[2:]) for shape in (input_shape, *others))
        size = torch.empty((), dtype=self.compute_dtype).element_size()
        return float(area * size * 0.01 * self.memory_usage_factor * 1024 * 1024)


def _edited_image(image: torch.Tensor | None, noise: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the image that an InstructPix2Pix network edits (Brooks et al. 2022, arXiv 2211.09800), or zeros.

    It is unscaled.
    """
    if image is None:
        return torch.zeros_like(noise)
    image = image.to(device)
    return spread_to_batch_size(image if image.shape[1:] == noise.shape[1:] else fit(image, noise), noise.shape[0])


def _cast(value: Any, device: torch.device, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device=device, dtype=dtype if value.is_floating_point() else None)
    if isinstance(value, list):
        return [_cast(item, device, dtype) for item in value]
    return value


def fit(image: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Fit `image` to the size of `like`: cut to its proportions around the middle, then scaled."""
    height, width = image.shape[-2:]
    old_aspect, new_aspect = width / height, like.shape[-1] / like.shape[-2]
    left = round((width - width * (new_aspect / old_aspect)) / 2) if old_aspect > new_aspect else 0
    top = round((height - height * (old_aspect / new_aspect)) / 2) if old_aspect < new_aspect else 0
    cut = image[..., top : height - top, left : width - left]
    return torch.nn.functional.interpolate(cut, size=tuple(like.shape[-2:]), mode="bilinear")
