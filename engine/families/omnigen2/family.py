"""OmniGen2 (Wu et al. 2025, arXiv 2506.18871): a Next-DiT with reference images that reads Qwen2.5-VL 3B."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from darkroom.engine.adapters.lora_names import DENOISER_PREFIX, LoraTarget, denoiser_keys
from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    ModelFamily,
    Parameterisation,
    Shapes,
)
from darkroom.engine.families.flux.latent_format import FluxLatentFormat
from darkroom.engine.families.omnigen2.layers import ATTENTION, MARK, OmniGen2Config, omnigen2_config
from darkroom.engine.families.omnigen2.transformer import OmniGen2Transformer
from darkroom.engine.families.references_denoiser import ReferencesDenoiser
from darkroom.engine.families.sd3.vae_files import autoencoder_16
from darkroom.engine.families.text.language_model import fits_kind, language_text_encoder
from darkroom.engine.families.transformer_files import always, detect_by, transformer
from darkroom.engine.layers.language_model import KEYS, QWEN2, LanguageModelConfig
from darkroom.engine.settings import DtypePolicy
from darkroom.engine.text.language_encoding import LanguageEncoding
from darkroom.engine.text.language_tokens import qwen2
from darkroom.engine.text.qwen_tokens import PAD_TOKEN

VAE_PREFIX = "vae."
CONTEXT_DIM = 2048
KEY_ROWS = 256  # of the text encoder's keys; larger ones of its kind have more
TEMPLATE = (
    "<|im_start|>system\nYou are a helpful assistant that generates high-quality images based on user instructions."
    "<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n"
)
FLOW = Parameterisation(flow_of, {"shift": 2.6, "multiplier": 1.0})

DENOISER = transformer(
    MARK,
    configure=omnigen2_config,
    build=OmniGen2Transformer,
    dtypes=DtypePolicy(prefers=("float16", "bfloat16")),
)


def lora_keys(weight_names: Iterable[str], config: OmniGen2Config) -> Mapping[str, LoraTarget]:
    """Return a map from the names used in LoRA files, also those of the network itself, to its weights."""
    keys = denoiser_keys(weight_names, {})
    return {**keys, **{key.removeprefix(DENOISER_PREFIX): name for key, name in keys.items()}}


def fits(shapes: Shapes) -> bool:
    """Return True for Qwen2.5 of 3B, by its keys: ComfyUI's rule."""
    return fits_kind(shapes, kind=QWEN2) and shapes[KEYS][0] == KEY_ROWS


QWEN = language_text_encoder(
    LanguageEncoding(slot="qwen25_3b", embedding_width=CONTEXT_DIM, pad_token=PAD_TOKEN, template=TEMPLATE),
    kind=QWEN2,
    sizes={
        "full": LanguageModelConfig(
            kind=QWEN2, num_layers=36, width=CONTEXT_DIM, heads=16, key_heads=2, inner_width=11008,
            vocabulary_size=151936, has_biases=True,
        ),
        "small": LanguageModelConfig(
            kind=QWEN2, num_layers=2, width=16, heads=2, key_heads=2, inner_width=32, vocabulary_size=151936,
            has_biases=True,
        ),
    },
    fits=fits,
    vocabulary=qwen2,
)  # fmt: skip

FAMILY = ModelFamily(
    name="omnigen2",
    label="OmniGen2",
    lineage=("lumina2",),
    file_words=("omnigen2",),
    # Recognised by its embedder of time and text, and of reference images; Boogu-Image has these before other blocks.
    detect=detect_by(DENOISER, needs=("ref_image_patch_embedder.weight", f"{ATTENTION}norm_q.weight")),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=ReferencesDenoiser,
    text=(QWEN,),
    vae=autoencoder_16(VAE_PREFIX),
    latent_format=FluxLatentFormat,
    denoiser_lora_keys=lora_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("Flux", ("omnigen2",), untyped_slots=("qwen25_3b",)),
    default=Defaults(
        width=1024, height=1024, steps=20, cfg=5.0, scheduler="simple",
        tflop=34.4, attention=0.14, billions=3.967,
    ),
    nodes=(
        "UNETLoader", "CLIPLoader", "VAELoader", "CLIPTextEncode", "ReferenceLatent", "EmptySD3LatentImage",
        "KSampler", "VAEDecode",
    ),
    memory_usage_factor=1.65,
    parameterisation=FLOW,
    sizes={
        "full": OmniGen2Config(
            width=2520, heads=21, key_heads=7, inner_width=10240, num_layers=32, context_dim=CONTEXT_DIM,
            time_width=1024,
        ),
        "small": OmniGen2Config(
            width=240, heads=2, key_heads=1, inner_width=256, num_layers=1, context_dim=16, time_width=64,
            num_refiners=1,
        ),
    },
)  # fmt: skip
