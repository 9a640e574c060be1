"""TRELLIS 2 (Microsoft 2025, https://github.com/microsoft/TRELLIS.2) and Pixal3D: shapes and textures from an image."""

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
    TensorIndex,
)
from darkroom.engine.families.layouts import behind_first, saved_behind
from darkroom.engine.families.transformer_files import PREFIX, PREFIXES, always
from darkroom.engine.families.trellis2.denoiser import Trellis2Denoiser
from darkroom.engine.families.trellis2.transformer import MARKS, Trellis2Config, Trellis2Transformer, trellis2_config
from darkroom.engine.families.trellis2.vae_files import SHAPE_DECODER, TEXTURE_DECODER, Trellis2LatentFormat
from darkroom.engine.layers.dinov3 import Dinov3Config
from darkroom.engine.settings import DtypePolicy

FLOW = Parameterisation(flow_of, {"shift": 3.0})

# Files may have the network of textures alone.
DENOISER = Network(
    layouts=tuple(behind_first(PREFIXES, mark) for mark in MARKS),
    in_checkpoint=tuple(behind_first((PREFIX,), mark) for mark in MARKS),
    configure=trellis2_config,
    build=Trellis2Transformer,
    saved=partial(saved_behind, PREFIX),
    dtypes=DtypePolicy(prefers=("bfloat16",)),
)


def detect(index: TensorIndex) -> Match | None:
    """Recognise files with a network of shapes or of textures."""
    found = (layout(index.shapes) for layout in DENOISER.layouts)
    names = next((names for names in found if names is not None), None)
    return None if names is None else Match(2, names)


FAMILY = ModelFamily(
    name="trellis2",
    label="TRELLIS 2",
    file_words=("trellis2", "pixal3d"),
    detect=detect,
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=Trellis2Denoiser,
    text=(),
    vae=SHAPE_DECODER,
    further_vaes=(TEXTURE_DECODER,),
    latent_format=Trellis2LatentFormat,
    denoiser_lora_keys=own_layer_keys,
    variants={"": ()},
    vision_prefix="conditioner.main_image_encoder.model.",
    comfyui=ComfyUiNames("Trellis2"),
    default=Defaults(
        width=1024, height=1024, steps=12, cfg=7.5, scheduler="normal",
        tflop=13.0, attention=0.24, billions=5.2,
    ),
    nodes=(
        "ImageOnlyCheckpointLoader", "LoadImage", "Trellis2Conditioning", "EmptyTrellis2LatentStructure", "KSampler",
        "VaeDecodeStructureTrellis2", "VoxelToMesh", "SaveGLB",
    ),
    memory_usage_factor=6.0,
    parameterisation=FLOW,
    sizes={
        "full": Trellis2Config(),
        "small": Trellis2Config(
            hidden_size=96, num_blocks=2, num_heads=12, intermediate_size=128, context_dim=64
        ),
    },
    vision={
        "full": Dinov3Config(),
        "small": Dinov3Config(num_layers=2, hidden_size=64, intermediate_size=64),
    },
)  # fmt: skip
