"""Stable Audio Open 1.0 (Evans et al. 2024, arXiv 2407.14358): stereo audio of up to 47 seconds from text."""

from __future__ import annotations

from darkroom.engine.adapters.lora_names import plain_keys
from darkroom.engine.diffusion.model_sampling import VContinuous
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    Layout,
    ModelFamily,
    Network,
    Parameterisation,
    Shapes,
    Tensors,
)
from darkroom.engine.families.layouts import names_behind, saved_behind
from darkroom.engine.families.stable_audio.denoiser import StableAudioDenoiser
from darkroom.engine.families.stable_audio.transformer import (
    FIRST,
    HEAD_NORM,
    MARK,
    SECONDS,
    StableAudioConfig,
    StableAudioTransformer,
    stable_audio_config,
)
from darkroom.engine.families.stable_audio.vae_files import AUTOENCODER, StableAudioLatentFormat
from darkroom.engine.families.text.t5 import base_t5
from darkroom.engine.families.transformer_files import always, detect_by
from darkroom.engine.formats.weight_file import Names
from darkroom.engine.layers.t5 import T5Config
from darkroom.engine.settings import DtypePolicy
from darkroom.engine.text.t5_encoding import T5Encoding

PREFIX = "model.model."
PREFIXES = (PREFIX, "model.diffusion_model.", "diffusion_model.", "")  # of files of the network alone
FLOAT32_ENDS = ("embedding.0.weights", "embedding.1.weight", "embedding.1.bias")
V_PREDICTION = Parameterisation(VContinuous, {"sigma_min": 0.03, "sigma_max": 500.0})
# Its text encoder is known by its tensors alone: ComfyUI takes it under any type but that of ACE-Step.
TEXT_TYPES = (
    "stable_audio", "stable_diffusion", "stable_cascade", "sd3", "mochi", "ltxv", "pixart", "cosmos", "lumina2", "wan",
    "hidream", "chroma", "omnigen2", "qwen_image", "hunyuan_image",
)  # fmt: skip


def layout_behind(prefixes: tuple[str, ...]) -> Layout:
    """Make a layout of files with the transformer behind a prefix and the layers that read seconds beside it."""

    def layout(shapes: Shapes) -> Names | None:
        prefix = next((prefix for prefix in prefixes if prefix + MARK in shapes), None)
        if prefix is None:
            return None
        seconds = {name: name for name in shapes if name.startswith(SECONDS)}
        return {**names_behind(shapes, prefix), **seconds}

    return layout


def saved(tensors: Tensors) -> Tensors:
    """Return the weights under a checkpoint's names."""
    seconds = {name: tensor for name, tensor in tensors.items() if name.startswith(SECONDS)}
    transformer = {name: tensor for name, tensor in tensors.items() if name not in seconds}
    return saved_behind(PREFIX, transformer) | seconds


DENOISER = Network(
    layouts=(layout_behind(PREFIXES),),
    in_checkpoint=(layout_behind((PREFIX,)),),
    configure=stable_audio_config,
    build=StableAudioTransformer,
    saved=saved,
    dtypes=DtypePolicy(prefers=("float16", "bfloat16")),
    float32_ends=FLOAT32_ENDS,
)

FAMILY = ModelFamily(
    name="stable_audio",
    label="Stable Audio",
    file_words=("stableaudio",),
    other_file_words=("stableaudio25", "stableaudio3"),
    detect=detect_by(DENOISER, needs=(FIRST,), lacks=(HEAD_NORM,)),
    parameterise=always(V_PREDICTION),
    denoiser=DENOISER,
    denoiser_type=StableAudioDenoiser,
    text=(
        base_t5(
            T5Encoding(
                slot="t5base", embedding_width=768, min_length=128, masks_padding=True, zeroes_padding=True
            ),
            {
                "full": T5Config(num_layers=12, width=768, heads=12, inner_width=3072, is_gated=False),
                "small": T5Config(num_layers=12, width=64, heads=2, inner_width=128, is_gated=False),
            },
        ),
    ),
    vae=AUTOENCODER,
    latent_format=StableAudioLatentFormat,
    denoiser_lora_keys=plain_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("StableAudio1", TEXT_TYPES),
    default=Defaults(
        width=256, height=256, steps=50, cfg=5.0, sampler_name="dpmpp_3m_sde", scheduler="exponential",
        tflop=2.3, attention=0.06, billions=1.057,
        audio_latent="EmptyLatentAudio", audio_text="CLIPTextEncode", seconds=47.0, max_seconds=47.6,
    ),
    nodes=(
        "CheckpointLoaderSimple", "CLIPLoader", "CLIPTextEncode", "ConditioningStableAudio", "EmptyLatentAudio",
        "KSampler", "VAEDecodeAudio",
    ),
    memory_usage_factor=2.0,
    parameterisation=V_PREDICTION,
    sizes={
        "full": StableAudioConfig(width=1536, num_blocks=24),
        "small": StableAudioConfig(width=128, num_blocks=3, context_dim=64),
    },
)  # fmt: skip
