"""The configuration of a staged video autoencoder, read from the shapes of its tensors. Pure."""

from __future__ import annotations

from dataclasses import replace
from math import isqrt

from engine.families.ltx_video.vae import LtxVideoVaeConfig
from engine.families.ltx_video.vae_layers import Stage
from engine.layers.unet_shapes import Shapes, count_children
from engine.layers.video_cells import Stride

MARK = "decoder.up_blocks.0.res_blocks.0.conv1.conv.weight"
FOLDS: dict[int, Stride] = {8: (2, 2, 2), 4: (1, 2, 2), 2: (2, 1, 1)}  # by the cells that become one


def ltx_video_vae_config(shapes: Shapes) -> LtxVideoVaeConfig:
    """Return the configuration of the network with these tensors (names without prefix).

    Steps of strided convolutions, the kind of padding and whether a stage is residual show in no shape: they are those
    of the published networks, unless the file's metadata say otherwise.
    """
    return LtxVideoVaeConfig(
        encoder=_stages(shapes, "encoder.down_blocks", "encoder.conv_out.conv.weight", goes_up=False),
        decoder=_stages(shapes, "decoder.up_blocks", "decoder.conv_out.conv.weight", goes_up=True),
        first_channels=shapes["encoder.conv_in.conv.weight"][0],
        last_channels=shapes["decoder.conv_in.conv.weight"][0],
        latent_channels=shapes["decoder.conv_in.conv.weight"][1],
        patch=isqrt(shapes["encoder.conv_in.conv.weight"][1] // 3),
        removes_noise="decoder.last_scale_shift_table" in shapes,
        moment_channels=shapes["encoder.conv_out.conv.weight"][0],
    )


def _stages(shapes: Shapes, home: str, end: str, *, goes_up: bool) -> tuple[Stage, ...]:
    prefixes = [f"{home}.{index}." for index in range(count_children(shapes, home))]
    entering = [*(shapes[_first_weight(shapes, prefix)][1] for prefix in prefixes), shapes[end][1]]
    return tuple(
        _stage(shapes, prefix, entering[index], entering[index + 1], goes_up=goes_up)
        for index, prefix in enumerate(prefixes)
    )


def _stage(shapes: Shapes, prefix: str, entering: int, leaving: int, *, goes_up: bool) -> Stage:
    """Describe the stage behind `prefix`, between these numbers of channels."""
    if f"{prefix}res_blocks.0.conv1.conv.weight" in shapes:
        noise = f"{prefix}res_blocks.0.per_channel_scale1" in shapes
        num_blocks = count_children(shapes, f"{prefix}res_blocks")
        return Stage("blocks", leaving, num_blocks=num_blocks, adds_noise=noise)
    if f"{prefix}conv1.conv.weight" in shapes:
        return Stage("width", leaving, adds_noise=f"{prefix}per_channel_scale1" in shapes)
    if f"{prefix}conv.weight" in shapes:
        return Stage("strided", leaving)
    rows = shapes[f"{prefix}conv.conv.weight"][0]
    cells = rows // leaving if goes_up else leaving // rows
    stage = Stage("folded", leaving, stride=FOLDS.get(cells, FOLDS[8]))
    return replace(stage, is_residual=goes_up and leaving != entering)


def _first_weight(shapes: Shapes, prefix: str) -> str:
    """Return the name of the weight that a stage begins with. Raises LookupError for a stage of no known kind."""
    ends = ("res_blocks.0.conv1.conv.weight", "conv1.conv.weight", "conv.weight", "conv.conv.weight")
    found = next((prefix + end for end in ends if prefix + end in shapes), None)
    if found is None:
        raise LookupError(f"'{prefix}conv.conv.weight'")
    return found
