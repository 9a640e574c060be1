"""HunyuanImage 2.1 (Tencent Hunyuan 2025), plain and distilled to few steps.

Images of two megapixels in latents of large cells. A prompt is read by Qwen2.5-VL, what it has in quotation marks by
ByT5 too. Its refiner is a family of its own.
"""

from __future__ import annotations

from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    Match,
    ModelFamily,
    Parameterisation,
    TensorIndex,
)
from darkroom.engine.families.hunyuan_image.denoiser import HunyuanImageDenoiser
from darkroom.engine.families.hunyuan_image.text import (
    CONTEXT_DIM,
    GLYPH,
    GLYPH_WIDTH,
    PROMPT,
    prompt_and_glyphs,
)
from darkroom.engine.families.hunyuan_image.vae_files import AUTOENCODER, HunyuanImageLatentFormat
from darkroom.engine.families.hunyuan_video.transformer import HunyuanVideoConfig
from darkroom.engine.families.hunyuan_video.transformer_files import found_transformer, hunyuan_transformer, lora_keys
from darkroom.engine.families.transformer_files import always

GLYPH_INNER = 2048
IMAGE_AXES = 4  # of a convolution's weight in two dimensions
FLOW = Parameterisation(flow_of, {"shift": 5.0})


def detect(index: TensorIndex) -> Match | None:
    """Recognise the transformer by the layers that refine its text, of images by its patches, and without labels."""
    found = found_transformer(index.shapes)
    if found is None or found.has_labels or len(found.patch_shape) != IMAGE_AXES:
        return None
    return Match(2, found.names)


FAMILY = ModelFamily(
    name="hunyuan_image",
    label="HunyuanImage 2.1",
    lineage=("hunyuan_video",),
    file_words=("hunyuanimage",),
    other_file_words=("hunyuanimage3",),
    detect=detect,
    parameterise=always(FLOW),
    denoiser=hunyuan_transformer(),
    denoiser_type=HunyuanImageDenoiser,
    text=(PROMPT, GLYPH),
    combine_text=prompt_and_glyphs,
    takes_fewer_encoders=True,
    vae=AUTOENCODER,
    latent_format=HunyuanImageLatentFormat,
    denoiser_lora_keys=lora_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("HunyuanImage21", ("hunyuan_image",)),
    default=Defaults(
        width=2048, height=2048, steps=20, cfg=3.5, scheduler="simple",
        tflop=97.0, attention=0.12, billions=17.426,
    ),
    nodes=(
        "UNETLoader", "DualCLIPLoader", "VAELoader", "CLIPTextEncode", "EmptyHunyuanImageLatent", "KSampler",
        "VAEDecode",
    ),
    memory_usage_factor=7.7,
    parameterisation=FLOW,
    sizes={
        "full": HunyuanVideoConfig(
            width=3584, num_double=20, num_single=40, context_dim=CONTEXT_DIM, glyph_width=GLYPH_WIDTH,
            glyph_inner=GLYPH_INNER,
        ),
        "small": HunyuanVideoConfig(
            width=128, num_double=2, num_single=2, context_dim=32, glyph_width=64, glyph_inner=32, num_refiners=1,
        ),
    },
)  # fmt: skip
