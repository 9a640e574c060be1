"""The names that LoRA files use for the weights of a network.

Files come from many trainers. The name of a weight follows the original checkpoints with underscores (kohya), the
diffusers library, or is the weight's own. Which weights exist, and their diffusers names, is the caller's knowledge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

DENOISER_PREFIX = "diffusion_model."
TEXT_LAYERS = "text_model.encoder.layers."
TRANSFORMER = ".transformer."  # between the name of a text encoder in its set and those of its weights
LANGUAGE_MODEL = "model."  # behind it, before the layers of a language model

# The weight that an adapter changes: its name, or its name with the rows (dimension 0, first, number), or with None and
# the function that brings the rows of a change into the network's order.
Rows = tuple[int, int, int]
Reorder = Callable[[torch.Tensor], torch.Tensor]
LoraTarget = str | tuple[str, Rows] | tuple[str, None, Reorder]


def rows_of(name: str, first: int, number: int) -> tuple[str, Rows]:
    """Return some rows of a weight as a target: those of one of several layers that a network has joined."""
    return name, (0, first, number)


def _halves_swapped(change: torch.Tensor) -> torch.Tensor:
    first, second = change.chunk(2, dim=0)
    return torch.cat([second, first])


def swapped_halves(name: str) -> tuple[str, None, Reorder]:
    """Return a weight as a target whose halves (shift and scale) trainers have in the other order."""
    return name, None, _halves_swapped


def target_name(target: LoraTarget) -> str:
    """Return the name of the weight that a target is, or is a part of."""
    return target if isinstance(target, str) else target[0]


def named_by_trainers(
    names: Mapping[str, LoraTarget], prefixes: Sequence[str], flat_prefixes: Sequence[str]
) -> dict[str, LoraTarget]:
    """Return a map from the names used in LoRA files to the weights of a denoising network.

    `names` maps names of layers to the network's weights, both without prefix. Behind `flat_prefixes` they have
    underscores in place of dots.
    """
    keys: dict[str, LoraTarget] = {}
    for theirs, ours in names.items():
        target: LoraTarget = DENOISER_PREFIX + ours if isinstance(ours, str) else (DENOISER_PREFIX + ours[0], *ours[1:])
        keys |= {prefix + theirs: target for prefix in prefixes}
        keys |= {prefix + theirs.replace(".", "_"): target for prefix in flat_prefixes}
    return keys


def denoiser_keys(weight_names: Iterable[str], diffusers_names: Mapping[str, str]) -> dict[str, str]:
    """Return a map from the names used in LoRA files to the weights of a denoising network.

    `diffusers_names` maps diffusers' names to those of the network, both without prefix. Of several names for one
    weight the later ones win, in ComfyUI's order. Factors of norms that are called `scale` are found as `weight` too,
    as later versions of ComfyUI call and save them.
    """
    keys: dict[str, str] = {}
    for name in weight_names:
        if not name.startswith(DENOISER_PREFIX):
            continue
        layer = name.removesuffix(".weight").removesuffix(".scale")
        if layer != name:
            keys["lora_unet_" + layer.removeprefix(DENOISER_PREFIX).replace(".", "_")] = name
            keys[layer] = name
        if not name.endswith(".weight"):
            keys[name] = name
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


def encoder_set_keys(weight_names: Iterable[str]) -> dict[str, str]:
    """Return a map from the names used in LoRA files for any set of text encoders to their weights.

    They are the weights' own names, those of an encoder other than CLIP without the name that the set has for it, and
    kohya's for a set of one language model.
    """
    names = [name for name in weight_names if name.endswith(".weight")]
    encoders = {name.partition(".")[0] for name in names}
    keys: dict[str, str] = {}
    for name in names:
        bare = name.removesuffix(".weight")
        keys[f"text_encoders.{bare}"] = name
        encoder, found, inner = bare.partition(TRANSFORMER)
        if found and not encoder.startswith("clip_"):
            keys[f"text_encoders.{TRANSFORMER[1:]}{inner}"] = name
        if found and len(encoders) == 1 and inner.startswith(LANGUAGE_MODEL):
            keys["lora_te_" + inner.removeprefix(LANGUAGE_MODEL).replace(".", "_")] = name
    return keys


def plain_keys(weight_names: Iterable[str], config: object) -> dict[str, LoraTarget]:
    """Return a map from the names used in LoRA files to the weights of a network that diffusers has no names for."""
    return {**denoiser_keys(weight_names, {})}


def own_layer_keys(weight_names: Iterable[str], config: object) -> dict[str, LoraTarget]:
    """Return a map from the names used in LoRA files to the weights of a network whose own names are diffusers' too."""
    names = list(weight_names)
    layers = (name.removeprefix(DENOISER_PREFIX) for name in names if name.endswith(".weight"))
    own: dict[str, LoraTarget] = {name.removesuffix(".weight"): name for name in layers}
    return {**denoiser_keys(names, {}), **named_by_trainers(own, ("", "transformer."), ("lycoris_",))}


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
