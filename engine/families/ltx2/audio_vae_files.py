"""The audio VAE of LTX-2 and its vocoder: where files have them, and their configuration in the metadata.

Files have the two behind `audio_vae.` and `vocoder.`, in whole checkpoints and alone. Sizes follow from the metadata
`config`, as published: much of a vocoder shows in no shape.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from darkroom.engine.families.base import Layout, Network, NotRecognised, Shapes, Tensors
from darkroom.engine.families.ltx2.audio_vae import Ltx2AudioVae, Ltx2AudioVaeConfig
from darkroom.engine.families.ltx2.bandwidth_extension import ExtendedVocoderConfig
from darkroom.engine.families.ltx2.spectrogram_autoencoder import SpectrogramHalfConfig
from darkroom.engine.families.ltx2.vocoder import NUM_BANDS, NUM_DILATIONS, VocoderConfig
from darkroom.engine.formats.weight_file import Names
from darkroom.engine.settings import DtypePolicy

METADATA = "config"  # the name of the description in a file's metadata, which is JSON
PREFIXES: Final[Mapping[str, tuple[str, ...]]] = {  # our names -> the files'
    "autoencoder.": ("audio_vae.", "autoencoder."),
    "vocoder.": ("vocoder.",),
}
MARKS = ("vocoder.resblocks.0.convs1.0.weight", "vocoder.vocoder.resblocks.0.convs1.0.weight")  # as ComfyUI knows them
MOST = 8192  # of any number in a description; more than that is no network
MOST_STAGES = 12
LABEL = "an audio VAE of LTX-2"


def layout(shapes: Shapes) -> Names | None:
    """Return the names of the two networks' weights in a file that has both, else None."""
    if not any(mark in shapes for mark in MARKS):
        return None
    return {
        ours + name.removeprefix(theirs): name
        for ours, candidates in PREFIXES.items()
        for theirs in candidates
        for name in shapes
        if name.startswith(theirs)
    }


def saved(tensors: Tensors) -> Tensors:
    """Return weights under the names that checkpoints have for them."""
    return {name.replace("autoencoder.", "audio_vae.", 1): tensor for name, tensor in tensors.items()}


def configure(shapes: Shapes) -> None:
    """Return nothing: the metadata alone tell the configuration."""


def as_described(config: None, metadata: Mapping[str, str]) -> Ltx2AudioVaeConfig:
    """Return the configuration that a file's metadata give. Raises `NotRecognised`."""
    try:
        described = json.loads(metadata[METADATA])
        audio, vocoder = described["audio_vae"], described["vocoder"]
        return _config(audio, vocoder)
    except NotRecognised:
        raise
    except KeyError as error:
        raise NotRecognised(f"{LABEL} whose metadata {METADATA!r} do not describe it: no {error}") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise NotRecognised(f"{LABEL} whose metadata {METADATA!r} do not describe it ({error})") from error


def _config(audio: Mapping[str, Any], vocoder: Mapping[str, Any]) -> Ltx2AudioVaeConfig:
    params = audio.get("model", {}).get("params", {})
    encoder = params.get("encoder", params.get("ddconfig", {}))
    transform = audio.get("preprocessing", {}).get("stft", {})
    return Ltx2AudioVaeConfig(
        encoder=_half(encoder),
        decoder=_half(params.get("decoder", encoder)),
        vocoder=_extended(vocoder) if "bwe" in vocoder else _vocoder(vocoder),
        input_rate_hz=int(params.get("sampling_rate", audio.get("sampling_rate", 16000))),
        window=_number(transform, "filter_length", 1024),
        hop=_number(transform, "hop_length", 160),
    )


def _half(described: Mapping[str, Any]) -> SpectrogramHalfConfig:
    """Return the configuration of the encoder or the decoder. Raises `NotRecognised` for layers of another kind."""
    _require(described.get("norm_type") == "pixel", f"norms of another kind, {described.get('norm_type')!r}")
    axis = described.get("causality_axis")
    _require(axis == "height", f"convolutions that are not causal along time, {axis!r}")
    attends = described.get("mid_block_add_attention", True) or described.get("attn_resolutions")
    _require(not attends, "attention among its blocks")
    _require(described.get("double_z", True) is True, "no variances")
    _require(described.get("resamp_with_conv", True) is True, "levels without convolutions between them")
    bands = described.get("mel_bands", NUM_BANDS)
    _require(bands == NUM_BANDS, f"{bands} mel bands")
    multipliers = _numbers(described, "ch_mult", (1, 2, 4, 8))
    _require(len(multipliers) == 3, f"{len(multipliers)} levels")
    return SpectrogramHalfConfig(
        channels=_number(described, "ch"),
        multipliers=multipliers,
        num_blocks=_number(described, "num_res_blocks", most=MOST_STAGES),
        audio_channels=_number(described, "in_channels", most=2),
        latent_channels=_number(described, "z_channels"),
        ends_with_tanh=bool(described.get("tanh_out", False)),
    )


def _extended(described: Mapping[str, Any]) -> ExtendedVocoderConfig:
    extension = described["bwe"]
    return ExtendedVocoderConfig(
        vocoder=_vocoder(described["vocoder"]),
        extension=_vocoder({**extension, "apply_final_activation": False}),
        window=_number(extension, "n_fft"),
        hop=_number(extension, "hop_length"),
        num_bands=_number(extension, "num_mels"),
        in_rate_hz=int(extension["input_sampling_rate"]),
        out_rate_hz=int(extension["output_sampling_rate"]),
    )


