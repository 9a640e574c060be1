"""Node classes made for the controls of Z-Image, and for those of Qwen-Image, which take either."""

from __future__ import annotations

from typing import Annotated

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.families.lumina2.layers import Lumina2Config
from darkroom.engine.families.qwen_image.diffsynth_control import DiffSynthControlConfig
from darkroom.engine.families.qwen_image.transformer import QwenImageConfig
from darkroom.engine.families.z_image.fun_control import ZImageFunControlConfig
from darkroom.engine.layers.patches import PATCH
from darkroom.engine.models.kinds.diffsynth_patch import DiffSynthPatch
from darkroom.engine.models.kinds.fun_control_patch import FunControlPatch
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Optional
from darkroom.engine.nodes.sockets import IMAGE, MASK, MODEL, MODEL_PATCH, VAE
from darkroom.engine.nodes.widgets import Float


@node("ZImageFunControlnet", display_name="Apply Z-Image Fun ControlNet", category="model/patch/z-image",
      python_module="comfy_extras.nodes_model_patch", experimental=True, comfyui_version="0.30.0")  # fmt: skip
def z_image_fun_controlnet(
    context: NodeContext,
    *,
    model: MODEL,
    model_patch: MODEL_PATCH,
    vae: VAE,
    strength: Annotated[float, Float(min=-10.0, max=10.0, step=0.01)] = 1.0,
    image: Annotated[IMAGE | None, Optional()] = None,
    inpaint_image: Annotated[IMAGE | None, Optional()] = None,
    mask: Annotated[MASK | None, Optional()] = None,
) -> MODEL:
    """Steer a model by an image (canny, depth, pose), or by an image and the mask of what is painted into it."""
    return _with_fun_control(model, model_patch, vae, strength, image, inpaint_image, mask)


def _with_fun_control(
    model: MODEL,
    model_patch: MODEL_PATCH,
    vae: VAE,
    strength: float,
    image: IMAGE | None,
    inpaint_image: IMAGE | None,
    mask: MASK | None,
) -> MODEL:
    """Return a clone of the model that the control conditions. Raises ValueError for networks that do not fit."""
    latent_format: LatentFormat = model.get_model_object("latent_format")
    _check_fits(model, model_patch, vae, latent_format)
    if image is None and (inpaint_image is None or not _paints(model_patch, latent_format)):
        raise ValueError("image: the control has nothing to read; got None, expected an image")
    patch = FunControlPatch(
        model_patch, vae, latent_format, strength,
        image=None if image is None else image[:1, :, :, :3],
        painted=None if inpaint_image is None else inpaint_image[:1, :, :, :3],
        hole=None if mask is None else mask.reshape(-1, 1, *mask.shape[-2:])[:1],
    )  # fmt: skip
    steered = model.clone()
    steered.set_model_noise_refiner_patch(patch)
    steered.set_model_double_block_patch(patch)
    return steered


def _paints(model_patch: MODEL_PATCH, latent_format: LatentFormat) -> bool:
    """Return True for a control that also reads an image to paint into."""
    config: ZImageFunControlConfig = model_patch.model.config
    return config.hint_channels > latent_format.latent_channels


def _check_fits(model: MODEL, model_patch: MODEL_PATCH, vae: VAE, latent_format: LatentFormat) -> None:
    """Raise ValueError for networks that do not fit each other."""
    network, control = model.model.diffusion_model.config, model_patch.model.config
    if not isinstance(control, ZImageFunControlConfig) or not isinstance(network, Lumina2Config):
        raise ValueError("model_patch: it does not fit the model; got another kind, expected those of Z-Image")
    if network.patch != PATCH:
        raise ValueError("model: the control is for networks of latents; got Z-Image in pixel space, expected Z-Image")
    if control.blocks.width != network.width or control.blocks.time_width != network.time_width:
        raise ValueError(
            f"model_patch: it does not fit the model; got width {control.blocks.width}, expected {network.width}"
        )
    if vae.latent_channels != latent_format.latent_channels:
        raise ValueError(
            f"vae: its latents are not the model's; got {vae.latent_channels} channels, expected "
            f"{latent_format.latent_channels}"
        )


@node(
    "QwenImageDiffsynthControlnet",
    display_name="Apply Qwen Image DiffSynth ControlNet",
    category="model/patch/qwen",
    python_module="comfy_extras.nodes_model_patch",
    experimental=True,
)
def qwen_image_diffsynth_controlnet(
    context: NodeContext,
    *,
    model: MODEL,
    model_patch: MODEL_PATCH,
    vae: VAE,
    image: IMAGE,
    strength: Annotated[float, Float(min=-10.0, max=10.0, step=0.01)] = 1.0,
    mask: Annotated[MASK | None, Optional()] = None,
) -> MODEL:
    """Condition a model on an image (canny, depth), or on an image and the mask of what is painted (inpainting).

    Controls of Z-Image are applied as `ZImageFunControlnet` applies them.
    """
    if isinstance(model_patch.model.config, ZImageFunControlConfig):
        return _with_fun_control(model, model_patch, vae, strength, image, None, mask)
    _check_fits_qwen_image(model, model_patch, vae)
    hole = None if mask is None else mask.reshape(-1, 1, *mask.shape[-2:])[:1]
    patched = model.clone()
    latent_format: LatentFormat = model.get_model_object("latent_format")
    patched.set_model_double_block_patch(
        DiffSynthPatch(model_patch, vae, latent_format, image[:1, :, :, :3], strength, hole)
    )
    return patched


def _check_fits_qwen_image(model: MODEL, model_patch: MODEL_PATCH, vae: VAE) -> None:
    """Raise ValueError for networks that do not fit each other."""
    network, control = model.model.diffusion_model.config, model_patch.model.config
    if not isinstance(control, DiffSynthControlConfig) or not isinstance(network, QwenImageConfig):
        raise ValueError("model_patch: it does not fit the model; got another kind, expected those of Qwen-Image")
    if control.width != network.width or control.num_blocks < network.num_blocks:
        raise ValueError(
            f"model_patch: it does not fit the model; got width {control.width} and {control.num_blocks} blocks, "
            f"expected width {network.width} and {network.num_blocks} blocks"
        )
    if (
        vae.latent_channels != network.in_channels
        or vae.latent_dim != model.get_model_object("latent_format").latent_dimensions
    ):
        raise ValueError(
            f"vae: its latents are not the model's; got {vae.latent_channels} channels, expected the VAE of Qwen-Image "
            f"with {network.in_channels}"
        )


NODES = (z_image_fun_controlnet, qwen_image_diffsynth_controlnet)
