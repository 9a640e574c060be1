"""The autoencoder of videos of LTX-2.4: its files, whose metadata tell the windows of its attention."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from darkroom.engine.families.base import NotRecognised
from darkroom.engine.families.ltx2.diffusion_decoder import DiffusionDecoderConfig, EnlargingStage
from darkroom.engine.families.ltx2.diffusion_vae import DiffusionVae, DiffusionVaeConfig
from darkroom.engine.families.ltx_video.vae import LtxVideoVaeConfig, encoder_stages
from darkroom.engine.families.ltx_video.vae_files import METADATA, described_stages, stages_as_described
from darkroom.engine.families.ltx_video.vae_layers import Stage
from darkroom.engine.families.vae_files import vae_network
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.video_cells import Stride, cells_of

MARK = "decoder.conv_in_x_t.weight"
WINDOWS: tuple[Stride, ...] = ((3, 7, 7), (3, 7, 7), (3, 5, 5), (3, 5, 5))
STRIDES: tuple[Stride, ...] = ((1, 2, 2), (2, 1, 1), (2, 2, 2), (2, 2, 2))
MOST_CELLS = 64  # along an axis of a window
MOST_STEPS = 1000
LABEL = "a VAE of videos of LTX-2.4"


def _stage(channels: int, num_blocks: int, window: Stride, stride: Stride, leaving: int) -> EnlargingStage:
    return EnlargingStage(channels, num_blocks, window, stride, leaving)


def configure(shapes: Shapes) -> DiffusionVaeConfig:
    """Return the configuration of the network with these tensors (names without prefix), in the published windows."""
    num_stages = count_children(shapes, "decoder.det_stages")
    if num_stages != len(STRIDES):
        raise NotRecognised(f"{LABEL} of {num_stages} stages, expected {len(STRIDES)}")
    entering = [shapes[f"decoder.det_stages.{index}.0.norm1.weight"][0] for index in range(num_stages)]
    channels, pixels = shapes[MARK]
    stages = tuple(
        _stage(
            entering[index], count_children(shapes, f"decoder.det_stages.{index}"), WINDOWS[index], STRIDES[index],
            shapes[f"decoder.upsamples.{index}.proj.weight"][0] // cells_of(STRIDES[index]),
        )
        for index in range(num_stages)
    )  # fmt: skip
    decoder = DiffusionDecoderConfig(
        stages=stages,
        channels=channels,
        num_blocks=count_children(shapes, "decoder.diff_blocks"),
        latent_channels=shapes["decoder.conv_in.weight"][1],
        head_dim=shapes["decoder.det_stages.0.0.attn.q_norm.weight"][0],
        patch=round((pixels / 3) ** 0.5),
        time_dim=shapes["decoder.t_embedder.mlp.0.weight"][0],
    )
    encoder = LtxVideoVaeConfig(
        encoder=encoder_stages(shapes),
        decoder=(),
        first_channels=shapes["encoder.conv_in.conv.weight"][0],
        latent_channels=decoder.latent_channels,
        patch=round((shapes["encoder.conv_in.conv.weight"][1] / 3) ** 0.5),
        moment_channels=shapes["encoder.conv_out.conv.weight"][0],
    )
    return DiffusionVaeConfig(encoder, decoder)


def as_described(config: DiffusionVaeConfig, metadata: Mapping[str, str]) -> DiffusionVaeConfig:
    """Return the configuration with what a file's metadata tell. Raises `NotRecognised` for another network's."""
    try:
        described: dict[str, Any] = json.loads(metadata.get(METADATA, "{}")).get("vae") or {}
        encoder, decoder = described.get("encoder", {}), described.get("decoder", {})
        norm, prediction = encoder.get("norm_layer", "pixel_norm"), described.get("model_output_type", "x0")
        if norm != "pixel_norm" or prediction not in ("x0", "v"):
            raise NotRecognised(f"{LABEL} with other layers ({norm!r}, {prediction!r})")
        return DiffusionVaeConfig(
            replace(
                config.encoder,
                encoder=stages_as_described(config.encoder.encoder, encoder.get("blocks", [])),
                encoder_padding=encoder.get("spatial_padding_mode", config.encoder.encoder_padding),
            ),
            replace(
                config.decoder,
                stages=_stages_as_described(config.decoder.stages, decoder),
                window=_window(decoder.get("stage5_kernel", config.decoder.window)),
                num_steps=_number(decoder.get("default_num_inference_steps", 1), MOST_STEPS),
                time_scale=float(decoder.get("timestep_scale_multiplier", config.decoder.time_scale)),
                prediction=prediction,
            ),
        )
    except (ValueError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise NotRecognised(f"{LABEL} with metadata that do not describe it ({error})") from error


def _stages_as_described(stages: tuple[EnlargingStage, ...], decoder: Mapping[str, Any]) -> tuple[EnlargingStage, ...]:
    windows = decoder.get("stage_kernels", WINDOWS)
    strides = [item[0] for item in decoder.get("upsamples", [[stride, 1] for stride in STRIDES])]
    if len(strides) != len(stages) or len(windows) < len(stages):
        raise ValueError(f"{len(strides)} stages described, {len(stages)} in the file")
    return tuple(
        replace(
            stage, window=_window(windows[index]), stride=(new := _window(strides[index])),
            leaving=stage.leaving * cells_of(stage.stride) // cells_of(new),
        )
        for index, stage in enumerate(stages)
    )  # fmt: skip


def _window(described: Sequence[Any]) -> Stride:
    frames, rows, columns = (_number(item, MOST_CELLS) for item in described)
    return frames, rows, columns


def _number(value: object, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"got {value!r}, expected 1 to {most}")
    return value


def description(config: DiffusionVaeConfig) -> dict[str, dict[str, object]]:
    """Return the metadata of a file with a network of this configuration."""
    decoder, encoder = config.decoder, config.encoder
    described = {
        "_class_name": "CausalDiffusionVAE",
        "dims": 3,
        "model_output_type": decoder.prediction,
        "encoder": {
            "dims": 3,
            "in_channels": 3,
            "out_channels": encoder.latent_channels,
            "blocks": described_stages(encoder.encoder, encoder.first_channels, folded="_res"),
            "patch_size": encoder.patch,
            "latent_log_var": "per_channel" if encoder.moment_channels == 2 * encoder.latent_channels else "constant",
            "norm_layer": "pixel_norm",
            "base_channels": encoder.first_channels,
            "spatial_padding_mode": encoder.encoder_padding,
        },
        "decoder": {
            "in_channels": decoder.latent_channels,
            "out_channels": 3,
            "patch_size": decoder.patch,
            "head_dim": decoder.head_dim,
            "stage_channels": [*(stage.channels for stage in decoder.stages), decoder.channels],
            "stage_depths": [*(stage.num_blocks for stage in decoder.stages), decoder.num_blocks],
            "stage_kernels": [*(list(stage.window) for stage in decoder.stages), list(decoder.window)],
            "upsamples": [[list(stage.stride), stage.channels // stage.leaving] for stage in decoder.stages],
            "stage5_kernel": list(decoder.window),
            "t_emb_dim": decoder.time_dim,
            "default_num_inference_steps": decoder.num_steps,
            "timestep_scale_multiplier": decoder.time_scale,
        },
    }
    return {METADATA: {"vae": described}}


def _blocks(channels: int, num_blocks: int) -> Stage:
    return Stage("blocks", channels, num_blocks=num_blocks)


def _config(
    first: int, time_dim: int, channels: tuple[int, ...], depths: tuple[int, ...], window: Stride
) -> DiffusionVaeConfig:
    """Return the configuration of a network as published, of these sizes."""
    leaving = (*channels[1:-1], channels[-1])
    stages = tuple(_stage(*item) for item in zip(channels[:-1], depths[:-1], WINDOWS, STRIDES, leaving, strict=True))
    half = 4 * first
    encoder = LtxVideoVaeConfig(
        encoder=(
            _blocks(first, 4), Stage("folded", 2 * first, stride=(1, 2, 2)), _blocks(2 * first, 6),
            Stage("folded", half, stride=(2, 1, 1)), _blocks(half, 4), Stage("folded", 2 * half),
            _blocks(2 * half, 2), Stage("folded", 2 * half), _blocks(2 * half, 2),
        ),
        decoder=(), first_channels=first,
    )  # fmt: skip
    decoder = DiffusionDecoderConfig(stages, channels[-1], depths[-1], window, time_dim=time_dim)
    return DiffusionVaeConfig(encoder, decoder)


DIFFUSION_AUTOENCODER = replace(
    vae_network(
        MARK,
        configure,
        DiffusionVae,
        ("bfloat16",),
        sizes={
            "full": _config(128, 384, (2048, 1024, 512, 512, 256), (4, 6, 4, 2, 8), (11, 11, 11)),
            "small": _config(8, 32, (128, 64, 64, 64, 64), (1, 1, 1, 1, 1), (5, 5, 5)),
        },
    ),
    as_described=as_described,
    description=description,
)
