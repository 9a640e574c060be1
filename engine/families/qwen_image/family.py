"""Qwen-Image (Wu et al. 2025, arXiv 2508.02324), Qwen-Image-Edit and its later versions of several images."""

from __future__ import annotations

from darkroom.engine.adapters.lora_names import own_layer_keys
from darkroom.engine.diffusion.model_sampling_variants import flux_flow_of
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    Match,
    ModelFamily,
    Parameterisation,
    TensorIndex,
)
from darkroom.engine.families.qwen_image.controlnet_files import BLOCKWISE, control_networks
from darkroom.engine.families.qwen_image.denoiser import QwenImageDenoiser
from darkroom.engine.families.qwen_image.transformer import (
    BLOCK,
    HINT,
    LAST,
    MARK,
    QwenImageConfig,
    QwenImageTransformer,
    qwen_image_config,
)
from darkroom.engine.families.text.qwen25_vl import TEMPLATE, qwen_7b
from darkroom.engine.families.transformer_files import PREFIX, always, detect_by, transformer
from darkroom.engine.families.wan.vae_files import WAN_VAE, WanLatentFormat
from darkroom.engine.formats.weight_file import shape_of
from darkroom.engine.settings import DtypePolicy

PREFIXES = (PREFIX, "diffusion_model.", "transformer.", "")  # of files of the network alone
CONTEXT_DIM = 3584
CHANNELS_OF_CELLS = 128  # of a network whose tokens are single cells
NUM_BLOCKS = 60
FLOW = Parameterisation(flux_flow_of, {"shift": 1.15})
MERGED_BLOCKS = (
    "pos_embeds.", "img_in.", "txt_norm.", "txt_in.", "time_text_embed.",
    *(f"transformer_blocks.{index}." for index in range(NUM_BLOCKS)), "proj_out.",
)  # fmt: skip


DENOISER = transformer(
    BLOCK,
    configure=qwen_image_config,
    build=QwenImageTransformer,
    dtypes=DtypePolicy(prefers=("bfloat16",), computes=("float32", "bfloat16", "float64")),
    prefixes=PREFIXES,
)


find = detect_by(DENOISER, needs=(MARK,), lacks=(HINT,))  # its ControlNets have such blocks and a text's norm too


def detect(index: TensorIndex) -> Match | None:
    """Recognise the network by its blocks and the norm of its text, unless its tokens are single cells (Mage-Flow)."""
    match = find(index)
    if match is not None and LAST in match.names and shape_of(match.names[LAST], index.shapes)[0] == CHANNELS_OF_CELLS:
        return None
    return match


FAMILY = ModelFamily(
    name="qwen_image",
    label="Qwen-Image",
    lineage=("flux", "wan"),
    file_words=("qwenimage",),
    detect=detect,
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=QwenImageDenoiser,
    text=(qwen_7b(TEMPLATE),),
    vae=WAN_VAE,
    latent_format=WanLatentFormat,
    denoiser_lora_keys=own_layer_keys,
    control_networks=control_networks(WanLatentFormat()),
    model_patches=(BLOCKWISE,),
    variants={"": ()},
    comfyui=ComfyUiNames(
        "Wan21", ("qwen_image",), {"ModelMergeQwenImage": MERGED_BLOCKS}, untyped_slots=("qwen25_7b",),
    ),
    default=Defaults(
        width=1328, height=1328, steps=20, cfg=2.5, scheduler="simple",
        tflop=135.0, attention=0.25, billions=20.43, edit="encoder", shift=3.1,
    ),
    nodes=(
        "UNETLoader", "CLIPLoader", "VAELoader", "ModelSamplingAuraFlow", "CLIPTextEncode", "EmptySD3LatentImage",
        "KSampler", "VAEDecode",
    ),
    memory_usage_factor=1.8,
    parameterisation=FLOW,
    sizes={
        "full": QwenImageConfig(width=3072, num_blocks=NUM_BLOCKS, context_dim=CONTEXT_DIM),
        "small": QwenImageConfig(width=128, num_blocks=3, context_dim=32),
    },
)  # fmt: skip
