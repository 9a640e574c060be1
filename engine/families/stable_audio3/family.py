"""Stable Audio 3 (Stability AI 2026, arXiv 2605.17991): stereo audio of up to 380 seconds from text, in two sizes.

Medium, with the larger autoencoder, is distilled for 8 steps; its base network takes 50 and more. Small (music, sound
effects), with the smaller one, makes up to 120 seconds. Compared with ComfyUI 0.33.0.
"""

from __future__ import annotations

from darkroom.engine.adapters.lora_names import plain_keys
from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    Layout,
    ModelFamily,
    Network,
    NotRecognised,
    Parameterisation,
    Shapes,
    Tensors,
)
from darkroom.engine.families.layouts import names_behind, saved_behind
from darkroom.engine.families.stable_audio3.denoiser import StableAudio3Denoiser
from darkroom.engine.families.stable_audio3.text import T5_GEMMA
from darkroom.engine.families.stable_audio3.transformer import (
    FIRST,
    HEAD_NORM,
    LEARNED_TIME,
    MARK,
    PADDING,
    SECONDS,
    SHARED,
    StableAudio3Config,
    StableAudio3Transformer,
    stable_audio3_config,
)
from darkroom.engine.families.stable_audio3.vae_files import AUTOENCODER, StableAudio3LatentFormat
from darkroom.engine.families.transformer_files import always, detect_by
from darkroom.engine.formats.weight_file import Names
from darkroom.engine.settings import DtypePolicy

PREFIX = "model.model."
PREFIXES = (PREFIX, "model.diffusion_model.", "diffusion_model.", "")  # of files of the network alone
FLOAT32_ENDS = ("embedder.embedding.1.weight", "embedder.embedding.1.bias")
FLOW = Parameterisation(flow_of, {"shift": 2.0, "multiplier": 1.0})
# Its text encoder is known by its tensors alone: ComfyUI takes it under any type.
TEXT_TYPES = (
    "stable_audio", "stable_diffusion", "stable_cascade", "sd3", "mochi", "ltxv", "pixart", "cosmos", "lumina2", "wan",
    "hidream", "chroma", "ace", "omnigen2", "qwen_image", "hunyuan_image",
)  # fmt: skip


def layout_behind(prefixes: tuple[str, ...]) -> Layout:
    """Make a layout of files with the transformer behind a prefix and the layers of its conditions beside it."""

    def layout(shapes: Shapes) -> Names | None:
        prefix = next((prefix for prefix in prefixes if prefix + MARK in shapes and prefix + SHARED in shapes), None)
        if prefix is None:
            return None
        beside = {name: name for name in shapes if name == PADDING or name.startswith(SECONDS)}
        return {**names_behind(shapes, prefix), **beside}

    return layout


def saved(tensors: Tensors) -> Tensors:
    """Return the weights under a checkpoint's names."""
    beside = {name: tensor for name, tensor in tensors.items() if name == PADDING or name.startswith(SECONDS)}
    transformer = {name: tensor for name, tensor in tensors.items() if name not in beside}
    return saved_behind(PREFIX, transformer) | beside


def configure(shapes: Shapes) -> StableAudio3Config:
    """Return the configuration of the network. Raises LookupError, and NotRecognised for one with learned features."""
    if LEARNED_TIME in shapes:
        raise NotRecognised("a network of Stable Audio 3's kind with learned features of the time, of another family")
    return stable_audio3_config(shapes)


DENOISER = Network(
    layouts=(layout_behind(PREFIXES),),
    in_checkpoint=(layout_behind((PREFIX, "model.diffusion_model.")),),
    configure=configure,
    build=StableAudio3Transformer,
    saved=saved,
    dtypes=DtypePolicy(prefers=("float16", "bfloat16")),
    float32_ends=FLOAT32_ENDS,
)

FAMILY = ModelFamily(
    name="stable_audio3",
    label="Stable Audio 3",
    lineage=("stable_audio",),
    file_words=("stableaudio3",),
    detect=detect_by(DENOISER, needs=(FIRST, HEAD_NORM)),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=StableAudio3Denoiser,
    text=(T5_GEMMA,),
    vae=AUTOENCODER,
    latent_format=StableAudio3LatentFormat,
    denoiser_lora_keys=plain_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("StableAudio3", TEXT_TYPES),
    default=Defaults(
        width=208, height=200, steps=8, cfg=1.0, sampler_name="lcm", scheduler="simple",
        tflop=2.08, attention=0.07, billions=1.453,
        audio_latent="EmptyLatentAudio", audio_text="CLIPTextEncode", seconds=60.0, max_seconds=380.0,
    ),
    nodes=(
        "CheckpointLoaderSimple", "CLIPLoader", "CLIPTextEncode", "ConditioningStableAudio", "EmptyLatentAudio",
        "KSampler", "VAEDecodeAudio",
    ),
    memory_usage_factor=7.0,
    parameterisation=FLOW,
    sizes={
        "full": StableAudio3Config(),
        "small": StableAudio3Config(
            hidden_size=128, num_layers=2, intermediate_size=128, context_dim=64, text_dim=128, num_memory_tokens=3,
        ),
    },
)  # fmt: skip
