"""Mage-Flow (Microsoft 2026), its Turbo and Edit models: Qwen-Image's blocks over the latents of a one-step codec."""

from __future__ import annotations

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
from darkroom.engine.families.flux2.vae_files import Flux2LatentFormat
from darkroom.engine.families.mage_flow.denoiser import MageFlowDenoiser
from darkroom.engine.families.mage_flow.text import HIDDEN_SIZE, QWEN
from darkroom.engine.families.mage_flow.transformer import (
    BLOCK,
    CHANNELS,
    LAST,
    MARK,
    MageFlowConfig,
    MageFlowTransformer,
    mage_flow_config,
)
from darkroom.engine.families.mage_flow.vae_files import MAGE_VAE
from darkroom.engine.families.transformer_files import PREFIX, always, detect_by, transformer
from darkroom.engine.formats.weight_file import shape_of
from darkroom.engine.settings import DtypePolicy

PREFIXES = (PREFIX, "diffusion_model.", "transformer.", "")  # of files of the network alone
FLOW = Parameterisation(flow_of, {"shift": 6.0, "multiplier": 1.0})
DENOISER = transformer(
    BLOCK,
    configure=mage_flow_config,
    build=MageFlowTransformer,
    dtypes=DtypePolicy(prefers=("bfloat16",), computes=("float32", "bfloat16", "float64")),
    prefixes=PREFIXES,
)
find = detect_by(DENOISER, needs=(MARK, LAST))


def detect(index: TensorIndex) -> Match | None:
    """Recognise the network by the blocks that it shares with Qwen-Image, and its 128 channels of single cells."""
    match = find(index)
    if match is None or shape_of(match.names[LAST], index.shapes)[0] != CHANNELS:
        return None
    return Match(match.specificity + 1, match.names)


FAMILY = ModelFamily(
    name="mage_flow",
    label="Mage-Flow",
    lineage=("qwen_image", "flux2"),
    file_words=("mageflow",),
    detect=detect,
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=MageFlowDenoiser,
    text=(QWEN,),
    vae=MAGE_VAE,
    latent_format=Flux2LatentFormat,
    denoiser_lora_keys=own_layer_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("Flux2", ("mage",)),
    default=Defaults(
        width=1024, height=1024, steps=30, cfg=5.0, scheduler="simple",
        tflop=14.63, attention=0.145, billions=4.116,
    ),
    nodes=(
        "UNETLoader", "CLIPLoader", "VAELoader", "CLIPTextEncode", "EmptyFlux2LatentImage", "KSampler", "VAEDecode",
    ),
    memory_usage_factor=6.5,
    parameterisation=FLOW,
    sizes={
        "full": MageFlowConfig(width=3072, num_blocks=12, context_dim=HIDDEN_SIZE),
        "small": MageFlowConfig(width=128, num_blocks=2, context_dim=32),
    },
)  # fmt: skip
