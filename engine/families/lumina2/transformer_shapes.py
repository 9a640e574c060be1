"""The configuration of a Next-DiT, read from the shapes of its tensors. Pure."""

from __future__ import annotations

from engine.families.lumina2.transformer import Lumina2Config
from engine.layers.patches import PATCH
from engine.layers.unet_shapes import Shapes, count_children

MARK = "noise_refiner.0.attention.k_norm.weight"
TIME_LAYER = "layers.0.adaLN_modulation.0.weight"  # the first of a block's modulation where no SiLU comes before it
PAD_TOKEN = "cap_pad_token"
POOLED = "clip_text_pooled_proj.0.weight"  # of networks that read a pooled output beside the time
FLOAT32_EPS = 2.0**-23


def lumina2_config(shapes: Shapes) -> Lumina2Config:
    """Return the configuration of the network with these tensors (names without prefix).

    One whose blocks do not pass the time through SiLU is Z-Image's, with its axes of places and unit of time.
    """
    width, in_width = shapes["x_embedder.weight"]
    rows = shapes["layers.0.attention.qkv.weight"][0]
    (head_width,) = shapes[MARK]
    heads = shapes["layers.0.attention.out.weight"][1] // head_width
    time_width, time_inner = shapes["t_embedder.mlp.2.weight"]
    is_plain = TIME_LAYER in shapes
    return Lumina2Config(
        width=width,
        heads=heads,
        key_heads=(rows // head_width - heads) // 2,
        inner_width=shapes["layers.0.feed_forward.w1.weight"][0],
        num_layers=count_children(shapes, "layers"),
        context_dim=shapes["cap_embedder.1.weight"][1],
        time_width=time_width,
        time_inner=time_inner,
        num_refiners=count_children(shapes, "noise_refiner"),
        in_channels=in_width // PATCH**2,
        axes=(32, 48, 48) if is_plain else (32, 32, 32),
        theta=256.0 if is_plain else 10000.0,
        time_factor=1000.0 if is_plain else 1.0,
        activates_time=not is_plain,
        pads_tokens=PAD_TOKEN in shapes,
        has_last_norm="norm_final.weight" in shapes,
        query_eps=FLOAT32_EPS if is_plain else None,
    )
