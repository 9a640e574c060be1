"""Flux.1 (Black Forest Labs 2024): dev, schnell, Krea, Kontext, and Fill, Canny, Depth, which see further images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from darkroom.engine.diffusion.model_sampling_variants import flow_of, flux_flow_of
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    Match,
    ModelFamily,
    Parameterisation,
    TensorIndex,
    TensorReader,
)
from darkroom.engine.families.flux.controlnet_files import control_networks
from darkroom.engine.families.flux.denoiser import FluxDenoiser
from darkroom.engine.families.flux.diffusers_names import file_layout
from darkroom.engine.families.flux.latent_format import FluxLatentFormat
from darkroom.engine.families.flux.lora import lora_keys
from darkroom.engine.families.flux.scale_names import with_later_names
from darkroom.engine.families.flux.transformer import GUIDANCE, MARK, FluxConfig, FluxTransformer, flux_config
from darkroom.engine.families.flux.uso_files import STYLE_PROJECTOR
from darkroom.engine.families.sd3.vae_files import autoencoder_16
from darkroom.engine.families.text.clip_l import clip_l
from darkroom.engine.families.text.t5 import t5_xxl
from darkroom.engine.families.transformer_files import detect_by, transformer
from darkroom.engine.formats.weight_file import shape_of
from darkroom.engine.layers.patches import PATCH
from darkroom.engine.settings import DtypePolicy
from darkroom.engine.text.chunk_encoding import Encoded
from darkroom.engine.text.clip_l import CLIP_L_ENCODING
from darkroom.engine.text.t5_encoding import T5Encoding

VAE_PREFIX = "vae."
NEEDED = ("img_in.weight", "vector_in.in_layer.weight", "final_layer.linear.weight")  # others of such blocks lack one
CONTEXT_DIM, LABEL_DIM = 4096, 768
DEV = Parameterisation(flux_flow_of, {"shift": 1.15})
SCHNELL = Parameterisation(flow_of, {"shift": 1.0, "multiplier": 1.0})
NUM_DOUBLE, NUM_SINGLE = 19, 38
MASKED_CHANNELS = 16 + 16 + 64  # of a network that paints: noisy latent, image, pixels of the mask
DEFAULT = Defaults(
    width=1024,
    height=1024,
    steps=20,
    cfg=1.0,
    scheduler="simple",
    tflop=69.5,
    attention=0.15,
    billions=11.901,
    edit="references",
)
MERGED_BLOCKS = (
    "img_in.", "time_in.", "guidance_in", "vector_in.", "txt_in.",
    *(f"double_blocks.{index}." for index in range(NUM_DOUBLE)),
    *(f"single_blocks.{index}." for index in range(NUM_SINGLE)), "final_layer.",
)  # fmt: skip


DENOISER = with_later_names(
    transformer(
        MARK,
        configure=flux_config,
        build=FluxTransformer,
        dtypes=DtypePolicy(prefers=("bfloat16", "float16")),
        other_layouts=(file_layout({}),),
    ),
    MARK,
)

detect_network = detect_by(DENOISER, needs=NEEDED)  # by its first block, and by the layers before and behind the blocks


def detect(index: TensorIndex) -> Match | None:
    """Recognise the transformer; one that is given an image and a mask paints below it."""
    match = detect_network(index)
    if match is None:
        return None
    paints = shape_of(match.names["img_in.weight"], index.shapes)[1] >= MASKED_CHANNELS * PATCH**2
    return replace(match, variant="inpaint" if paints else "")


def parameterise(match: Match, file: TensorReader) -> Parameterisation:
    """Detect a network that is distilled to few steps by the guidance that it does not take: ComfyUI's rule."""
    return DEV if GUIDANCE in match.names else SCHNELL


def tokens_and_pooled(encoded: Mapping[str, Encoded]) -> Encoded:
    """Return the tokens of T5, and the pooled output of CLIP."""
    return Encoded(encoded["t5xxl"].cond, encoded["l"].pooled)


FAMILY = ModelFamily(
    name="flux",
    label="Flux.1",
    lineage=("sd3",),
    file_words=("flux1", "fluxdev", "fluxschnell", "fluxkrea", "fluxkontext", "fluxfill"),
    detect=detect,
    parameterise=parameterise,
    denoiser=DENOISER,
    denoiser_type=FluxDenoiser,
    text=(clip_l(CLIP_L_ENCODING), t5_xxl(T5Encoding(min_length=256), lora_numbers=(2, 3))),
    combine_text=tokens_and_pooled,
    vae=autoencoder_16(VAE_PREFIX),
    latent_format=FluxLatentFormat,
    denoiser_lora_keys=lora_keys,
    model_patches=(STYLE_PROJECTOR,),
    control_networks=control_networks(FluxLatentFormat()),
    variants={"": (), "inpaint": ()},
    variant_defaults={"inpaint": replace(DEFAULT, steps=20, guidance=30.0, edit=None, inpaint="conditioning")},
    comfyui=ComfyUiNames("Flux", ("flux",), {"ModelMergeFlux1": MERGED_BLOCKS}),
    default=DEFAULT,
    nodes=("CheckpointLoaderSimple", "CLIPTextEncode", "EmptySD3LatentImage", "FluxGuidance", "KSampler", "VAEDecode"),
    memory_usage_factor=3.1,
    parameterisation=DEV,
    sizes={
        "full": FluxConfig(
            width=3072, num_double=NUM_DOUBLE, num_single=NUM_SINGLE, context_dim=CONTEXT_DIM, label_dim=LABEL_DIM
        ),
        "small": FluxConfig(width=128, num_double=2, num_single=2, context_dim=128, label_dim=64),
    },
)  # fmt: skip
