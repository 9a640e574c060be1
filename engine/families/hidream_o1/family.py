"""HiDream-O1-Image and its Dev model (HiDream.ai 2026): Qwen3-VL draws the pixels, after a text and images."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from darkroom.engine.adapters.lora_names import own_layer_keys
from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.base import ComfyUiNames, Defaults, ModelFamily, Parameterisation
from darkroom.engine.families.chroma_radiance.pixel_space import MARK as PIXEL_MARK
from darkroom.engine.families.chroma_radiance.pixel_space import PIXEL_SPACE, PixelLatentFormat
from darkroom.engine.families.hidream_o1.denoiser import HiDreamO1Denoiser
from darkroom.engine.families.hidream_o1.text import NUMBERS, SLOT, marked, without_mark
from darkroom.engine.families.hidream_o1.transformer import (
    MARK,
    HiDreamO1Config,
    HiDreamO1Transformer,
    hidream_o1_config,
)
from darkroom.engine.families.layouts import saved_behind
from darkroom.engine.families.transformer_files import PREFIX, always, detect_by, transformer
from darkroom.engine.families.vae_files import PREFIX as VAE_PREFIX
from darkroom.engine.layers.qwen3_vl_vision import Qwen3VlVisionConfig
from darkroom.engine.settings import DtypePolicy

PREFIXES = (PREFIX, "diffusion_model.", "model.", "")  # of files of the network alone
FLOW = Parameterisation(flow_of, {"shift": 3.0, "noise_scale": 8.0})
DENOISER = transformer(
    MARK,
    configure=hidream_o1_config,
    build=HiDreamO1Transformer,
    dtypes=DtypePolicy(prefers=("bfloat16",), computes=("float32", "bfloat16", "float64")),
    prefixes=PREFIXES,
    in_checkpoint=PREFIXES,
)
PIXELS = replace(
    PIXEL_SPACE,
    in_checkpoint=(marked(PIXEL_MARK, (VAE_PREFIX,)), without_mark),
    saved=partial(saved_behind, VAE_PREFIX),
    defaults={PIXEL_MARK: torch.ones},
)

FAMILY = ModelFamily(
    name="hidream_o1",
    label="HiDream-O1",
    lineage=("chroma_radiance",),
    file_words=("hidreamo1",),
    detect=detect_by(DENOISER, needs=("x_embedder.proj1.weight",)),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=HiDreamO1Denoiser,
    text=(NUMBERS,),
    vae=PIXELS,
    latent_format=PixelLatentFormat,
    denoiser_lora_keys=own_layer_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("HiDreamO1Pixel", untyped_slots=(SLOT,)),
    default=Defaults(
        width=2048, height=2048, steps=40, cfg=5.0, sampler_name="dpmpp_2m_sde",
        tflop=71.2, attention=0.114, billions=8.062,
    ),
    nodes=("CheckpointLoaderSimple", "CLIPTextEncode", "EmptyHiDreamO1LatentImage", "KSampler", "VAEDecode"),
    memory_usage_factor=0.033,
    parameterisation=FLOW,
    sizes={
        "full": HiDreamO1Config(
            vision=Qwen3VlVisionConfig(
                width=1152, inner_width=4304, num_blocks=27, out_width=4096, is_tapped=False
            ),
        ),
        "small": HiDreamO1Config(
            vision=Qwen3VlVisionConfig(
                width=64, inner_width=64, num_blocks=2, out_width=128, table_side=8, is_tapped=False
            ),
            hidden_size=128, intermediate_size=128, num_layers=2, key_heads=1, vocabulary_size=151936,
        ),
    },
)  # fmt: skip
