"""Nodes of TripoSplat: an image's tokens and the empty latent, Gaussians of a latent, and those of every step.

`B` images, `S` pixels a side of the square image that the networks read.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch.nn import functional

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.diffusion.nested_latent import first_stream, nested
from darkroom.engine.diffusion.wrappers import OUTER_SAMPLE
from darkroom.engine.families.triposplat.denoiser import REFERENCES
from darkroom.engine.families.triposplat.nodes.preparation import MODULE
from darkroom.engine.families.triposplat.nodes.previews import PreviewView, SplatPreviews
from darkroom.engine.families.triposplat.transformer import CAMERA_CHANNELS, LATENT_CHANNELS, NUM_TOKENS
from darkroom.engine.families.triposplat.vae import GAUSSIANS_PER_POINT, NUM_LEVELS
from darkroom.engine.images.pixels import colours_of
from darkroom.engine.layers.dinov3 import Dinov3Config
from darkroom.engine.models.splat_vae import SplatVae
from darkroom.engine.models.vae import Vae
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.sampling.sampling import MAX_SEED
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.sockets import CLIP_VISION, CONDITIONING, IMAGE, LATENT, MODEL, SPLAT, VAE
from darkroom.engine.nodes.widgets import Float, Int

NumGaussians = Annotated[int, Int(min=32768, max=1048576, step=GAUSSIANS_PER_POINT)]
Seed = Annotated[int, Int(min=0, max=MAX_SEED)]


@node(
    "TripoSplatConditioning",
    display_name="TripoSplat Conditioning",
    category="model/conditioning/triposplat",
    description="Encode the image with DINOv3 and the Flux2 VAE into TripoSplat positive/negative "
    "conditioning, and create the fixed size noise target (latent + camera) for the KSampler",
    python_module=MODULE,
)
@torch.no_grad()
def triposplat_conditioning(
    context: NodeContext, *, clip_vision: CLIP_VISION, vae: VAE, image: IMAGE
) -> tuple[
    Annotated[CONDITIONING, Out("positive")],
    Annotated[CONDITIONING, Out("negative")],
    Annotated[LATENT, Out("latent")],
]:
    """Encode images [B, S, S, 3] to tokens and latents; the negative side has zeros in place of both.

    The latent is empty, of 8192 tokens and the camera. Raises ValueError for an encoder of another kind.
    """
    config = clip_vision.patcher.model.config
    if not isinstance(config, Dinov3Config):
        raise ValueError("clip_vision: no DINOv3; got an encoder of another kind, expected DINOv3 (ViT-H/16+)")
    pixels = colours_of(image, "image").movedim(-1, 1).float()
    mean, deviation = (torch.tensor(item).view(3, 1, 1) for item in (config.mean, config.deviation))
    tokens = []
    for item in torch.split((pixels - mean) / deviation, 1):
        context.cancel.check()
        found: torch.Tensor = clip_vision.model(item.to(clip_vision.load_device))[0]
        tokens.append(functional.layer_norm(found.float(), found.shape[-1:]).cpu())
    joined, latent = torch.cat(tokens), vae.encode(image).cpu()
    batch = len(latent)
    empty = nested([torch.zeros(batch, NUM_TOKENS, LATENT_CHANNELS), torch.zeros(batch, 1, CAMERA_CHANNELS)])
    positive: CONDITIONING = [[joined, {REFERENCES: [latent]}]]
    negative: CONDITIONING = [[torch.zeros_like(joined), {REFERENCES: [torch.zeros_like(latent)]}]]
    return positive, negative, {"samples": empty}


@node(
    "VAEDecodeTripoSplat",
    display_name="TripoSplat Decode",
    category="model/latent/triposplat",
    description="Decode the sampled TripoSplat latent into a 3D gaussian splat. "
    "Modify the number of gaussians to vary the density.",
    python_module=MODULE,
    facts=NodeFacts(decodes="samples"),
)
def vae_decode_triposplat(
    context: NodeContext, *, samples: LATENT, vae: VAE, num_gaussians: NumGaussians = 262144, seed: Seed = 0
) -> Annotated[SPLAT, Out("splat")]:
    """Decode latents to Gaussians, whose points the seed draws."""
    decoder = splat_vae(vae)
    number = round(num_gaussians / GAUSSIANS_PER_POINT) * GAUSSIANS_PER_POINT
    draw = torch.Generator(device="cpu").manual_seed(seed)
    return decoder.decode_splat(first_stream(samples["samples"]), number, NUM_LEVELS, draw)


@node(
    "TripoSplatSamplingPreview",
    display_name="TripoSplat Sampling Preview",
    category="model/latent/triposplat",
    description="Patch the TripoSplat model for the standard Ksampler node to show a live decoded "
    "gaussian splat preview at each step.",
    python_module=MODULE,
)
def triposplat_sampling_preview(
    context: NodeContext,
    *,
    model: MODEL,
    vae: VAE,
    octree_level: Annotated[int, Int(min=2, max=8, extra={"advanced": True})] = 5,
    num_gaussians: Annotated[int, Int(min=1024, max=262144, step=GAUSSIANS_PER_POINT)] = 16384,
    yaw: Annotated[float, Float(min=-360.0, max=360.0, step=1.0, extra={"advanced": True})] = 90.0,
    pitch: Annotated[float, Float(min=-89.0, max=89.0, step=1.0, extra={"advanced": True})] = 15.0,
    point_size: Annotated[int, Int(min=1, max=16)] = 3,
) -> MODEL:
    """Show the Gaussians that the latent would become after every step of the sampler, seen from a camera."""
    view = PreviewView(num_gaussians, octree_level, yaw, pitch, point_size)
    previews = SplatPreviews(splat_vae(vae), view)
    patched = model.clone()
    patched.add_wrapper_with_key(OUTER_SAMPLE, "triposplat_sampling_preview", previews.wrap_run)
    return patched


def splat_vae(vae: Vae) -> SplatVae:
    """Return a VAE of splats. Raises ValueError for another one."""
    if not isinstance(vae, SplatVae):
        raise ValueError("vae: none of splats; got a VAE of images, videos or audio, expected TripoSplat's decoder")
    return vae
