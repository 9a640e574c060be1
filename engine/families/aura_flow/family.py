"""AuraFlow (fal 2024), 0.1 to 0.3 and models trained from it: a flow in the latents of Stable Diffusion XL."""

from __future__ import annotations

from darkroom.engine.diffusion.model_sampling_variants import flow_of
from darkroom.engine.families.aura_flow.denoiser import AuraFlowDenoiser
from darkroom.engine.families.aura_flow.lora import lora_keys
from darkroom.engine.families.aura_flow.transformer import MARK, AuraFlowConfig, AuraFlowTransformer, aura_flow_config
from darkroom.engine.families.base import (
    ComfyUiNames,
    Defaults,
    ModelFamily,
    Parameterisation,
)
from darkroom.engine.families.sd15.vae_files import autoencoder_kl
from darkroom.engine.families.sdxl.latent_format import SdxlLatentFormat
from darkroom.engine.families.text.t5 import pile_t5
from darkroom.engine.families.transformer_files import PREFIX, always, detect_by, transformer
from darkroom.engine.layers.t5 import T5Config
from darkroom.engine.settings import DtypePolicy
from darkroom.engine.text.t5_encoding import T5Encoding

IN_CHECKPOINT = (PREFIX, "model.")  # ComfyUI's, and that of the published files
PREFIXES = (*IN_CHECKPOINT, "diffusion_model.", "")  # of files of the network alone
VAE_PREFIX = "vae."
NEEDED = ("init_x_linear.weight", "register_tokens", "positional_encoding")
FLOW = Parameterisation(flow_of, {"shift": 1.73, "multiplier": 1.0})
ENCODING = T5Encoding(
    slot="pile_t5xl",
    embedding_width=2048,
    min_length=256,
    pad_token=1,
    end_token=2,
    masks_padding=True,
    zeroes_padding=True,
    takes_embeddings=False,
)
TEXT_SIZES = {
    "full": T5Config(num_layers=24, width=2048, heads=32, inner_width=5120, is_biased_everywhere=True),
    "small": T5Config(num_layers=2, width=64, heads=1, inner_width=128, is_biased_everywhere=True),
}
# Its text encoder is known by its tensors: ComfyUI takes it under any type but those of other encoders of this width.
TEXT_TYPES = (
    "stable_diffusion", "stable_cascade", "sd3", "stable_audio", "mochi", "ltxv", "pixart", "cosmos", "lumina2",
    "hidream", "chroma", "omnigen2", "qwen_image", "hunyuan_image",
)  # fmt: skip
MERGED_BLOCKS = (
    "init_x_linear.", "positional_encoding", "cond_seq_linear.", "register_tokens", "t_embedder.",
    *(f"double_layers.{index}." for index in range(4)), *(f"single_layers.{index}." for index in range(32)),
    "modF.", "final_linear.",
)  # fmt: skip
DENOISER = transformer(
    MARK,
    configure=aura_flow_config,
    build=AuraFlowTransformer,
    dtypes=DtypePolicy(prefers=("float16", "bfloat16")),
    prefixes=PREFIXES,
    in_checkpoint=IN_CHECKPOINT,
)


FAMILY = ModelFamily(
    name="aura_flow",
    label="AuraFlow",
    lineage=("sdxl",),
    file_words=("auraflow",),
    # Recognised by the layer that reads its text, its registers and its table of places.
    detect=detect_by(DENOISER, needs=NEEDED),
    parameterise=always(FLOW),
    denoiser=DENOISER,
    denoiser_type=AuraFlowDenoiser,
    text=(pile_t5(ENCODING, TEXT_SIZES),),
    vae=autoencoder_kl(VAE_PREFIX),
    latent_format=SdxlLatentFormat,
    denoiser_lora_keys=lora_keys,
    variants={"": ()},
    comfyui=ComfyUiNames("SDXL", TEXT_TYPES, {"ModelMergeAuraflow": MERGED_BLOCKS}),
    default=Defaults(
        width=1024, height=1024, steps=25, cfg=3.5, scheduler="normal",
        tflop=44.0, attention=0.14, billions=6.859,
    ),
    nodes=("CheckpointLoaderSimple", "CLIPTextEncode", "EmptyLatentImage", "KSampler", "VAEDecode"),
    memory_usage_factor=2.0,
    parameterisation=FLOW,
    sizes={
        "full": AuraFlowConfig(
            width=3072, num_double=4, num_single=32, context_dim=2048, time_dim=3072, inner_width=8192,
            position_side=96,
        ),
        "small": AuraFlowConfig(
            width=256, num_double=2, num_single=3, context_dim=64, time_dim=128, inner_width=768
        ),
    },
)  # fmt: skip
