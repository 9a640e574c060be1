"""Node classes made for Chroma Radiance: empty images as latents, and how many patches are drawn at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import torch

from darkroom.engine.diffusion.host_levels import on_host
from darkroom.engine.families.chroma_radiance.transformer import NUMBERING_OPTION, OPTIONS, TILE_OPTION
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.conditioning.conditioning import MAX_SIDE_PX
from darkroom.engine.nodes.sockets import LATENT, MODEL
from darkroom.engine.nodes.widgets import Flag, Float, Int

MODULE = "comfy_extras.nodes_chroma_radiance"
OWN_TILE = -1  # the network's number of patches
CHANNELS = 3
CallArguments = Mapping[str, Any]

Side = Annotated[int, Int(min=16, max=MAX_SIDE_PX, step=16)]
Noise = Annotated[float, Float(min=0.0, max=1.0)]


@node(
    "EmptyChromaRadianceLatentImage", display_name=None, category="model/latent/chroma radiance", python_module=MODULE
)
def empty_chroma_radiance_latent_image(
    context: NodeContext,
    *,
    width: Side = 1024,
    height: Side = 1024,
    batch_size: Annotated[int, Int(min=1, max=4096)] = 1,
) -> LATENT:
    return {"samples": torch.zeros([batch_size, CHANNELS, height, width])}


@node(
    "ChromaRadianceOptions",
    display_name=None,
    category="model/patch/chroma radiance",
    python_module=MODULE,
    advanced=("start_sigma", "end_sigma", "nerf_tile_size", "force_sequential_txt_ids"),
)
def chroma_radiance_options(
    context: NodeContext,
    *,
    model: MODEL,
    preserve_wrapper: Annotated[
        bool,
        Flag(
            extra={
                "tooltip": "When enabled, will delegate to an existing model function wrapper if it exists. Generally "
                "should be left enabled."
            }
        ),
    ] = True,
    start_sigma: Annotated[
        float, Float(min=0.0, max=1.0, extra={"tooltip": "First sigma that these options will be in effect."})
    ] = 1.0,
    end_sigma: Annotated[
        float, Float(min=0.0, max=1.0, extra={"tooltip": "Last sigma that these options will be in effect."})
    ] = 0.0,
    nerf_tile_size: Annotated[
        int,
        Int(
            min=OWN_TILE,
            extra={
                "tooltip": "Allows overriding the default NeRF tile size. -1 means use the default (32). 0 means use "
                "non-tiling mode (may require a lot of VRAM)."
            },
        ),
    ] = OWN_TILE,
    force_sequential_txt_ids: Annotated[bool, Flag()] = False,
) -> MODEL:
    """Allows setting advanced options for the Chroma Radiance model."""  # noqa: D401 - ComfyUI's words
    options: dict[str, int] = {} if nerf_tile_size == OWN_TILE else {TILE_OPTION: nerf_tile_size}
    if force_sequential_txt_ids:
        options[NUMBERING_OPTION] = True
    if not options:
        return model
    before = model.model_options.get("model_function_wrapper") if preserve_wrapper else None
    patched = model.clone()
    patched.set_model_unet_function_wrapper(_with_options(options, (end_sigma, start_sigma), before))
    return patched


def _with_options(
    options: dict[str, int], sigmas: tuple[float, float], inner: Callable[..., torch.Tensor] | None
) -> Callable[..., torch.Tensor]:
    """Return a wrapper of a model's function that gives the network options at noise levels of a range."""
    last, first = sigmas

    def wrapper(apply_model: Callable[..., torch.Tensor], args: CallArguments) -> torch.Tensor:
        inputs = dict(args["c"])
        if last <= float(on_host(args["timestep"]).max()) <= first:
            inputs["transformer_options"] = {**inputs.get("transformer_options", {}), OPTIONS: dict(options)}
        if inner is not None:
            return inner(apply_model, {**args, "c": inputs})
        return apply_model(args["input"], args["timestep"], **inputs)

    return wrapper


NODES = (empty_chroma_radiance_latent_image, chroma_radiance_options)
