"""Node class made for SUPIR: a UNet that restores an image."""

from __future__ import annotations

import copy
from typing import Annotated

import torch

from darkroom.engine.families.sdxl.nodes.supir_patch import (
    RestoringGuidance,
    SupirEnlargePatch,
    SupirJoinPatch,
    SupirPatch,
)
from darkroom.engine.families.sdxl.supir import ENCODER, Supir, adapters_of
from darkroom.engine.layers.unet import UnetModel
from darkroom.engine.layers.unet_layers import Upsample
from darkroom.engine.models.vae import Vae
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import IMAGE, MODEL, MODEL_PATCH, VAE
from darkroom.engine.nodes.widgets import Float

LATENT_CHANNELS = 4

Strength = Annotated[float, Float(min=0.0, max=10.0, step=0.01)]


@node("SUPIRApply", display_name=None, category="model/patch/supir", experimental=True,
      python_module="comfy_extras.nodes_model_patch", advanced=("restore_cfg", "restore_cfg_s_tmin"))  # fmt: skip
def supir_apply(
    context: NodeContext,
    *,
    model: MODEL,
    model_patch: MODEL_PATCH,
    vae: VAE,
    image: IMAGE,
    strength_start: Strength = 1.0,
    strength_end: Strength = 1.0,
    restore_cfg: Annotated[float, Float(min=0.0, max=20.0, step=0.1)] = 4.0,
    restore_cfg_s_tmin: Annotated[float, Float(min=0.0, max=1.0, step=0.01)] = 0.05,
) -> MODEL:
    """Return a model that restores the image, of the size that is sampled. Raises ValueError for parts that do not fit.

    With `restore_cfg` results are drawn to the image while there is more noise than `restore_cfg_s_tmin`.
    """
    network = _checked(model, model_patch)
    if vae.latent_dim != 2 or vae.latent_channels != LATENT_CHANNELS:
        raise ValueError(
            f"vae: it is not Stable Diffusion XL's; got one of {vae.latent_channels} channels, expected "
            f"{LATENT_CHANNELS}"
        )
    latent_format = model.get_model_object("latent_format")
    latent = latent_format.process_in(_encoder_of_degraded(vae, model_patch, network).encode(image[..., :3]))
    patch = SupirPatch(model_patch, latent, strength_start, strength_end)
    restoring = model.clone()
    restoring.set_model_patch(patch, "middle_block_after_patch")
    restoring.set_model_output_block_patch(SupirJoinPatch(patch))
    restoring.set_model_forward_timestep_embed_patch((Upsample, SupirEnlargePatch(patch)))
    if restore_cfg > 0.0:
        cleaned = vae.decode(latent_format.process_out(latent))[..., :3]
        guidance = RestoringGuidance(latent_format.process_in(vae.encode(cleaned)), restore_cfg, restore_cfg_s_tmin)
        restoring.set_model_sampler_post_cfg_function(guidance)
    return restoring


def _checked(model: MODEL, model_patch: MODEL_PATCH) -> Supir:
    """Return the control's network. Raises ValueError for one that does not fit the model."""
    network = model_patch.model
    if not isinstance(network, Supir):
        raise ValueError("model_patch: another kind; got one of another network, expected SUPIR (SUPIR-v0Q, SUPIR-v0F)")
    unet = model.model.diffusion_model
    control = network.config.control
    fits = isinstance(unet, UnetModel) and (
        (control.input_blocks, control.middle_block) == (unet.config.input_blocks, unet.config.middle_block)
        and control.label_dim == unet.config.label_dim
        and network.config.adapters == adapters_of(unet.config)
    )
    if not fits:
        raise ValueError(
            "model: its network is not the one that this SUPIR controls; got another, expected Stable Diffusion XL of "
            "the same layers"
        )
    placed = model.model_options["transformer_options"].get("patches", {}).get("middle_block_after_patch", ())
    if any(isinstance(patch, SupirPatch) for patch in placed):
        raise ValueError("model: SUPIR restores one image; got a model that has an image already, expected one without")
    return network


def _encoder_of_degraded(vae: Vae, model_patch: MODEL_PATCH, network: Supir) -> Vae:
    """Return the VAE with the encoder of the control's file, or the VAE itself for a file without it."""
    if network.config.encoder is None:
        return vae
    weights: dict[str, torch.Tensor] = model_patch.model_state_dict(ENCODER)
    changed = copy.copy(vae)
    changed.patcher = vae.patcher.clone()
    patches = {f"encoder.{name.removeprefix(ENCODER)}": (weight.to("cpu"),) for name, weight in weights.items()}
    changed.patcher.add_patches(patches, strength_patch=1.0, strength_model=0.0)
    return changed


NODES = (supir_apply,)
