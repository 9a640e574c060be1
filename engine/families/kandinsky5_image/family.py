"""Kandinsky 5 Image Lite (Kandinsky Lab 2025, arXiv 2511.14993): images from text, in the latents of Flux.1."""

from __future__ import annotations

from darkroom.engine.adapters.lora_names import own_layer_keys
from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.base import ComfyUiNames, Defaults, ModelFamily, Parameterisation
from darkroom.engine.families.flux.latent_format import FluxLatentFormat
from darkroom.engine.families.kandinsky5.config import AUDIO, IMAGE_CHANNELS, LITE_IMAGE_SIZE, Kandinsky5Config
from darkroom.engine.families.kandinsky5.denoiser import Kandinsky5ImageDenoiser
from darkroom.engine.families.kandinsky5.family import DENOISER
from darkroom.engine.families.kandinsky5.text import (
    CONTEXT_DIM,
    DESCRIBE_IMAGE,
    LABEL_DIM,
    text_encoders,
    tokens_and_pooled,
)
from darkroom.engine.families.sd3.vae_files import autoencoder_16
from darkroom.engine.families.transformer_files import always, detect_by, with_variants

FLOW = Parameterisation(flow_of, {"shift": 3.0})

FAMILY = ModelFamily(
    name="kandinsky5_image",
    label="Kandinsky 5 Image",
    lineage=("flux", "kandinsky5"),
    file_words=("kandinsky5litet2i", "kandinsky5image"),
    detect=with_variants(detect_by(DENOISER, lacks=(AUDIO,)), DENOISER, {IMAGE_CHANNELS: ""}),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=Kandinsky5ImageDenoiser,
    text=text_encoders(DESCRIBE_IMAGE),
    combine_text=tokens_and_pooled,
    vae=autoencoder_16("vae."),
    latent_format=FluxLatentFormat,
    denoiser_lora_keys=own_layer_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("Flux", ("kandinsky5_image",)),
    default=Defaults(
        width=1024, height=1024, steps=50, cfg=3.5, scheduler="simple",
        tflop=47.1, attention=0.18, billions=6.022,
    ),
    nodes=(
        "UNETLoader", "DualCLIPLoader", "VAELoader", "CLIPTextEncode", "EmptySD3LatentImage", "KSampler", "VAEDecode",
    ),
    memory_usage_factor=1.25,
    parameterisation=FLOW,
    sizes={
        "full": Kandinsky5Config(
            hidden_size=LITE_IMAGE_SIZE, intermediate_size=10240, time_dim=512, num_text_blocks=2,
            num_visual_blocks=50, head_dim=128, context_dim=CONTEXT_DIM, label_dim=LABEL_DIM,
            in_channels=IMAGE_CHANNELS,
        ),
        "small": Kandinsky5Config(
            hidden_size=256, intermediate_size=384, time_dim=64, num_text_blocks=1, num_visual_blocks=2,
            head_dim=128, context_dim=32, label_dim=64, in_channels=IMAGE_CHANNELS,
        ),
    },
)  # fmt: skip
