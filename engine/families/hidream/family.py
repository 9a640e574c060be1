"""HiDream-I1, full, dev and fast (HiDream.ai 2025, arXiv 2505.22705)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from darkroom.engine.adapters.lora_names import DENOISER_PREFIX, LoraTarget, denoiser_keys
from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    ModelFamily,
    Parameterisation,
)
from darkroom.engine.families.flux.latent_format import FluxLatentFormat
from darkroom.engine.families.hidream.denoiser import LayersDenoiser
from darkroom.engine.families.hidream.text import (
    CLIP_G,
    CLIP_L,
    G_WIDTH,
    L_WIDTH,
    LANGUAGE_DIM,
    LLAMA,
    T5,
    TEXT_DIM,
    combined,
)
from darkroom.engine.families.hidream.transformer import MARK, HiDreamConfig, HiDreamTransformer, hidream_config
from darkroom.engine.families.sd3.vae_files import autoencoder_16
from darkroom.engine.families.transformer_files import always, detect_by, transformer
from darkroom.engine.settings import DtypePolicy

VAE_PREFIX = "vae."
FLOW = Parameterisation(flow_of, {"shift": 1.0})

DENOISER = transformer(
    MARK,
    configure=hidream_config,
    build=HiDreamTransformer,
    dtypes=DtypePolicy(prefers=("bfloat16",)),
)


def lora_keys(weight_names: Iterable[str], config: HiDreamConfig) -> Mapping[str, LoraTarget]:
    """Return a map from the names used in LoRA files to the weights of the network."""
    keys = denoiser_keys(weight_names, {})
    for key, name in [*keys.items()]:
        bare = key.removeprefix(DENOISER_PREFIX)
        if bare != key:
            keys |= {f"lycoris_{bare.replace('.', '_')}": name, f"transformer.{bare}": name}
    return keys


FAMILY = ModelFamily(
    name="hidream",
    label="HiDream-I1",
    lineage=("lumina2",),
    file_words=("hidreami1", "hidreame1"),
    detect=detect_by(DENOISER),  # by the layers that read a language model's
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=LayersDenoiser,
    text=(CLIP_L, CLIP_G, T5, LLAMA),
    combine_text=combined,
    takes_fewer_encoders=True,
    vae=autoencoder_16(VAE_PREFIX),
    latent_format=FluxLatentFormat,
    denoiser_lora_keys=lora_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("Flux", ("hidream",)),
    default=Defaults(
        width=1024, height=1024, steps=28, cfg=1.0, sampler_name="lcm", scheduler="normal",
        tflop=76.0, attention=0.13, billions=17.106, shift=6.0,
    ),
    nodes=(
        "UNETLoader", "QuadrupleCLIPLoader", "VAELoader", "CLIPTextEncode", "ModelSamplingSD3", "EmptySD3LatentImage",
        "KSampler", "VAEDecode",
    ),
    memory_usage_factor=2.0,
    parameterisation=FLOW,
    sizes={
        "full": HiDreamConfig(
            width=2560, num_double=16, num_single=32, text_dim=TEXT_DIM, language_dim=LANGUAGE_DIM,
            label_dim=L_WIDTH + G_WIDTH, expert_width=6912, shared_width=3584, text_width=6912,
        ),
        "small": HiDreamConfig(
            width=128, num_double=1, num_single=2, text_dim=128, language_dim=16, label_dim=128, expert_width=64,
            shared_width=32, text_width=64,
        ),
    },
)  # fmt: skip
