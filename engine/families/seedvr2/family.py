"""SeedVR2 (Wang et al. 2025, arXiv 2506.05301): images and videos restored in one step, of 3 or 7 billion weights."""

from __future__ import annotations

from dataclasses import replace

from darkroom.engine.adapters.lora_names import own_layer_keys
from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    Match,
    ModelFamily,
    Parameterisation,
    TensorIndex,
)
from darkroom.engine.families.seedvr2.denoiser import SeedVr2Denoiser
from darkroom.engine.families.seedvr2.layers import SeedVr2Config
from darkroom.engine.families.seedvr2.transformer import (
    FREQUENCIES,
    MARK,
    NEGATIVE,
    POSITIVE,
    RELATIVE_FREQUENCIES,
    SeedVr2Transformer,
    seedvr2_config,
)
from darkroom.engine.families.seedvr2.vae_files import AUTOENCODER, SeedVr2LatentFormat
from darkroom.engine.families.transformer_files import always, detect_by, transformer
from darkroom.engine.formats.weight_file import shape_of
from darkroom.engine.settings import DtypePolicy

FLOW = Parameterisation(flow_of, {"shift": 1.0})
DENOISER = replace(
    transformer(
        MARK,
        configure=seedvr2_config,
        build=SeedVr2Transformer,
        dtypes=DtypePolicy(prefers=("bfloat16", "float16")),
    ),
    float32_ends=(".rope.rope.freqs",),
)
# Windows are of one size, so that attention grows with the cells as everything else does.
DEFAULT = Defaults(
    width=1280, height=720, steps=1, cfg=1.0, scheduler="simple", tflop=115.3, billions=3.39, frames=21,
    frame_rate=24.0, frames_ratio=4,
)  # fmt: skip

_detect = detect_by(DENOISER, needs=(FREQUENCIES, POSITIVE, NEGATIVE))


def detect(index: TensorIndex) -> Match | None:
    """Recognise the network by its texts and its rotation, and the larger one by relative positions."""
    match = _detect(index)
    if match is None:
        return None
    is_relative = shape_of(match.names[FREQUENCIES], index.shapes) == (RELATIVE_FREQUENCIES,)
    return replace(match, variant="7b" if is_relative else "")


FAMILY = ModelFamily(
    name="seedvr2",
    label="SeedVR2",
    file_words=("seedvr2",),
    file_billions={"7b": 8.24},
    detect=detect,
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=SeedVr2Denoiser,
    text=(),
    vae=AUTOENCODER,
    latent_format=SeedVr2LatentFormat,
    denoiser_lora_keys=own_layer_keys,
    variants={"": (), "7b": ()},
    variant_defaults={"7b": replace(DEFAULT, tflop=183.9, billions=8.24)},
    comfyui=ComfyUiNames("SeedVR2"),
    default=DEFAULT,
    nodes=(
        "UNETLoader", "VAELoader", "SeedVR2Preprocess", "VAEEncodeTiled", "SeedVR2Conditioning", "KSampler",
        "VAEDecodeTiled", "SeedVR2PostProcessing",
    ),
    memory_usage_factor=2.0,
    parameterisation=FLOW,
    sizes={
        "full": SeedVr2Config(),
        "small": SeedVr2Config(
            hidden_size=128, num_layers=4, num_separate=2, intermediate_size=256, text_dim=64,
        ),
    },
)  # fmt: skip
