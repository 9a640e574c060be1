"""Names of the UNet's weights in the original checkpoints' layout and, where they differ, in diffusers'.

ComfyUI has these tables in `comfy.utils`, where packs that read or write model files use them.
"""

from __future__ import annotations

_BOTH = ("weight", "bias")


def _pairs(*layers: tuple[str, str]) -> list[tuple[str, str]]:
    return [(f"{ours}.{kind}", f"{theirs}.{kind}") for ours, theirs in layers for kind in _BOTH]


UNET_MAP_ATTENTIONS = {f"{layer}.{kind}" for layer in ("proj_in", "proj_out", "norm") for kind in _BOTH}

TRANSFORMER_BLOCKS = {
    *(f"norm{number}.{kind}" for number in (1, 2, 3) for kind in _BOTH),
    *(f"attn{number}.to_{side}.weight" for number in (1, 2) for side in "qkv"),
    *(f"attn{number}.to_out.0.{kind}" for number in (1, 2) for kind in _BOTH),
    *(f"ff.net.{layer}.{kind}" for layer in ("0.proj", "2") for kind in _BOTH),
}

UNET_MAP_RESNET = dict(
    _pairs(
        ("in_layers.0", "norm1"),
        ("in_layers.2", "conv1"),
        ("emb_layers.1", "time_emb_proj"),
        ("out_layers.0", "norm2"),
        ("out_layers.3", "conv2"),
        ("skip_connection", "conv_shortcut"),
    )
)

UNET_MAP_BASIC = set(
    _pairs(
        ("input_blocks.0.0", "conv_in"),
        ("out.0", "conv_norm_out"),
        ("out.2", "conv_out"),
        ("time_embed.0", "time_embedding.linear_1"),
        ("time_embed.2", "time_embedding.linear_2"),
        ("label_emb.0.0", "class_embedding.linear_1"),
        ("label_emb.0.2", "class_embedding.linear_2"),
        ("label_emb.0.0", "add_embedding.linear_1"),  # another name of it in diffusers
        ("label_emb.0.2", "add_embedding.linear_2"),
    )
)
