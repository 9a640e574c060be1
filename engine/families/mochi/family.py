"""Mochi 1 (Genmo 2024, https://github.com/genmoai/mochi): 10 billion weights."""

from __future__ import annotations

from darkroom.engine.adapters.lora_names import own_layer_keys
from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.base import ComfyUiNames, Defaults, ModelFamily, Parameterisation
from darkroom.engine.families.mochi.denoiser import MochiDenoiser
from darkroom.engine.families.mochi.transformer import FIRST, MARK, MochiConfig, MochiTransformer, mochi_config
from darkroom.engine.families.mochi.vae_files import AUTOENCODER, MochiLatentFormat
from darkroom.engine.families.text.t5 import t5_xxl
from darkroom.engine.families.transformer_files import always, detect_by, transformer
from darkroom.engine.settings import DtypePolicy
from darkroom.engine.text.t5_encoding import T5Encoding

FLOW = Parameterisation(flow_of, {"shift": 6.0, "multiplier": 1.0})
MERGED_BLOCKS = (
    "pos_frequencies.", "t_embedder.", "t5_y_embedder.", "t5_yproj.", *(f"blocks.{index}." for index in range(48)),
    "final_layer.",
)  # fmt: skip

DENOISER = transformer(
    MARK,
    configure=mochi_config,
    build=MochiTransformer,
    dtypes=DtypePolicy(prefers=("bfloat16",)),
)

FAMILY = ModelFamily(
    name="mochi",
    label="Mochi",
    file_words=("mochi",),
    detect=detect_by(DENOISER, needs=(FIRST, "pos_frequencies")),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=MochiDenoiser,
    text=(t5_xxl(T5Encoding(min_length=256, masks_padding=True, returns_mask=True)),),
    vae=AUTOENCODER,
    latent_format=MochiLatentFormat,
    denoiser_lora_keys=own_layer_keys,
    variants={"": ()},
    comfyui=ComfyUiNames(
        "Mochi", ("mochi",), {"ModelMergeMochiPreview": MERGED_BLOCKS}, untyped_slots=("t5xxl",),
    ),
    default=Defaults(
        width=848, height=480, steps=30, cfg=4.5, scheduler="simple", tflop=198.0, attention=0.37, billions=10.028,
        video_latent="EmptyMochiLatentVideo", frames=37, frame_rate=24.0, frames_ratio=6,
    ),
    nodes=("CheckpointLoaderSimple", "CLIPTextEncode", "EmptyMochiLatentVideo", "KSampler", "VAEDecode"),
    memory_usage_factor=2.0,
    parameterisation=FLOW,
    sizes={
        "full": MochiConfig(),
        "small": MochiConfig(width=128, text_width=64, num_blocks=3, heads=2, context_dim=128),
    },
)  # fmt: skip
