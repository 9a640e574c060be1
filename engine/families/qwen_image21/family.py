"""Qwen-Image 2.1 (Qwen Team 2026): draws and edits images with opacity, after Qwen3-VL 8B and reference images.

Compared with the files of ComfyUI 0.37.4, since neither 0.3.64 nor 0.30.0 has it.
"""

from __future__ import annotations

from darkroom.engine.diffusion.model_sampling_variants import flux_flow_of
from darkroom.engine.families.base import ComfyUiNames, Defaults, ModelFamily, Parameterisation
from darkroom.engine.families.qwen_image21.denoiser import QwenImage21Denoiser
from darkroom.engine.families.qwen_image21.layers import MARK, MODULATION, QwenImage21Config, qwen_image21_config
from darkroom.engine.families.qwen_image21.lora import lora_keys, renamed_lora
from darkroom.engine.families.qwen_image21.text import QWEN, WIDTH
from darkroom.engine.families.qwen_image21.transformer import QwenImage21Transformer
from darkroom.engine.families.qwen_image21.vae_files import AUTOENCODER, OpacityLatentFormat
from darkroom.engine.families.transformer_files import always, detect_by, transformer
from darkroom.engine.settings import DtypePolicy

FLOW = Parameterisation(flux_flow_of, {"shift": 0.69})

DENOISER = transformer(
    MARK,
    configure=qwen_image21_config,
    build=QwenImage21Transformer,
    dtypes=DtypePolicy(prefers=("bfloat16", "float16")),
)

FAMILY = ModelFamily(
    name="qwen_image21",
    label="Qwen-Image 2.1",
    lineage=("qwen_image", "wan22"),
    file_words=("qwenimage21",),
    detect=detect_by(DENOISER, needs=(MODULATION,)),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=QwenImage21Denoiser,
    text=(QWEN,),
    vae=AUTOENCODER,
    latent_format=OpacityLatentFormat,
    denoiser_lora_keys=lora_keys,
    renamed_lora=renamed_lora,
    variants={"": ()},
    comfyui=ComfyUiNames("QwenImage21", ("qwen_image",)),
    default=Defaults(
        width=1024, height=1024, steps=25, cfg=1.0, scheduler="simple",
        tflop=70.2, attention=0.1, billions=7.115, edit="interleaved",
    ),
    nodes=(
        "UNETLoader", "CLIPLoader", "VAELoader", "TextEncodeQwenImage21", "EmptyLatentImage", "KSampler", "VAEDecode",
    ),
    memory_usage_factor=6.0,
    parameterisation=FLOW,
    sizes={
        "full": QwenImage21Config(width=4096, num_blocks=32, context_dim=WIDTH, inner_width=12288),
        "small": QwenImage21Config(width=256, num_blocks=2, context_dim=128, inner_width=768),
    },
)  # fmt: skip
