"""Hunyuan3D 2 (Tencent 2025, arXiv 2501.12202): shapes from images of one to four sides; mini and distilled too."""

from __future__ import annotations

from functools import partial

from darkroom.engine.adapters.lora_names import own_layer_keys
from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    Match,
    ModelFamily,
    Network,
    Parameterisation,
    TensorReader,
)
from darkroom.engine.families.flux.scale_names import renamed_scales
from darkroom.engine.families.hunyuan3d.denoiser import ShapeDenoiser
from darkroom.engine.families.hunyuan3d.transformer import (
    FIRST,
    MARK,
    Hunyuan3dConfig,
    Hunyuan3dTransformer,
    hunyuan3d_config,
)
from darkroom.engine.families.hunyuan3d.vae_files import AUTOENCODER, ShapeLatentFormat, SmallShapeLatentFormat
from darkroom.engine.families.layouts import behind_first, saved_behind
from darkroom.engine.families.transformer_files import detect_by
from darkroom.engine.layers.dinov2 import Dinov2Config
from darkroom.engine.layers.shapes import count_children
from darkroom.engine.settings import DtypePolicy

PREFIX = "model."  # of checkpoints
PREFIXES = ("model.diffusion_model.", PREFIX, "diffusion_model.", "")
MINI_BLOCKS = 8  # of two streams, in the mini network
SETTINGS = {"shift": 1.0, "multiplier": 1.0}
FLOW = Parameterisation(flow_of, SETTINGS)
MINI_FLOW = Parameterisation(flow_of, SETTINGS, latent_format=SmallShapeLatentFormat)

DENOISER = Network(
    layouts=(renamed_scales(behind_first(PREFIXES, MARK)),),
    in_checkpoint=(renamed_scales(behind_first(PREFIXES[:2], MARK)),),
    configure=hunyuan3d_config,
    build=Hunyuan3dTransformer,
    saved=partial(saved_behind, PREFIX),
    dtypes=DtypePolicy(prefers=("float16", "bfloat16")),
)


def parameterise(match: Match, file: TensorReader) -> Parameterisation:
    """Return that of the mini network, whose latents are scaled otherwise, for one of as few blocks."""
    names = dict.fromkeys(match.names, ())
    return MINI_FLOW if count_children(names, "double_blocks") == MINI_BLOCKS else FLOW


FAMILY = ModelFamily(
    name="hunyuan3d",
    label="Hunyuan3D 2",
    lineage=("flux",),
    file_words=("hunyuan3d",),
    other_file_words=("hunyuan3d21", "hunyuan3dv21"),
    detect=detect_by(DENOISER, needs=(FIRST, "cond_in.weight")),
    parameterise=parameterise,
    denoiser=DENOISER,
    denoiser_type=ShapeDenoiser,
    text=(),
    vae=AUTOENCODER,
    latent_format=ShapeLatentFormat,
    denoiser_lora_keys=own_layer_keys,
    variants={"": ()},
    vision_prefix="conditioner.main_image_encoder.model.",
    comfyui=ComfyUiNames("Hunyuan3Dv2"),
    default=Defaults(
        width=512, height=512, steps=30, cfg=5.5, scheduler="normal",
        tflop=6.2, attention=0.27, billions=1.113,
    ),
    nodes=(
        "ImageOnlyCheckpointLoader", "LoadImage", "CLIPVisionEncode", "Hunyuan3Dv2Conditioning",
        "EmptyLatentHunyuan3Dv2", "ModelSamplingAuraFlow", "KSampler", "VAEDecodeHunyuan3D", "VoxelToMesh", "SaveGLB",
    ),
    memory_usage_factor=3.5,
    parameterisation=FLOW,
    sizes={
        "full": Hunyuan3dConfig(),
        "small": Hunyuan3dConfig(width=64, num_double=2, num_single=2, context_dim=64, head_width=16),
    },
    vision={
        "full": Dinov2Config(),
        "small": Dinov2Config(num_layers=24, width=64, inner_width=64, is_gated=False),
    },
)  # fmt: skip
