"""Nodes that enlarge latents of LTX-2 by a network: the second stage of a video begins with such a one."""

from __future__ import annotations

from typing import Annotated

import torch

from darkroom.engine.families.ltx2.upsampler import LatentUpsampler
from darkroom.engine.models.kinds.latent_upscaler_value import LatentUpscaler
from darkroom.engine.models.vae import Vae
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import LATENT, LATENT_UPSCALE_MODEL, VAE
from darkroom.engine.nodes.widgets import ModelCombo


@node("LatentUpscaleModelLoader", display_name="Load Latent Upscale Model", category="model/loaders",
      python_module="comfy_extras.nodes_hunyuan")  # fmt: skip
def latent_upscale_model_loader(
    context: NodeContext, *, model_name: Annotated[str, ModelCombo("latent_upscale_models")]
) -> LATENT_UPSCALE_MODEL:
    """Load a network that enlarges latents."""
    model: LATENT_UPSCALE_MODEL = context.models.auxiliary.latent_upscaler(model_name)
    return model


@node("LTXVLatentUpsampler", display_name=None, category="model/latent/ltxv",
      python_module="comfy_extras.nodes_lt_upsampler", experimental=True)  # fmt: skip
def ltxv_latent_upsampler(
    context: NodeContext, *, samples: LATENT, upscale_model: LATENT_UPSCALE_MODEL, vae: VAE
) -> LATENT:
    """Enlarge a latent of a video as the VAE has it; all of it may be sampled."""
    latent = samples["samples"]
    network = _checked(latent, upscale_model, vae)
    statistics = vae.first_stage_model.per_channel_statistics
    with torch.no_grad(), upscale_model.patcher.in_use(working_bytes=network.working_bytes(latent.shape)) as loaded:
        restored = statistics.restored(latent.to(upscale_model.load_device, upscale_model.model_dtype()))
        enlarged = statistics.normalised(loaded(restored)).to("cpu", latent.dtype)
    rest = {name: value for name, value in samples.items() if name != "noise_mask"}
    return {**rest, "samples": enlarged}  # type: ignore[typeddict-item]


def _checked(latent: torch.Tensor, model: LatentUpscaler, vae: Vae) -> LatentUpsampler:
    """Return the network. Raises ValueError for one, a VAE or a latent that do not fit each other."""
    network = model.model
    if not isinstance(network, LatentUpsampler):
        raise ValueError(
            "upscale_model: a network of other latents; got another one, expected LTX-2's latent upsampler"
        )
    if not hasattr(vae.first_stage_model, "per_channel_statistics") or vae.latent_dim != 3:
        raise ValueError("vae: one without statistics of its latents; got another VAE, expected that of LTX-2's videos")
    channels = network.config.latent_channels
    if latent.ndim != 5 or latent.shape[1] != channels or vae.latent_channels != channels:
        raise ValueError(
            f"samples: a latent of another kind than the network enlarges; got shape {list(latent.shape)}, expected "
            f"[batch, {channels}, frames, rows, columns] (LTXVSeparateAVLatent)"
        )
    return network


NODES = (latent_upscale_model_loader, ltxv_latent_upsampler)
