"""The names of the diffusers library for the layers of Flux.2's transformer, in its files and in those of LoRAs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from darkroom.engine.adapters.lora_names import LoraTarget, denoiser_keys, named_by_trainers, rows_of, swapped_halves
from darkroom.engine.families.base import Layout, Shapes
from darkroom.engine.families.flux.diffusers_names import DOUBLE_FUSED, DOUBLE_NORMS, SINGLE_NORMS, blocks
from darkroom.engine.families.flux2.transformer import Flux2Config
from darkroom.engine.families.layouts import composed_layout, swapped_halves_of
from darkroom.engine.formats.weight_file import Item, Joined
from darkroom.engine.layers.shapes import count_children

MARK = "double_stream_modulation_img.linear.weight"
NETWORK = {
    "x_embedder": "img_in",
    "context_embedder": "txt_in",
    "time_guidance_embed.timestep_embedder.linear_1": "time_in.in_layer",
    "time_guidance_embed.timestep_embedder.linear_2": "time_in.out_layer",
    "time_guidance_embed.guidance_embedder.linear_1": "guidance_in.in_layer",
    "time_guidance_embed.guidance_embedder.linear_2": "guidance_in.out_layer",
    "double_stream_modulation_img.linear": "double_stream_modulation_img.lin",
    "double_stream_modulation_txt.linear": "double_stream_modulation_txt.lin",
    "single_stream_modulation.linear": "single_stream_modulation.lin",
    "proj_out": "final_layer.linear",
}
SWAPPED = {"norm_out.linear": "final_layer.adaLN_modulation.1"}  # shift and scale in the other order
DOUBLE = {
    "attn.to_out.0": "img_attn.proj",
    "attn.to_add_out": "txt_attn.proj",
    "ff.linear_in": "img_mlp.0",
    "ff.linear_out": "img_mlp.2",
    "ff_context.linear_in": "txt_mlp.0",
    "ff_context.linear_out": "txt_mlp.2",
}
SINGLE = {"attn.to_qkv_mlp_proj": "linear1", "attn.to_out": "linear2"}
SINGLE_PARTS = ("attn.to_q", "attn.to_k", "attn.to_v")  # of `linear1`, in LoRAs alone
PREFIXES = ("transformer.", "base_model.model.", "")
FLAT_PREFIXES = ("lycoris_", "lora_transformer_")


def _file_names(shapes: Shapes) -> Iterator[tuple[str, Item]]:
    """Yield (the network's name, what of the file it is) for all tensors that such a file may have."""
    yield from ((f"{ours}.weight", f"{theirs}.weight") for theirs, ours in NETWORK.items())
    yield from ((f"{ours}.weight", swapped_halves_of(f"{theirs}.weight")) for theirs, ours in SWAPPED.items())
    numbers = (count_children(shapes, name) for name in ("transformer_blocks", "single_transformer_blocks"))
    for theirs, ours, is_double in blocks(*numbers):
        plain, norms = (DOUBLE, DOUBLE_NORMS) if is_double else (SINGLE, SINGLE_NORMS)
        yield from ((f"{ours}.{our}.weight", f"{theirs}.{their}.weight") for their, our in plain.items())
        yield from ((f"{ours}.{our}.scale", f"{theirs}.{their}.weight") for their, our in norms.items())
        for our, parts in DOUBLE_FUSED.items() if is_double else ():
            yield f"{ours}.{our}.weight", Joined(tuple(f"{theirs}.{part}.weight" for part in parts))


def file_layout() -> Layout:
    """Make the layout of files of the library."""
    return composed_layout(("", "transformer."), (MARK,), _file_names)


def _lora_targets(config: Flux2Config) -> dict[str, LoraTarget]:
    """Return the weights of the network, or parts of them, by diffusers' names of layers."""
    names: dict[str, LoraTarget] = {theirs: f"{ours}.weight" for theirs, ours in NETWORK.items()}
    names |= {theirs: swapped_halves(f"{ours}.weight") for theirs, ours in SWAPPED.items()}
    width = config.width
    for theirs, ours, is_double in blocks(config.num_double, config.num_single):
        plain, norms = (DOUBLE, DOUBLE_NORMS) if is_double else (SINGLE, SINGLE_NORMS)
        names |= {f"{theirs}.{their}": f"{ours}.{our}.weight" for their, our in plain.items()}
        names |= {f"{theirs}.{their}": f"{ours}.{our}.scale" for their, our in norms.items()}
        for our, parts in (DOUBLE_FUSED if is_double else {"linear1": SINGLE_PARTS}).items():
            for place, their in enumerate(parts):
                names[f"{theirs}.{their}"] = rows_of(f"{ours}.{our}.weight", place * width, width)
    return names


def lora_keys(weight_names: Iterable[str], config: Flux2Config) -> dict[str, LoraTarget]:
    """Return a map from the names used in LoRA files to the weights of the network, or parts of them."""
    attention = {
        f"diffusion_model.single_blocks.{index}.linear1_qkv": rows_of(
            f"diffusion_model.single_blocks.{index}.linear1.weight", 0, 3 * config.width
        )
        for index in range(config.num_single)
    }
    return {
        **denoiser_keys(weight_names, {}),
        **named_by_trainers(_lora_targets(config), PREFIXES, FLAT_PREFIXES),
        **attention,
    }
