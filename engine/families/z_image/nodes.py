"""Node classes made for Z-Image: its controls."""

from __future__ import annotations

from typing import Annotated

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.families.lumina2.transformer import Lumina2Config
from darkroom.engine.families.z_image.fun_control import ZImageFunControlConfig
from darkroom.engine.models.kinds.fun_control_patch import FunControlPatch
from darkroom.engine.nodes.base import Float, NodeContext, Optional, node
from darkroom.engine.nodes.sockets import IMAGE, MASK, MODEL, MODEL_PATCH, VAE


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
    if control.blocks.width != network.width or control.blocks.time_width != network.time_width:
        raise ValueError(
            f"model_patch: it does not fit the model; got width {control.blocks.width}, expected {network.width}"
        )
    if vae.latent_channels != latent_format.latent_channels:
        raise ValueError(
            f"vae: its latents are not the model's; got {vae.latent_channels} channels, expected "
            f"{latent_format.latent_channels}"
        )


NODES = (z_image_fun_controlnet,)
