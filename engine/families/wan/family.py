"""Wan 2.1 (Wan Team 2025, arXiv 2503.20314), text to video: 1.3 and 14 billion weights."""

from __future__ import annotations

from engine.adapters.lora_names import plain_keys
from engine.architectures.t5 import T5Config
from engine.architectures.video_transformer import (
    FIRST,
    MARK,
    VideoTransformer,
    VideoTransformerConfig,
    video_transformer_config,
)
from engine.diffusion.model_sampling_variants import flow_of
from engine.families.base import (
    ComfyUiNames,
    Defaults,
    Match,
    ModelFamily,
    Parameterisation,
    Scale,
    TensorIndex,
)
from engine.families.parts.causal_video_vae import (
    CAUSAL_VIDEO_VAE,
    FULL,
    LATENT_CHANNELS,
    SMALL,
    CausalVideoLatentFormat,
)
from engine.families.parts.joint_text_denoiser import TextTokensDenoiser
from engine.families.parts.t5 import umt5_xxl
from engine.families.parts.transformer import PREFIX, always, detect_by, transformer
from engine.settings import DtypePolicy

PREFIXES = (PREFIX, "diffusion_model.", "model.", "")  # of files of the network alone
CONTEXT_DIM = 4096
FLOW = Parameterisation(flow_of, {"shift": 8.0})
# The layers of the network; those of pictures, controls, sound and cameras have more.
LAYERS = ("patch_embedding.", "text_embedding.", "time_embedding.", "time_projection.", "blocks.", "head.")
OF_PICTURES = ".k_img."
MERGED_BLOCKS = (
    "patch_embedding.", "time_embedding.", "time_projection.", "text_embedding.", "img_emb.",
    *(f"blocks.{index}." for index in range(40)), "head.",
)  # fmt: skip

DENOISER = transformer(
    MARK,
    configure=video_transformer_config,
    build=VideoTransformer,
    dtypes=DtypePolicy(prefers=("float16", "bfloat16")),
    prefixes=PREFIXES,
)


find = detect_by(DENOISER, needs=(FIRST,))


def detect(index: TensorIndex) -> Match | None:
    """Recognise the transformer by its last layer; networks that also read pictures, sound or cameras are others."""
    match = find(index)
    if match is None or index.shapes[str(match.names[FIRST])][1] != LATENT_CHANNELS:
        return None
    is_other = any(not name.startswith(LAYERS) or OF_PICTURES in name for name in match.names)
    return None if is_other else match


FAMILY = ModelFamily(
    name="wan",
    label="Wan 2.1",
    detect=detect,
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=TextTokensDenoiser,
    text=(umt5_xxl(),),
    vae=CAUSAL_VIDEO_VAE,
    latent_format=CausalVideoLatentFormat,
    denoiser_lora_keys=plain_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("Wan21", ("wan",), {"ModelMergeWAN2_1": MERGED_BLOCKS}),
    default=Defaults(width=832, height=480, steps=30, cfg=6.0, sampler_name="uni_pc", scheduler="simple", cost=400.0),
    nodes=(
        "UNETLoader", "CLIPLoader", "VAELoader", "ModelSamplingSD3", "CLIPTextEncode", "EmptyHunyuanLatentVideo",
        "KSampler", "VAEDecode", "SaveAnimatedWEBP",
    ),
    memory_usage_factor=2.3,  # of the larger one: its width / 2222
    parameterisation=FLOW,
    scales={
        "full": Scale(
            VideoTransformerConfig(width=1536, num_blocks=30, inner_width=8960),
            {
                "umt5xxl": T5Config(
                    num_layers=24, width=CONTEXT_DIM, heads=64, inner_width=10240, vocabulary_size=256384,
                    is_biased_everywhere=True,
                )
            },
            FULL,
        ),
        "small": Scale(
            VideoTransformerConfig(width=128, num_blocks=3, inner_width=256),
            {
                "umt5xxl": T5Config(
                    num_layers=1, width=CONTEXT_DIM, heads=1, inner_width=64, vocabulary_size=512,
                    is_biased_everywhere=True,
                )
            },
            SMALL,
        ),
    },
)  # fmt: skip
