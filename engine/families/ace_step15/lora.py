"""Names that LoRA files use for the weights of ACE-Step 1.5: those of its decoder, without the decoder's own name."""

from __future__ import annotations

from collections.abc import Iterable

from darkroom.engine.adapters.lora_names import DENOISER_PREFIX, LoraTarget, denoiser_keys, named_by_trainers

DECODER = "decoder."
PREFIXES, FLAT_PREFIXES = ("base_model.model.",), ("lycoris_",)  # of the model's own trainer, and of LyCORIS


def lora_keys(weight_names: Iterable[str], config: object) -> dict[str, LoraTarget]:
    """Return a map from the names used in LoRA files to the weights of the network."""
    names = list(weight_names)
    layers = (name.removeprefix(DENOISER_PREFIX) for name in names if name.endswith(".weight"))
    decoder: dict[str, LoraTarget] = {
        name.removeprefix(DECODER).removesuffix(".weight"): name for name in layers if name.startswith(DECODER)
    }
    return {**denoiser_keys(names, {}), **named_by_trainers(decoder, PREFIXES, FLAT_PREFIXES)}