def _vocoder(described: Mapping[str, Any]) -> VocoderConfig:
    kind = described.get("resblock", "1")
    if kind not in NUM_DILATIONS:
        raise NotRecognised(f"{LABEL} with a vocoder of other blocks, {kind!r}")
    default = VocoderConfig()
    kernels = _numbers(described, "resblock_kernel_sizes", default.block_kernels)
    dilations = described.get("resblock_dilation_sizes", default.dilations)
    _require(len(dilations) == len(kernels), "a vocoder of as many dilations as blocks no more")
    keeps = described.get("apply_final_activation", True)
    rate = described.get("output_sample_rate")
    rates = _numbers(described, "upsample_rates", default.rates)
    widths = _numbers(described, "upsample_kernel_sizes", default.kernels)
    num_stages = min(len(rates), len(widths))
    return VocoderConfig(
        first_channels=_number(described, "upsample_initial_channel", default.first_channels),
        rates=rates[:num_stages],
        kernels=widths[:num_stages],
        block_kernels=kernels,
        dilations=tuple(_numbers({"d": item}, "d", ())[: NUM_DILATIONS[kind]] for item in dilations),
        kind=kind,
        has_magnitude=described.get("activation", "snake") == "snakebeta",
        is_stereo=bool(described.get("stereo", True)),
        has_last_bias=bool(described.get("use_bias_at_final", True)),
        ending="none" if not keeps else "tanh" if described.get("use_tanh_at_final", True) else "clamp",
        sample_rate_hz=None if rate is None else int(rate),
    )


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise NotRecognised(f"{LABEL} with {otherwise}, which no published one has")


def _number(described: Mapping[str, Any], name: str, default: int | None = None, most: int = MOST) -> int:
    value = described[name] if default is None else described.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"{name}: got {value!r}, expected 1 to {most}")
    return value


def _numbers(described: Mapping[str, Any], name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    values = described.get(name, default)
    if not 1 <= len(values) <= MOST_STAGES:
        raise ValueError(f"{name}: got {len(values)} numbers, expected 1 to {MOST_STAGES}")
    return tuple(_number({name: value}, name) for value in values)


def description(config: Ltx2AudioVaeConfig) -> dict[str, dict[str, object]]:
    """Return the metadata of a file with networks of this configuration."""
    audio = {
        "model": {
            "params": {
                "encoder": _described_half(config.encoder),
                "decoder": _described_half(config.decoder),
                "sampling_rate": config.input_rate_hz,
            }
        },
        "preprocessing": {"stft": {"filter_length": config.window, "hop_length": config.hop}},
    }
    return {METADATA: {"audio_vae": audio, "vocoder": _described_vocoders(config.vocoder)}}


def _described_half(half: SpectrogramHalfConfig) -> dict[str, object]:
    return {
        "double_z": True,
        "mel_bands": NUM_BANDS,
        "z_channels": half.latent_channels,
        "resolution": 256,
        "in_channels": half.audio_channels,
        "out_ch": half.audio_channels,
        "ch": half.channels,
        "ch_mult": list(half.multipliers),
        "num_res_blocks": half.num_blocks,
        "attn_resolutions": [],
        "mid_block_add_attention": False,
        "norm_type": "pixel",
        "causality_axis": "height",
        "tanh_out": half.ends_with_tanh,
    }


def _described_vocoders(config: VocoderConfig | ExtendedVocoderConfig) -> dict[str, object]:
    if isinstance(config, VocoderConfig):
        return _described_vocoder(config)
    extension = {
        **_described_vocoder(config.extension),
        "n_fft": config.window,
        "hop_length": config.hop,
        "num_mels": config.num_bands,
        "input_sampling_rate": config.in_rate_hz,
        "output_sampling_rate": config.out_rate_hz,
    }
    return {"vocoder": _described_vocoder(config.vocoder), "bwe": extension}


def _described_vocoder(config: VocoderConfig) -> dict[str, object]:
    described: dict[str, Any] = {
        "resblock": config.kind,
        "upsample_rates": list(config.rates),
        "upsample_kernel_sizes": list(config.kernels),
        "upsample_initial_channel": config.first_channels,
        "resblock_kernel_sizes": list(config.block_kernels),
        "resblock_dilation_sizes": [list(steps) for steps in config.dilations],
        "stereo": config.is_stereo,
        "activation": "snakebeta" if config.has_magnitude else "snake",
        "use_bias_at_final": config.has_last_bias,
        "use_tanh_at_final": config.ending == "tanh",
    }
    return described if config.sample_rate_hz is None else {**described, "output_sample_rate": config.sample_rate_hz}


HALF = SpectrogramHalfConfig(channels=16, num_blocks=1)
LAYOUTS: tuple[Layout, ...] = (layout,)
AUDIO_AUTOENCODER = Network(
    layouts=LAYOUTS,
    in_checkpoint=(),  # checkpoints give that of videos
    configure=configure,
    build=Ltx2AudioVae,
    saved=saved,
    dtypes=DtypePolicy(prefers=()),  # float32
    as_described=as_described,
    description=description,
    sizes={
        "full": Ltx2AudioVaeConfig(vocoder=VocoderConfig(rates=(6, 5, 2, 2, 2), kernels=(16, 15, 8, 4, 4))),
        "small": Ltx2AudioVaeConfig(HALF, HALF, VocoderConfig(32, (8, 5, 2, 2, 2), (16, 15, 8, 4, 4))),
    },
)
