"""Stable Diffusion 3 and 3.5, medium and large (Esser et al. 2024, arXiv 2403.03206)."""

from __future__ import annotations

from darkroom.engine.diffusion.latent_format import ShiftedLatentFormat
from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    Match,
    ModelFamily,
    Parameterisation,
    TensorIndex,
)
from darkroom.engine.families.joint_text_denoiser import JointTextDenoiser
from darkroom.engine.families.sd3.controlnet_files import control_networks
from darkroom.engine.families.sd3.diffusers_names import file_layout
from darkroom.engine.families.sd3.lora import lora_keys
from darkroom.engine.families.sd3.text import CLIP_G, CLIP_L, CONTEXT_DIM, G_WIDTH, L_WIDTH, T5, stacked
from darkroom.engine.families.sd3.transformer import LAST, MARK, Sd3Config, Sd3Transformer, sd3_config
from darkroom.engine.families.sd3.vae_files import autoencoder_16
from darkroom.engine.families.transformer_files import always, detect_by, transformer
from darkroom.engine.settings import DtypePolicy

LATENT_CHANNELS = 16
FIRST = "x_embedder.proj.weight"
FLOW = Parameterisation(flow_of, {"shift": 3.0})
MERGED_ENDS = (("pos_embed.", "x_embedder.", "context_embedder.", "y_embedder.", "t_embedder."), ("final_layer.",))


class Sd3LatentFormat(ShiftedLatentFormat):
    """Latent format of its autoencoder. The table of colours is public knowledge of the community."""

    latent_channels = LATENT_CHANNELS
    scale_factor = 1.5305
    shift_factor = 0.0609
    latent_rgb_factors = (
        (-0.0922, -0.0175, 0.0749), (0.0311, 0.0633, 0.0954), (0.1994, 0.0927, 0.0458), (0.0856, 0.0339, 0.0902),
        (0.0587, 0.0272, -0.0496), (-0.0006, 0.1104, 0.0309), (0.0978, 0.0306, 0.0427), (-0.0042, 0.1038, 0.1358),
        (-0.0194, 0.0020, 0.0669), (-0.0488, 0.0130, -0.0268), (0.0922, 0.0988, 0.0951), (-0.0278, 0.0524, -0.0542),
        (0.0332, 0.0456, 0.0895), (-0.0069, -0.0030, -0.0810), (-0.0596, -0.0465, -0.0293), (-0.1448, -0.1463, -0.1189),
    )  # fmt: skip
    latent_rgb_factors_bias = (0.2394, 0.2135, 0.1925)
    taesd_decoder_name = "taesd3_decoder"


DENOISER = transformer(
    MARK,
    configure=sd3_config,
    build=Sd3Transformer,
    dtypes=DtypePolicy(prefers=("float16", "bfloat16")),
    other_layouts=(file_layout,),
)


find = detect_by(DENOISER, needs=(LAST, FIRST))


def detect(index: TensorIndex) -> Match | None:
    """Recognise the transformer by its first block, and by the channels of its latents."""
    match = find(index)
    if match is None or index.shapes[str(match.names[FIRST])][1] != LATENT_CHANNELS:
        return None
    return match


def merged_blocks(num_blocks: int) -> tuple[str, ...]:
    """Return the names of what is merged by a ratio of its own."""
    first, last = MERGED_ENDS
    return (*first, *(f"joint_blocks.{index}." for index in range(num_blocks)), *last)


FAMILY = ModelFamily(
    name="sd3",
    label="Stable Diffusion 3",
    lineage=("sd15",),
    file_words=("sd3", "stablediffusion3"),
    file_billions={"large": 8.15},
    detect=detect,
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=JointTextDenoiser,
    text=(CLIP_L, CLIP_G, T5),
    combine_text=stacked,
    takes_fewer_encoders=True,
    vae=autoencoder_16(),
    latent_format=Sd3LatentFormat,
    denoiser_lora_keys=lora_keys,
    control_networks=control_networks(Sd3LatentFormat()),
    variants={"": ()},
    comfyui=ComfyUiNames(
        "SD3", ("sd3",), {"ModelMergeSD3_2B": merged_blocks(24), "ModelMergeSD35_Large": merged_blocks(38)},
        {"": "stable-diffusion-v3-medium"},
    ),
    default=Defaults(
        width=1024, height=1024, steps=28, cfg=4.5, scheduler="sgm_uniform",
        tflop=8.7, attention=0.26, billions=2.085,
    ),
    nodes=("CheckpointLoaderSimple", "CLIPTextEncode", "EmptySD3LatentImage", "KSampler", "VAEDecode"),
    memory_usage_factor=1.2,
    parameterisation=FLOW,
    sizes={
        "full": Sd3Config(num_blocks=24, width=1536, context_dim=CONTEXT_DIM, label_dim=L_WIDTH + G_WIDTH),
        "small": Sd3Config(
            num_blocks=3, width=128, context_dim=128, label_dim=128, position_side=32, norms_queries=True,
            dual_blocks=frozenset({0}),
        ),
    },
)  # fmt: skip
