"""The autoencoder of LTX-Video: its files, what their metadata say, and the numbers of its latents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.families.base import NotRecognised, Shapes
from darkroom.engine.families.ltx_video.colours import LATENT_RGB_BIAS, LATENT_RGB_FACTORS
from darkroom.engine.families.ltx_video.vae import MARK, LtxVideoVae, LtxVideoVaeConfig, ltx_video_vae_config
from darkroom.engine.families.ltx_video.vae_layers import Stage
from darkroom.engine.families.vae_files import vae_network
from darkroom.engine.layers.video_cells import Stride

LATENT_CHANNELS = 128
METADATA = "config"  # the name of the description in a file's metadata, which is JSON
NORM = "pixel_norm"
# Lightricks' names of stages that change the size, and the frames, rows and columns that become one.
STRIDES: dict[str, Stride] = {
    "compress_all": (2, 2, 2),
    "compress_space": (1, 2, 2),
    "compress_time": (2, 1, 1),
}


def _blocks(channels: int, num_blocks: int) -> Stage:
    return Stage("blocks", channels, num_blocks=num_blocks)


def _down(channels: int) -> Stage:
    return Stage("strided", channels)


def _wider(channels: int) -> Stage:
    return Stage("width", channels)


def _up(channels: int) -> Stage:
    return Stage("folded", channels)


FULL = LtxVideoVaeConfig(  # of version 0.9
    encoder=(
        _blocks(128, 4), _down(128), _wider(256), _blocks(256, 3), _down(256), _wider(512), _blocks(512, 3), _down(512),
        _blocks(512, 3), _blocks(512, 4),
    ),
    decoder=(
        _blocks(512, 4), _blocks(512, 3), _up(512), _blocks(512, 3), _wider(256), _up(256), _blocks(256, 3),
        _wider(128), _up(128), _blocks(128, 4),
    ),
)  # fmt: skip
SMALL = LtxVideoVaeConfig(
    encoder=(_down(32), _wider(64), _down(64), _blocks(64, 1), _down(64)),
    decoder=(_blocks(64, 1), _up(64), _up(64), _wider(32), _up(32)),
    first_channels=32,
    last_channels=64,
)


class LtxVideoLatentFormat(LatentFormat):
    """Latents [B, 128, f, h, w], which the VAE standardises."""

    latent_channels = LATENT_CHANNELS
    latent_dimensions = 3
    spacial_downscale_ratio = 32
    temporal_downscale_ratio = 8
    latent_rgb_factors = LATENT_RGB_FACTORS
    latent_rgb_factors_bias = LATENT_RGB_BIAS


def _configure(shapes: Shapes) -> LtxVideoVaeConfig:
    if "encoder.conv_in.conv.weight" not in shapes or "decoder.conv_in.conv.weight" not in shapes:
        raise NotRecognised("a VAE of videos without encoder or decoder")
    return ltx_video_vae_config(shapes)


def as_described(config: LtxVideoVaeConfig, metadata: Mapping[str, str]) -> LtxVideoVaeConfig:
    """Return the configuration with what shapes do not show, as a file's metadata say it.

    Raises `NotRecognised` for a description of layers that the engine does not have, or of other ones than the file's.
    """
    try:
        described: dict[str, Any] = json.loads(metadata.get(METADATA, "{}")).get("vae") or {}
        shared = described.get("blocks", [])
        encoder = stages_as_described(config.encoder, described.get("encoder_blocks", shared))
        decoder = stages_as_described(config.decoder, list(reversed(described.get("decoder_blocks", shared))))
        time = float(described.get("decode_timestep", config.decode_time))
        noise = float(described.get("decode_noise_scale", config.decode_noise))
    except (ValueError, AttributeError, TypeError) as error:
        raise NotRecognised(f"a VAE of videos with metadata that do not describe it ({error})") from error
    if described.get("norm_layer", NORM) != NORM:
        raise NotRecognised(f"a VAE of videos with norms of another kind, {described['norm_layer']!r}")
    return replace(
        config,
        encoder=encoder,
        decoder=decoder,
        is_causal=bool(described.get("causal_decoder", config.is_causal)),
        encoder_padding=described.get("spatial_padding_mode", config.encoder_padding),
        decoder_padding=described.get("spatial_padding_mode", config.decoder_padding),
        decode_time=time,
        decode_noise=noise,
    )


def stages_as_described(stages: tuple[Stage, ...], blocks: list[Any]) -> tuple[Stage, ...]:
    """Return stages with the steps that a description gives them. Raises ValueError for one of other stages."""
    if not blocks:
        return stages
    if len(blocks) != len(stages):
        raise ValueError(f"{len(blocks)} stages described, {len(stages)} in the file")
    return tuple(_stage_as_described(stage, *block) for stage, block in zip(stages, blocks, strict=True))


def _stage_as_described(stage: Stage, name: str, settings: object) -> Stage:
    options: dict[str, Any] = settings if isinstance(settings, dict) else {}
    stride = STRIDES.get(name.removesuffix("_res").removesuffix("_x_y"))
    if stride is None:
        return stage
    is_residual = name == "compress_all" and bool(options.get("residual", False))
    return replace(stage, stride=stride, is_residual=is_residual)


def description(config: LtxVideoVaeConfig) -> dict[str, dict[str, Any]]:
    """Return the metadata of a file with a network of this configuration."""
    described: dict[str, Any] = {
        "_class_name": "CausalVideoAutoencoder",
        "dims": 3,
        "in_channels": 3,
        "out_channels": 3,
        "latent_channels": config.latent_channels,
        "encoder_blocks": described_stages(config.encoder, config.first_channels, folded="_res"),
        "decoder_blocks": [*reversed(described_stages(config.decoder, config.last_channels, folded=""))],
        "norm_layer": NORM,
        "patch_size": config.patch,
        "latent_log_var": "per_channel" if config.moment_channels == 2 * config.latent_channels else "uniform",
        "causal_decoder": config.is_causal,
        "timestep_conditioning": config.removes_noise,
        "decode_timestep": config.decode_time,
        "decode_noise_scale": config.decode_noise,
    }
    if config.encoder_padding == config.decoder_padding:
        described["spatial_padding_mode"] = config.encoder_padding
    return {METADATA: {"vae": described}}


def described_stages(stages: tuple[Stage, ...], entering: int, *, folded: str) -> list[list[Any]]:
    """Return stages, the first of which `entering` channels enter, in Lightricks' words.

    `folded` is the end of the names of those that fold cells into channels or back.
    """
    blocks: list[list[Any]] = []
    for stage in stages:
        multiplier = max(stage.channels, entering) // min(stage.channels, entering)
        if stage.kind == "blocks":
            blocks.append(["res_x", {"num_layers": stage.num_blocks, "inject_noise": stage.adds_noise}])
        elif stage.kind == "width":
            blocks.append(["res_x_y", {"multiplier": multiplier, "inject_noise": stage.adds_noise}])
        else:
            name = next(name for name, stride in STRIDES.items() if stride == stage.stride)
            ending = folded if stage.kind == "folded" else "" if stage.channels == entering else "_x_y"
            blocks.append([name + ending, {"multiplier": multiplier, "residual": stage.is_residual}])
        entering = stage.channels
    return blocks


AUTOENCODER = replace(
    vae_network(MARK, _configure, LtxVideoVae, ("bfloat16",), sizes={"full": FULL, "small": SMALL}),
    as_described=as_described,
    description=description,
)
