"""Ideogram 4 (Ideogram 2026): one stream of text and image that reads thirteen layers of Qwen3-VL 8B.

Files of its unconditional model have the same tensors: `DualModelGuider` takes one for the negative side.
"""

from __future__ import annotations

from darkroom.engine.adapters.lora_names import own_layer_keys
from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.base import ComfyUiNames, Defaults, ModelFamily, Parameterisation
from darkroom.engine.families.flux2.vae_files import AUTOENCODER, Flux2LatentFormat
from darkroom.engine.families.ideogram4.denoiser import Ideogram4Denoiser
from darkroom.engine.families.ideogram4.text import QWEN
from darkroom.engine.families.ideogram4.transformer import (
    MARK,
    Ideogram4Config,
    Ideogram4Transformer,
    ideogram4_config,
)
from darkroom.engine.families.transformer_files import always, detect_by, transformer
from darkroom.engine.settings import DtypePolicy

FLOW = Parameterisation(flow_of, {"shift": 1.0, "multiplier": 1.0})
DENOISER = transformer(
    MARK,
    configure=ideogram4_config,
    build=Ideogram4Transformer,
    dtypes=DtypePolicy(prefers=("bfloat16",), computes=("float32", "bfloat16", "float64")),
)

FAMILY = ModelFamily(
    name="ideogram4",
    label="Ideogram 4",
    lineage=("flux2",),
    file_words=("ideogram4", "ideogram"),
    detect=detect_by(DENOISER, needs=("input_proj.weight",)),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=Ideogram4Denoiser,
    text=(QWEN,),
    vae=AUTOENCODER,
    latent_format=Flux2LatentFormat,
    denoiser_lora_keys=own_layer_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("Flux2", ("ideogram4",)),
    default=Defaults(
        width=1024, height=1024, steps=20, cfg=4.0, scheduler="simple",
        tflop=87.4, attention=0.094, billions=9.279,
    ),
    nodes=(
        "UNETLoader", "CLIPLoader", "VAELoader", "CLIPTextEncode", "EmptyFlux2LatentImage", "DualModelGuider",
        "Ideogram4Scheduler", "SamplerCustomAdvanced", "VAEDecode",
    ),
    memory_usage_factor=11.6,
    parameterisation=FLOW,
    sizes={
        "full": Ideogram4Config(),
        "small": Ideogram4Config(
            hidden_size=256, intermediate_size=256, num_layers=2, adaln_dim=64, context_dim=832
        ),
    },
)  # fmt: skip
