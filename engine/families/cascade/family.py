"""Stable Cascade (Pernias et al. 2023, arXiv 2306.00637): stage C from a prompt, stage B from it, stage A decodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from darkroom.engine.adapters.lora_names import denoiser_keys
from darkroom.engine.diffusion.model_sampling_variants import CascadeEps
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    ImageControl,
    Match,
    ModelFamily,
    Network,
    Parameterisation,
    Shapes,
    TensorIndex,
    TensorReader,
)
from darkroom.engine.families.cascade.controlnet import cascade_control, fits
from darkroom.engine.families.cascade.denoisers import (
    DecoderLatentFormat,
    PriorLatentFormat,
    StageBDenoiser,
    StageCDenoiser,
)
from darkroom.engine.families.cascade.text import CLIP_G
from darkroom.engine.families.cascade.unet import (
    EMBEDDING,
    LAST,
    TEXT,
    CascadeConfig,
    CascadeLevel,
    build_stage,
    cascade_config,
)
from darkroom.engine.families.cascade.vae_files import AUTOENCODERS
from darkroom.engine.families.layouts import names_behind, saved_behind
from darkroom.engine.families.sd15.unet_files import PREFIX, PREFIXES
from darkroom.engine.formats.weight_file import Names, Part
from darkroom.engine.layers.clip_vision import ClipVisionConfig
from darkroom.engine.settings import DtypePolicy

FUSED, SEPARATE = "in_proj_", ("to_q", "to_k", "to_v")
CLASSES = {TEXT: "", EMBEDDING: "decoder"}
SHIFTS = {"": 2.0, "decoder": 1.0}


def _levels(config: Any) -> CascadeEps:
    return CascadeEps(config.sampling_settings["shift"])


OF_STAGE_C = Parameterisation(_levels, {"shift": SHIFTS[""]})


def _names(shapes: Shapes, prefix: str) -> Names | None:
    """Return the names of a stage behind a prefix, its attention's projections joined or not."""
    if prefix + LAST not in shapes or not any(prefix + mark in shapes for mark in CLASSES):
        return None
    names: dict[str, str | Part] = {}
    for name, key in names_behind(shapes, prefix).items():
        owner, _, kind = name.rpartition(".")
        if kind.startswith(FUSED):
            for third, layer in enumerate(SEPARATE):
                names[f"{owner}.{layer}.{kind.removeprefix(FUSED)}"] = Part(key, third, len(SEPARATE))
        else:
            names[name] = key
    return names


def _anywhere(shapes: Shapes) -> Names | None:
    return next((names for prefix in PREFIXES if (names := _names(shapes, prefix)) is not None), None)


def detect(index: TensorIndex) -> Match | None:
    """Recognise either stage by how its conditioning is mapped."""
    names = _anywhere(index.shapes)
    if names is None:
        return None
    return Match(2, names, next(variant for mark, variant in CLASSES.items() if mark in names))


def parameterise(match: Match, file: TensorReader) -> Parameterisation:
    """Return the shift of the stage's noise levels, and the latents that it draws."""
    if match.variant == "":
        return OF_STAGE_C
    return Parameterisation(_levels, {"shift": SHIFTS[match.variant]}, latent_format=DecoderLatentFormat)


def lora_keys(weight_names: Iterable[str], config: CascadeConfig) -> dict[str, str]:
    """Return a map from the names used in LoRA files to the weights of a stage, stage C's own ones too."""
    keys = denoiser_keys(weight_names, {})
    flat = {key: name for key, name in keys.items() if key.startswith("lora_unet_")} if config.is_stage_c else {}
    return keys | {key.replace("lora_unet_", "lora_prior_unet_"): name for key, name in flat.items()}


def stage_c(width: int, num_blocks: tuple[int, int], *, text_dim: int = 1280, image_dim: int = 768) -> CascadeConfig:
    """Return the layers of a stage C of two levels of one width, with so many blocks."""
    first, second = (CascadeLevel(width, ("residual", "time", "attention") * number) for number in num_blocks)
    return CascadeConfig(
        latent_channels=16, patch=1, down=(first, second), up=(second, first), mapped_dim=width, pooled_dim=text_dim,
        tokens_per_embedding=4, conditions=("sca", "crp"), text_dim=text_dim, image_dim=image_dim,
    )  # fmt: skip


FAMILY = ModelFamily(
    name="cascade",
    label="Stable Cascade",
    lineage=("sd15",),
    file_words=("stablecascade",),
    detect=detect,
    parameterise=parameterise,
    denoiser=Network(
        layouts=(_anywhere,),
        in_checkpoint=(lambda shapes: _names(shapes, PREFIX),),
        configure=cascade_config,
        build=build_stage,
        saved=lambda tensors: saved_behind(PREFIX, tensors),
        dtypes=DtypePolicy(prefers=("bfloat16",)),
    ),
    denoiser_type=StageCDenoiser,
    text=(CLIP_G,),
    vae=AUTOENCODERS,
    latent_format=PriorLatentFormat,
    denoiser_lora_keys=lora_keys,
    image_control=ImageControl(fits, cascade_control),
    variants={"": (), "decoder": ()},
    variant_types={"decoder": StageBDenoiser},
    memory_usage_factor=2.0,
    vision_prefix="clip_l_vision.",
    comfyui=ComfyUiNames("SC_Prior", ("stable_cascade",)),
    default=Defaults(
        width=1024, height=1024, steps=20, cfg=4.0, sampler_name="euler_ancestral", scheduler="simple",
        tflop=4.08, attention=0.03, billions=3.589
    ),
    nodes=(
        "CheckpointLoaderSimple", "CLIPTextEncode", "StableCascade_EmptyLatentImage", "KSampler",
        "StableCascade_StageB_Conditioning", "VAEDecode",
    ),
    parameterisation=OF_STAGE_C,
    sizes={
        "full": stage_c(2048, (8, 24)),
        "small": stage_c(64, (1, 1), text_dim=64, image_dim=64),
    },
    vision={
        "full": ClipVisionConfig(),
        "small": ClipVisionConfig(num_layers=24, width=64, inner_width=64, projection_width=64),
    },
)  # fmt: skip
