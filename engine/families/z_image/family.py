"""Z-Image, Turbo and Base (Cai et al. 2025, arXiv 2511.22699): a Next-DiT that reads Qwen3."""

from __future__ import annotations

from dataclasses import replace

from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    Match,
    ModelFamily,
    Parameterisation,
    Shapes,
    TensorIndex,
)
from darkroom.engine.families.flux.latent_format import FluxLatentFormat
from darkroom.engine.families.lumina2.layers import FLOAT32_EPS, MARK, TIME_LAYER
from darkroom.engine.families.sd3.vae_files import autoencoder_16
from darkroom.engine.families.text.language_model import fits_kind, language_text_encoder
from darkroom.engine.families.transformer_files import always, detect_by, transformer
from darkroom.engine.families.z_image.denoiser import ZImageDenoiser
from darkroom.engine.families.z_image.diffusers_names import file_layout, lora_keys
from darkroom.engine.families.z_image.fun_control_files import CONTROL
from darkroom.engine.families.z_image.transformer import (
    VISION_EMBEDDER,
    ZImageConfig,
    ZImageTransformer,
    z_image_config,
)
from darkroom.engine.layers.language_model import EMBEDDING, QWEN3, LanguageModelConfig
from darkroom.engine.settings import DtypePolicy
from darkroom.engine.text.language_encoding import LanguageEncoding
from darkroom.engine.text.language_tokens import qwen3
from darkroom.engine.text.qwen_tokens import PAD_TOKEN

VAE_PREFIX = "vae."
CONTEXT_DIM = 2560
OTHER_WIDTHS = (1024, 2048, 4096)  # of models of the same kind that other networks read
OMNI = "omni"
PIXEL_DECODER = "dec_net.cond_embed.weight"
TEMPLATE = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
FLOW = Parameterisation(flow_of, {"shift": 3.0, "multiplier": 1.0})


def fits(shapes: Shapes) -> bool:
    """Return True for Qwen3 of a width that no other network reads."""
    return fits_kind(shapes, kind=QWEN3) and shapes[EMBEDDING][1] not in OTHER_WIDTHS


QWEN = language_text_encoder(
    LanguageEncoding(
        slot="qwen3_4b", embedding_width=CONTEXT_DIM, layer=-2, pad_token=PAD_TOKEN, template=TEMPLATE,
        takes_weights=False, takes_embeddings=True,
    ),
    kind=QWEN3, fits=fits, vocabulary=qwen3,
    sizes={
        "full": LanguageModelConfig(
            kind=QWEN3, num_layers=36, width=CONTEXT_DIM, heads=32, key_heads=8, inner_width=9728,
            vocabulary_size=151936, norms_queries=True,
        ),
        "small": LanguageModelConfig(
            kind=QWEN3, num_layers=2, width=16, heads=1, key_heads=1, inner_width=32, vocabulary_size=151936,
            norms_queries=True,
        ),
    },
)  # fmt: skip

DENOISER = transformer(
    MARK,
    configure=z_image_config,
    build=ZImageTransformer,
    dtypes=DtypePolicy(prefers=("bfloat16",)),
    other_layouts=(file_layout(),),
)

DEFAULT = Defaults(
    width=1024, height=1024, steps=9, cfg=1.0, sampler_name="res_multistep", scheduler="simple",
    tflop=58.5, attention=0.12, billions=6.155,
)  # fmt: skip


def detect(index: TensorIndex) -> Match | None:
    """Recognise the network by its refining blocks, whose time passes no SiLU; one with a decoder of pixels is not it.

    The variant is the one with layers for SigLIP 2's tokens.
    """
    match = detect_by(DENOISER, needs=(TIME_LAYER,), lacks=(PIXEL_DECODER,))(index)
    return replace(match, variant=OMNI) if match is not None and VISION_EMBEDDER in match.names else match


FAMILY = ModelFamily(
    name="z_image",
    label="Z-Image",
    lineage=("lumina2",),
    file_words=("zimage",),
    detect=detect,
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=ZImageDenoiser,
    text=(QWEN,),
    vae=autoencoder_16(VAE_PREFIX),
    latent_format=FluxLatentFormat,
    denoiser_lora_keys=lora_keys,
    model_patches=(CONTROL,),
    variants={"": (), OMNI: ()},
    comfyui=ComfyUiNames("Flux", ("lumina2",), untyped_slots=("qwen3_4b",)),
    default=DEFAULT,
    variant_defaults={OMNI: replace(DEFAULT, steps=25, cfg=4.0, edit="references", billions=6.513)},
    nodes=("UNETLoader", "CLIPLoader", "VAELoader", "CLIPTextEncode", "EmptySD3LatentImage", "KSampler", "VAEDecode"),
    memory_usage_factor=2.8,
    parameterisation=FLOW,
    sizes={
        "full": ZImageConfig(
            width=3840, heads=30, key_heads=30, inner_width=10240, num_layers=30, context_dim=CONTEXT_DIM,
            time_width=256, time_inner=1024, activates_time=False, pads_tokens=True, query_eps=FLOAT32_EPS,
            axes=(32, 48, 48), theta=256.0, time_factor=1000.0,
        ),
        "small": ZImageConfig(
            width=256, heads=2, key_heads=2, inner_width=256, num_layers=2, context_dim=16, time_width=64,
            time_inner=64, num_refiners=1, activates_time=False, pads_tokens=True, query_eps=FLOAT32_EPS,
            axes=(32, 48, 48), theta=256.0, time_factor=1000.0,
        ),
    },
)  # fmt: skip
