"""Flux.2 (Black Forest Labs 2025): dev, which reads Mistral Small 3, and Klein 4B and 9B, which read Qwen3.

Compared with ComfyUI 0.30.0, since 0.3.64 does not have it.
"""

from __future__ import annotations

from functools import partial

from darkroom.engine.diffusion.model_sampling_variants import flux_flow_of
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    Match,
    ModelFamily,
    Network,
    Parameterisation,
    TensorIndex,
    TensorReader,
)
from darkroom.engine.families.flux.scale_names import renamed_scales
from darkroom.engine.families.flux2.denoiser import Flux2Denoiser
from darkroom.engine.families.flux2.diffusers_names import file_layout, lora_keys
from darkroom.engine.families.flux2.text import (
    MISTRAL,
    MISTRAL_LAYERS,
    MISTRAL_WIDTH,
    QWEN_4B,
    QWEN_4B_WIDTH,
    QWEN_8B,
    QWEN_8B_WIDTH,
    QWEN_LAYERS,
)
from darkroom.engine.families.flux2.transformer import MARK, Flux2Config, Flux2Transformer, flux2_config
from darkroom.engine.families.flux2.vae_files import AUTOENCODER, Flux2LatentFormat
from darkroom.engine.families.layouts import behind_first, saved_behind
from darkroom.engine.settings import DtypePolicy

PREFIX = "model.diffusion_model."
PREFIXES = (PREFIX, "diffusion_model.", "")  # of files of the network alone
FLOW = Parameterisation(flux_flow_of, {"shift": 2.02})


find = renamed_scales(behind_first(PREFIXES, MARK))
find_diffusers = file_layout()


def detect(index: TensorIndex) -> Match | None:
    """Recognise the transformer by the modulation that its blocks share."""
    names = find(index.shapes) or find_diffusers(index.shapes)
    return None if names is None or "img_in.weight" not in names else Match(3, names)


def parameterise(match: Match, file: TensorReader) -> Parameterisation:
    """Return the only one: a flow, with an exponential shift unless a node sets another."""
    return FLOW


FAMILY = ModelFamily(
    name="flux2",
    label="Flux.2",
    lineage=("flux",),
    file_words=("flux2",),
    detect=detect,
    parameterise=parameterise,
    denoiser=Network(
        layouts=(find, find_diffusers),
        in_checkpoint=(renamed_scales(behind_first((PREFIX,), MARK)),),
        configure=flux2_config,
        build=Flux2Transformer,
        saved=partial(saved_behind, PREFIX),
        dtypes=DtypePolicy(prefers=("bfloat16", "float16")),
    ),
    denoiser_type=Flux2Denoiser,
    text=(MISTRAL, QWEN_4B, QWEN_8B),
    num_taken_encoders=1,
    vae=AUTOENCODER,
    latent_format=Flux2LatentFormat,
    denoiser_lora_keys=lora_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("Flux2", ("flux2",)),
    default=Defaults(
        width=1024, height=1024, steps=20, cfg=1.0, scheduler="simple",
        tflop=265.0, attention=0.06, billions=32.223, edit="references",
    ),
    nodes=(
        "UNETLoader", "CLIPLoader", "VAELoader", "CLIPTextEncode", "EmptyFlux2LatentImage", "FluxGuidance", "KSampler",
        "VAEDecode",
    ),
    memory_usage_factor=29.3,  # of dev; Klein needs less
    parameterisation=FLOW,
    sizes={
        "full": Flux2Config(
            width=6144, num_double=8, num_single=48, context_dim=MISTRAL_WIDTH * len(MISTRAL_LAYERS)
        ),
        "klein_4b": Flux2Config(
            width=3072, num_double=5, num_single=20, context_dim=QWEN_4B_WIDTH * len(QWEN_LAYERS),
            has_guidance=False,
        ),
        "klein_9b": Flux2Config(
            width=4096, num_double=8, num_single=24, context_dim=QWEN_8B_WIDTH * len(QWEN_LAYERS),
            has_guidance=False,
        ),
        "small": Flux2Config(width=256, num_double=2, num_single=2, context_dim=192),
        "small_klein_4b": Flux2Config(width=128, num_double=2, num_single=2, context_dim=96, has_guidance=False),
        "small_klein_9b": Flux2Config(width=128, num_double=1, num_single=2, context_dim=384, has_guidance=False),
    },
)  # fmt: skip
