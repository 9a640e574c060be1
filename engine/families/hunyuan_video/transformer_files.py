"""The transformer of the Hunyuan families (`engine/families/hunyuan_video/transformer.py`): its files and its LoRAs.

Files have Tencent's names of layers, or those that ComfyUI gives them, which are the network's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from darkroom.engine.adapters.lora_names import DENOISER_PREFIX, LoraTarget, denoiser_keys
from darkroom.engine.families.base import Layout, Network, Shape, Shapes
from darkroom.engine.families.hunyuan_video.transformer import (
    FIRST,
    LABELS,
    MARK,
    HunyuanVideoConfig,
    HunyuanVideoTransformer,
    hunyuan_video_config,
)
from darkroom.engine.families.layouts import saved_behind
from darkroom.engine.formats.weight_file import Names, shape_of
from darkroom.engine.settings import DtypeName, DtypePolicy

PREFIX = "model.model."  # of checkpoints that ComfyUI saves
IN_CHECKPOINT = ("model.diffusion_model.", PREFIX)
PREFIXES = (*IN_CHECKPOINT, "diffusion_model.", "transformer.", "")  # of files of the network alone

# Parts of Tencent's names, and of the network's, in the order in which they are replaced.
RENAMED = (
    ("txt_in.t_embedder.mlp.0.", "txt_in.t_embedder.in_layer."),
    ("txt_in.t_embedder.mlp.2.", "txt_in.t_embedder.out_layer."),
    ("txt_in.c_embedder.linear_1.", "txt_in.c_embedder.in_layer."),
    ("txt_in.c_embedder.linear_2.", "txt_in.c_embedder.out_layer."),
    ("_mod.linear.", "_mod.lin."),
    ("_attn_qkv.", "_attn.qkv."),
    ("mlp.fc1.", "mlp.0."),
    ("mlp.fc2.", "mlp.2."),
    ("_attn_q_norm.weight", "_attn.norm.query_norm.scale"),
    ("_attn_k_norm.weight", "_attn.norm.key_norm.scale"),
    (".q_norm.weight", ".norm.query_norm.scale"),
    (".k_norm.weight", ".norm.key_norm.scale"),
    (".norm.query_norm.weight", ".norm.query_norm.scale"),  # as later versions of ComfyUI save them
    (".norm.key_norm.weight", ".norm.key_norm.scale"),
    ("_attn_proj.", "_attn.proj."),
    (".modulation.linear.", ".modulation.lin."),
    ("_in.mlp.2.", "_in.out_layer."),
    ("_in.mlp.0.", "_in.in_layer."),
)
# The same for LoRAs: parts of the network's names, and of those that trainers use.
TRAINED = (
    ("_mod.lin.", "_mod.linear."), ("_attn.qkv.", "_attn_qkv."), ("_attn.proj.", "_attn_proj."),
    ("mlp.0.", "mlp.fc1."), ("mlp.2.", "mlp.fc2."), (".modulation.lin.", ".modulation.linear."),
)  # fmt: skip


def replaced(name: str, parts: Iterable[tuple[str, str]]) -> str:
    """Return a name with parts of it replaced one after the other."""
    for before, after in parts:
        name = name.replace(before, after)
    return name


def layout_behind(prefixes: tuple[str, ...]) -> Layout:
    """Make a layout of files under either names, behind the first of these prefixes."""

    def layout(shapes: Shapes) -> Names | None:
        prefix = next((prefix for prefix in prefixes if prefix + MARK in shapes), None)
        if prefix is None:
            return None
        behind = (name for name in shapes if name.startswith(prefix))
        return {replaced(name.removeprefix(prefix), RENAMED): name for name in behind}

    return layout


find = layout_behind(PREFIXES)


class FoundTransformer(NamedTuple):
    """A transformer that a file has. `patch_shape` is that of the weight that reads patches."""

    names: Names
    has_labels: bool
    patch_shape: Shape


def found_transformer(shapes: Shapes) -> FoundTransformer | None:
    """Return the transformer, recognised by the layers that refine its text; None where there is none."""
    names = find(shapes)
    if names is None or FIRST not in names:
        return None
    return FoundTransformer(names, LABELS in names, shape_of(names[FIRST], shapes))


def lora_keys(
    weight_names: Iterable[str], config: HunyuanVideoConfig, *, prefixes: tuple[str, ...] = ("lora_unet_",)
) -> dict[str, LoraTarget]:
    """Return a map from the names used in LoRA files to the weights of the network.

    Those of Tencent are behind `prefixes`, with underscores in place of dots behind those that end with one.
    """
    names = list(weight_names)
    keys: dict[str, LoraTarget] = {}
    for name in names:
        if name.startswith(DENOISER_PREFIX) and name.endswith(".weight"):
            theirs = replaced(name.removeprefix(DENOISER_PREFIX), TRAINED).removesuffix(".weight")
            for prefix in prefixes:
                keys[prefix + (theirs.replace(".", "_") if prefix.endswith("_") else theirs)] = name
    return {**keys, **denoiser_keys(names, {})}


def hunyuan_transformer(
    configure: Callable[[Shapes], HunyuanVideoConfig] = hunyuan_video_config,
    build: Callable[[HunyuanVideoConfig], HunyuanVideoTransformer] = HunyuanVideoTransformer,
    prefers: tuple[DtypeName, ...] = ("bfloat16",),
) -> Network:
    """Describe the network of a family. `prefers` are the types to compute in, best first."""
    return Network(
        layouts=(find,),
        in_checkpoint=(layout_behind(IN_CHECKPOINT),),
        configure=configure,
        build=build,
        saved=partial(saved_behind, PREFIX),
        dtypes=DtypePolicy(prefers=prefers, computes=("float32", "bfloat16", "float64")),
    )
