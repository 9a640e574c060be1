"""Nodes for inpainting: noise masks on latents, encoding with masked areas removed, inputs of inpainting networks."""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch
from torch.nn import functional

from darkroom.contract.graph.facts import NodeFacts
from darkroom.contract.graph.spec import ValueDict
from darkroom.engine.diffusion.differential import thawed_mask
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Optional, Out
from darkroom.engine.nodes.sockets import CONDITIONING, IMAGE, LATENT, MASK, MODEL, VAE, Conditioning, Latent
from darkroom.engine.nodes.widgets import Flag, Float, Int

Positive = Annotated[CONDITIONING, Out("positive")]
Negative = Annotated[CONDITIONING, Out("negative")]
LatentOutput = Annotated[LATENT, Out("latent")]
CELL_PX = 8


@node(
    "SetLatentNoiseMask",
    display_name="Set Latent Noise Mask",
    category="model/latent",
    facts=NodeFacts(keeps_channels=True),
)
def set_latent_noise_mask(context: NodeContext, *, samples: LATENT, mask: MASK) -> LATENT:
    """Restrict sampling of the latent to where the mask is 1."""
    changed: Any = {**samples, "noise_mask": mask.reshape((-1, 1, *mask.shape[-2:]))}
    result: Latent = changed
    return result


@node("VAEEncodeForInpaint", display_name="VAE Encode (for Inpainting)", category="model/latent")
def vae_encode_for_inpaint(
    context: NodeContext,
    *,
    pixels: IMAGE,
    vae: VAE,
    mask: MASK,
    grow_mask_by: Annotated[int, Int(min=0, max=64, step=1)] = 6,
) -> LATENT:
    """Encode an image with grey under the mask.

    The mask is grown so that the edge of the grey area is painted over too.
    """
    pixels, mask = _aligned(pixels, mask, vae.downscale_ratio)
    hole = mask.round()
    noise_mask = mask
    if grow_mask_by > 0:
        kernel = torch.ones((1, 1, grow_mask_by, grow_mask_by))
        # An even kernel has no middle: the mask grows one pixel more to the lower right, and its image by one pixel,
        # which is cut off below.
        grown = functional.conv2d(hole, kernel, padding=math.ceil((grow_mask_by - 1) / 2))
        noise_mask = grown.clamp(0, 1)
    height, width = pixels.shape[1:3]
    latent: Latent = {
        "samples": vae.encode(_greyed(pixels, hole)),
        "noise_mask": noise_mask[:, :, :height, :width].round(),
    }
    return latent


@node("InpaintModelConditioning", category="model/conditioning")
def inpaint_model_conditioning(
    context: NodeContext,
    *,
    positive: CONDITIONING,
    negative: CONDITIONING,
    vae: VAE,
    pixels: IMAGE,
    mask: MASK,
    noise_mask: Annotated[bool, Flag()] = True,
) -> tuple[Positive, Negative, LatentOutput]:
    """Return conditioning for networks that take mask and masked image, and the latent of the whole image.

    With `noise_mask` only what the mask covers is sampled.
    """
    cut, cut_mask = _aligned(pixels, mask, CELL_PX)
    masked = vae.encode(_greyed(cut, cut_mask.round()))
    latent: Latent = {"samples": vae.encode(pixels)}
    if noise_mask:
        latent["noise_mask"] = cut_mask
    seen = {"concat_latent_image": masked, "concat_mask": cut_mask}
    return _with(positive, seen), _with(negative, seen), latent


@node("InstructPixToPixConditioning", display_name=None, category="model/conditioning/instructpix2pix",
      python_module="comfy_extras.nodes_ip2p")  # fmt: skip
def instruct_pix_to_pix_conditioning(
    context: NodeContext, *, positive: CONDITIONING, negative: CONDITIONING, vae: VAE, pixels: IMAGE
) -> tuple[Positive, Negative, LatentOutput]:
    """Return conditioning for networks that take the image to edit, and an empty latent of its size."""
    image = vae.encode(_cut_to_cells(pixels, CELL_PX))
    seen = {"concat_latent_image": image}
    return _with(positive, seen), _with(negative, seen), {"samples": torch.zeros_like(image)}


@node("DifferentialDiffusion", display_name="Differential Diffusion", category="experimental",
      python_module="comfy_extras.nodes_differential_diffusion", experimental=True)  # fmt: skip
def differential_diffusion(
    context: NodeContext,
    *,
    model: MODEL,
    strength: Annotated[float, Float(min=0.0, max=1.0, step=0.01), Optional()] = 1.0,
) -> MODEL:
    """Sample each cell from the step that its mask value stands for."""
    patched = model.clone()
    patched.set_model_denoise_mask_function(
        lambda sigma, denoise_mask, extra_options: thawed_mask(sigma, denoise_mask, extra_options, strength)
    )
    return patched


def _aligned(pixels: torch.Tensor, mask: torch.Tensor, cell_px: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Crop image [B, H, W, C] and mask [B, 1, H, W] of its size evenly to whole latent cells."""
    mask = mask.reshape((-1, 1, *mask.shape[-2:]))
    mask = functional.interpolate(mask, size=pixels.shape[1:3], mode="bilinear")
    return _cut_to_cells(pixels, cell_px), _cut_to_cells(mask.movedim(1, -1), cell_px).movedim(-1, 1)


def _cut_to_cells(pixels: torch.Tensor, cell_px: int) -> torch.Tensor:
    """Crop [B, H, W, C] evenly to multiples of a cell."""
    for dim in (1, 2):
        size = pixels.shape[dim]
        pixels = pixels.narrow(dim, size % cell_px // 2, size // cell_px * cell_px)
    return pixels


def _greyed(pixels: torch.Tensor, hole: torch.Tensor) -> torch.Tensor:
    """Return the image with its three colours set to 0.5 where `hole` [B, 1, H, W] is 1."""
    kept = (1.0 - hole).movedim(1, -1)
    greyed = pixels.clone()
    greyed[..., :3] = (pixels[..., :3] - 0.5) * kept + 0.5
    return greyed


def _with(conditioning: Conditioning, values: ValueDict) -> Conditioning:
    return [[tokens, {**options, **values}] for tokens, options in conditioning]


NODES = (
    set_latent_noise_mask, vae_encode_for_inpaint, inpaint_model_conditioning, instruct_pix_to_pix_conditioning,
    differential_diffusion,
)  # fmt: skip
