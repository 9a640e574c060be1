"""Nodes that patch the networks of MODEL and CLIP: FreeU, tiles, merged tokens, downscaling, attention scaling."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import torch

from darkroom.contract.graph.spec import Values
from darkroom.engine.diffusion.host_levels import on_host
from darkroom.engine.images.pixels import resize
from darkroom.engine.layers.freeu import FreeU
from darkroom.engine.layers.hyper_tile import HyperTile
from darkroom.engine.layers.token_merging import TokenMerging
from darkroom.engine.models.model import Model
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import CLIP, MODEL
from darkroom.engine.nodes.widgets import Combo, Flag, Float, Int

UNET = "model/patch/unet"
EXPERIMENTS = "experimental/attention_experiments"
EXPERIMENTS_MODULE = "comfy_extras.nodes_attention_multiply"
RESIZE_METHODS = ("bicubic", "nearest-exact", "bilinear", "area", "bislerp")

Factor = Annotated[float, Float(min=0.0, max=10.0, step=0.01)]
Percent = Annotated[float, Float(min=0.0, max=1.0, step=0.001)]


# --- FreeU -----------------------------------------------------------------------------------------------------------


def _with_freeu(model: Model, stages: tuple[tuple[float, float], tuple[float, float]], *, is_structured: bool) -> Model:
    channels = model.model.model_config.unet_config["model_channels"]
    patched = model.clone()
    factors = {channels * 4: stages[0], channels * 2: stages[1]}
    patched.set_model_output_block_patch(FreeU(factors, is_structured=is_structured))
    return patched


@node(
    "FreeU",
    display_name=None,
    category=UNET,
    python_module="comfy_extras.nodes_freelunch",
    advanced=("b1", "b2", "s1", "s2"),
)
def freeu(
    context: NodeContext, *, model: MODEL, b1: Factor = 1.1, b2: Factor = 1.2, s1: Factor = 0.9, s2: Factor = 0.2
) -> MODEL:
    return _with_freeu(model, ((b1, s1), (b2, s2)), is_structured=False)


@node(
    "FreeU_V2",
    display_name=None,
    category=UNET,
    python_module="comfy_extras.nodes_freelunch",
    advanced=("b1", "b2", "s1", "s2"),
)
def freeu_v2(
    context: NodeContext, *, model: MODEL, b1: Factor = 1.3, b2: Factor = 1.4, s1: Factor = 0.9, s2: Factor = 0.2
) -> MODEL:
    return _with_freeu(model, ((b1, s1), (b2, s2)), is_structured=True)


# --- fewer or grouped tokens -----------------------------------------------------------------------------------------


@node(
    "HyperTile",
    display_name=None,
    category=UNET,
    python_module="comfy_extras.nodes_hypertile",
    advanced=("tile_size", "swap_size", "max_depth", "scale_depth"),
)
def hyper_tile(
    context: NodeContext,
    *,
    model: MODEL,
    tile_size: Annotated[int, Int(min=1, max=2048)] = 256,
    swap_size: Annotated[int, Int(min=1, max=128)] = 2,
    max_depth: Annotated[int, Int(min=0, max=10)] = 0,
    scale_depth: Annotated[bool, Flag()] = False,
) -> MODEL:
    tiles = HyperTile(tile_size, swap_size, max_depth, scale_depth)
    patched = model.clone()
    patched.set_model_attn1_patch(tiles.cut)
    patched.set_model_attn1_output_patch(tiles.join)
    return patched


@node("TomePatchModel", display_name=None, category=UNET, python_module="comfy_extras.nodes_tomesd")
def tome_patch_model(
    context: NodeContext,
    *,
    model: MODEL,
    ratio: Annotated[float, Float(min=0.0, max=1.0, step=0.01)] = 0.3,
) -> MODEL:
    tokens = TokenMerging(ratio)
    patched = model.clone()
    patched.set_model_attn1_patch(tokens.merge)
    patched.set_model_attn1_output_patch(tokens.unmerge)
    return patched


@node(
    "PatchModelAddDownscale",
    display_name="PatchModelAddDownscale (Kohya Deep Shrink)",
    category=UNET,
    python_module="comfy_extras.nodes_model_downscale",
    advanced=("block_number", "start_percent", "end_percent", "downscale_after_skip"),
)
def patch_model_add_downscale(
    context: NodeContext,
    *,
    model: MODEL,
    block_number: Annotated[int, Int(min=1, max=32, step=1)] = 3,
    downscale_factor: Annotated[float, Float(min=0.1, max=9.0, step=0.001)] = 2.0,
    start_percent: Percent = 0.0,
    end_percent: Percent = 0.35,
    downscale_after_skip: Annotated[bool, Flag()] = True,
    downscale_method: Annotated[str, Combo(RESIZE_METHODS)],
    upscale_method: Annotated[str, Combo(RESIZE_METHODS)],
) -> MODEL:
    """Downscale inner features from one block on during early steps (Deep Shrink, kohya-ss), for large images."""
    sampling = model.get_model_object("model_sampling")
    first, last = sampling.percent_to_sigma(start_percent), sampling.percent_to_sigma(end_percent)

    def shrink(h: torch.Tensor, options: Values) -> torch.Tensor:
        if options["block"][1] != block_number or not last <= float(on_host(options["sigmas"])[0]) <= first:
            return h
        width, height = (round(h.shape[dim] * (1.0 / downscale_factor)) for dim in (-1, -2))
        return resize(h, width, height, downscale_method)

    def grow(h: torch.Tensor, skip: torch.Tensor, options: Mapping[str, object]) -> tuple[torch.Tensor, torch.Tensor]:
        if h.shape[2] != skip.shape[2]:
            h = resize(h, skip.shape[-1], skip.shape[-2], upscale_method)
        return h, skip

    patched = model.clone()
    if downscale_after_skip:
        patched.set_model_input_block_patch_after_skip(shrink)
    else:
        patched.set_model_input_block_patch(shrink)
    patched.set_model_output_block_patch(grow)
    return patched


# --- attention's weights scaled --------------------------------------------------------------------------------------


def _scale_weights(keys: Iterable[str], target: Any, factors: Mapping[str, float]) -> None:
    """Multiply the weights and biases of the layers whose names end with these suffixes."""
    for layer, factor in factors.items():
        endings = (f"{layer}.weight", f"{layer}.bias")
        target.add_patches({key: (None,) for key in keys if key.endswith(endings)}, 0.0, factor)


def _attention_scaled(model: Model, name: str, factors: tuple[float, float, float, float]) -> Model:
    layers = (f"{name}.to_q", f"{name}.to_k", f"{name}.to_v", f"{name}.to_out.0")
    patched = model.clone()
    _scale_weights(model.model_state_dict(), patched, dict(zip(layers, factors, strict=True)))
    return patched


@node("UNetSelfAttentionMultiply", display_name=None, category=EXPERIMENTS, python_module=EXPERIMENTS_MODULE,
      experimental=True, advanced=("q", "k", "v", "out"))  # fmt: skip
def unet_self_attention_multiply(
    context: NodeContext, *, model: MODEL, q: Factor = 1.0, k: Factor = 1.0, v: Factor = 1.0, out: Factor = 1.0
) -> MODEL:
    return _attention_scaled(model, "attn1", (q, k, v, out))


@node("UNetCrossAttentionMultiply", display_name=None, category=EXPERIMENTS, python_module=EXPERIMENTS_MODULE,
      experimental=True, advanced=("q", "k", "v", "out"))  # fmt: skip
def unet_cross_attention_multiply(
    context: NodeContext, *, model: MODEL, q: Factor = 1.0, k: Factor = 1.0, v: Factor = 1.0, out: Factor = 1.0
) -> MODEL:
    return _attention_scaled(model, "attn2", (q, k, v, out))


@node("CLIPAttentionMultiply", display_name=None, category=EXPERIMENTS, python_module=EXPERIMENTS_MODULE,
      experimental=True, advanced=("q", "k", "v", "out"))  # fmt: skip
def clip_attention_multiply(
    context: NodeContext, *, clip: CLIP, q: Factor = 1.0, k: Factor = 1.0, v: Factor = 1.0, out: Factor = 1.0
) -> CLIP:
    layers = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj")
    patched = clip.clone()
    _scale_weights(patched.patcher.model_state_dict(), patched, dict(zip(layers, (q, k, v, out), strict=True)))
    return patched


@node(
    "UNetTemporalAttentionMultiply",
    display_name=None,
    category=EXPERIMENTS,
    python_module=EXPERIMENTS_MODULE,
    experimental=True,
    advanced=("self_structural", "self_temporal", "cross_structural", "cross_temporal"),
)
def unet_temporal_attention_multiply(
    context: NodeContext,
    *,
    model: MODEL,
    self_structural: Factor = 1.0,
    self_temporal: Factor = 1.0,
    cross_structural: Factor = 1.0,
    cross_temporal: Factor = 1.0,
) -> MODEL:
    """Scale attention separately in temporal layers (within `time_stack`) and structural ones.

    A UNet of still images has no temporal layers.
    """
    keys = list(model.model_state_dict())
    temporal = [key for key in keys if ".time_stack." in key]
    structural = [key for key in keys if ".time_stack." not in key]
    patched = model.clone()
    _scale_weights(structural, patched, {"attn1.to_out.0": self_structural, "attn2.to_out.0": cross_structural})
    _scale_weights(temporal, patched, {"attn1.to_out.0": self_temporal, "attn2.to_out.0": cross_temporal})
    return patched


NODES = (
    freeu, freeu_v2, hyper_tile, tome_patch_model, patch_model_add_downscale, unet_self_attention_multiply,
    unet_cross_attention_multiply, clip_attention_multiply, unet_temporal_attention_multiply,
)  # fmt: skip
