"""The names that LoRA files use for the weights of a network.

Files come from many trainers. The name of a weight follows the original checkpoints with underscores (kohya), the
diffusers library, or is the weight's own. Which weights exist, and their diffusers names, is the caller's knowledge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

DENOISER_PREFIX = "diffusion_model."
TEXT_LAYERS = "text_model.encoder.layers."


def denoiser_keys(weight_names: Iterable[str], diffusers_names: Mapping[str, str]) -> dict[str, str]:
    """Return a map from the names used in LoRA files to the weights of a denoising network.

    `diffusers_names` maps diffusers' names to those of the network, both without prefix. Of several names for one
    weight the later ones win, in ComfyUI's order.
    """
    keys: dict[str, str] = {}
    for name in weight_names:
        if not name.startswith(DENOISER_PREFIX):
            continue
        bare = name.removesuffix(".weight")
        if bare != name:
            keys["lora_unet_" + bare.removeprefix(DENOISER_PREFIX).replace(".", "_")] = name
        keys[bare] = name
    for theirs, ours in diffusers_names.items():
        if not theirs.endswith(".weight"):
            continue
        bare, name = theirs.removesuffix(".weight"), DENOISER_PREFIX + ours
        flat = bare.replace(".", "_")
        processor = bare.replace(".to_", ".processor.to_")
        if processor.endswith(".to_out.0"):
            processor = processor.removesuffix(".0")
        for key in (f"lora_unet_{flat}", f"lycoris_{flat}", processor, f"unet.{processor}"):
            keys[key] = name
    return keys


def clip_text_keys(
    weight_names: Iterable[str],
    encoder_prefix: str,
    *,
    kohya: Sequence[str] = ("lora_te_", "lora_te1_"),
    diffusers: str = "text_encoder.",
    projection: Sequence[str] = (),
) -> dict[str, str]:
    """Return a map from the names used in LoRA files to the weights of one CLIP text encoder.

    `encoder_prefix` is the prefix of its weights (`clip_l.transformer.`), `kohya` and `diffusers` are the prefixes that
    trainers use for this encoder of the set, `projection` all names of its text projection.
    """
    keys: dict[str, str] = {}
    for name in weight_names:
        if not (name.endswith(".weight") and name.startswith(encoder_prefix)):
            continue
        bare = name.removesuffix(".weight")
        keys[f"text_encoders.{bare}"] = name
        inner = bare.removeprefix(encoder_prefix)
        if inner.startswith(TEXT_LAYERS) and ".layer_norm" not in inner:
            flat = inner.replace(".", "_")
            for key in (*(prefix + flat for prefix in kohya), diffusers + inner):
                keys[key] = name
        elif inner == "text_projection":
            keys.update(dict.fromkeys(projection, name))
    return keys
