"""HunyuanDiT (Li et al. 2024, arXiv 2405.08748), versions 1.0 to 1.2, bilingual.

Prompts are read by BERT and mT5. Versions before 1.2 read the size of the image and were trained on other noise.
BERT's list of words is under Tencent's licence and not part of the engine: files hold it, or it lies beside them.
"""

from __future__ import annotations

from collections.abc import Iterable

from darkroom.engine.adapters.lora_names import LoraTarget, denoiser_keys, named_by_trainers
from darkroom.engine.diffusion.model_sampling import VDiscrete
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    Match,
    ModelFamily,
    Parameterisation,
    TensorReader,
)
from darkroom.engine.families.hunyuan_dit.controlnet_files import ONWARD, control_networks
from darkroom.engine.families.hunyuan_dit.denoiser import HunyuanDitDenoiser
from darkroom.engine.families.hunyuan_dit.text import BERT, MT5, tokens_of_both
from darkroom.engine.families.hunyuan_dit.transformer import (
    MARK,
    STYLE,
    HunyuanDitConfig,
    HunyuanDitTransformer,
    hunyuan_dit_config,
)
from darkroom.engine.families.sd15.vae_files import autoencoder_kl
from darkroom.engine.families.sdxl.latent_format import SdxlLatentFormat
from darkroom.engine.families.transformer_files import PREFIX, detect_by, transformer
from darkroom.engine.settings import DtypePolicy

IN_CHECKPOINT = (PREFIX, "model.")
PREFIXES = (*IN_CHECKPOINT, "diffusion_model.", "")  # of files of the network alone
VAE_PREFIX = "vae."
LATEST = Parameterisation(VDiscrete, {"linear_start": 0.00085, "linear_end": 0.018})
FIRST = Parameterisation(VDiscrete, {"linear_start": 0.00085, "linear_end": 0.03})
DENOISER = transformer(
    MARK,
    configure=hunyuan_dit_config,
    build=HunyuanDitTransformer,
    dtypes=DtypePolicy(prefers=("float16", "bfloat16")),
    prefixes=PREFIXES,
    in_checkpoint=IN_CHECKPOINT,
)


def parameterise(match: Match, file: TensorReader) -> Parameterisation:
    """Distinguish versions before 1.2 from the latest by the style that they were trained with."""
    return FIRST if STYLE in match.names else LATEST


def lora_keys(weight_names: Iterable[str], config: HunyuanDitConfig) -> dict[str, LoraTarget]:
    """Return a map from the names used in LoRA files to the weights of the network."""
    names = list(weight_names)
    layers = (name.removeprefix("diffusion_model.") for name in names if name.endswith(".weight"))
    own = {name.removesuffix(".weight"): name for name in layers}
    return {**denoiser_keys(names, {}), **named_by_trainers(own, ("base_model.model.",), ())}


FAMILY = ModelFamily(
    name="hunyuan_dit",
    label="HunyuanDiT",
    lineage=("sd3", "sdxl"),
    file_words=("hunyuandit",),
    # Recognised by the layers that read mT5's tokens; its ControlNets have these too.
    detect=detect_by(DENOISER, lacks=(ONWARD,)),
    parameterise=parameterise,
    denoiser=DENOISER,
    denoiser_type=HunyuanDitDenoiser,
    text=(BERT, MT5),
    combine_text=tokens_of_both,
    vae=autoencoder_kl(VAE_PREFIX),
    latent_format=SdxlLatentFormat,
    denoiser_lora_keys=lora_keys,
    control_networks=control_networks(SdxlLatentFormat()),
    variants={"": ()},
    comfyui=ComfyUiNames("SDXL", ("hunyuan_dit",)),
    default=Defaults(
        width=1024, height=1024, steps=25, cfg=6.0, scheduler="normal",
        tflop=14.6, attention=0.25, billions=1.5,
    ),
    nodes=("CheckpointLoaderSimple", "CLIPTextEncode", "EmptyLatentImage", "KSampler", "VAEDecode"),
    memory_usage_factor=1.3,
    parameterisation=LATEST,
    sizes={
        "full": HunyuanDitConfig(width=1408, num_blocks=40, heads=16, inner_width=6144),
        "small": HunyuanDitConfig(
            width=176, num_blocks=4, heads=2, inner_width=256, context_dim=64, second_dim=64, pooled_dim=64
        ),
    },
)  # fmt: skip
