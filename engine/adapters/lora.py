"""Patches in a LoRA file, by the names of the weights they belong to.

A tensor of such a file is called `<name of a weight>.<part of an adapter>`. `engine/adapters/lora_names.py` has the
names.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch

from darkroom.engine.adapters.lora_names import LoraTarget, target_name
from darkroom.engine.adapters.weight_adapters import (
    BoftAdapter,
    GloraAdapter,
    LohaAdapter,
    LokrAdapter,
    LoraAdapter,
    OftAdapter,
    WeightAdapter,
)
from darkroom.engine.log_context import report_warning

# Ending of the upper factor -> of the lower one, kohya's first, then those of diffusers, PEFT and others.
LORA_FACTORS: tuple[tuple[str, str], ...] = (
    (".lora_up.weight", ".lora_down.weight"),
    ("_lora.up.weight", "_lora.down.weight"),
    (".lora_B.weight", ".lora_A.weight"),
    (".lora.up.weight", ".lora.down.weight"),
    (".lora_B", ".lora_A"),
    (".lora_linear_layer.up.weight", ".lora_linear_layer.down.weight"),
    (".lora_B.default.weight", ".lora_A.default.weight"),
)

ORTHOGONAL_BY_DIMENSIONS = {3: OftAdapter, 4: BoftAdapter}

Tensors = Mapping[str, torch.Tensor]

log = logging.getLogger(__name__)


class _Parts:
    """The tensors of one weight in a LoRA file, by the ending of their names. Those taken are added to `used`."""

    def __init__(self, lora: Tensors, key: str, used: set[str]) -> None:
        self._lora = lora
        self._key = key
        self._used = used

    def get(self, ending: str) -> torch.Tensor | None:
        name = self._key + ending
        if name not in self._lora:
            return None
        self._used.add(name)
        return self._lora[name]

    def label(self, ending: str) -> str:
        """Return the name of a tensor."""
        return self._key + ending

    def needed(self, ending: str) -> torch.Tensor:
        tensor = self.get(ending)
        if tensor is None:
            raise ValueError(f"LoRA: the adapter of {self._key} is incomplete; expected a tensor {self._key}{ending}")
        return tensor


def lora_patches(
    lora: Tensors, keys: Mapping[str, LoraTarget], *, warn: bool = True, ignored: tuple[str, ...] = ()
) -> dict[LoraTarget, Any]:
    """Return the file's patches by the weights, or parts of weights, that they change.

    Tensors that match none are logged and reported as a warning, but for those whose names begin with an ignored text.
    """
    patches: dict[LoraTarget, Any] = {}
    used: set[str] = set()
    for key, target in keys.items():
        parts = _Parts(lora, key, used)
        adapter = _adapter(parts)
        if adapter is not None:
            patches[target] = adapter
        patches |= _plain_patches(parts, target)
    unused = [name for name in lora if name not in used and not (ignored and name.startswith(ignored))] if warn else []
    for name in unused:
        log.warning("lora key not loaded: %s", name)
    if unused and patches:  # whoever applies one without any says so
        report_warning(
            log,
            "lora_keys_left_out",
            f"LoRA: {len(unused)} of its {len(lora)} tensors are left out, since they change no weight of the model; "
            f"got {unused[0]!r}",
        )
    return patches


def _adapter(parts: _Parts) -> WeightAdapter | None:
    """Return the adapter of one weight. Where a file holds several kinds, the last one is used, as in ComfyUI."""
    stored_alpha, dora_scale = parts.get(".alpha"), parts.get(".dora_scale")
    alpha = None if stored_alpha is None else _number(stored_alpha, parts.label(".alpha"))
    found: WeightAdapter | None = None
    for read in (_lora, _loha, _lokr, _glora, _orthogonal):
        found = read(parts, alpha, dora_scale) or found
    return found


def _number(tensor: torch.Tensor, name: str) -> float:
    if tensor.numel() != 1:
        raise ValueError(f"LoRA: {name} has {tensor.numel()} values; expected one")
    return float(tensor.item())


def _lora(parts: _Parts, alpha: float | None, dora_scale: torch.Tensor | None) -> WeightAdapter | None:
    for number, (up_ending, down_ending) in enumerate(LORA_FACTORS):
        up = parts.get(up_ending)
        if up is None:
            continue
        down = parts.needed(down_ending)
        mid = parts.get(".lora_mid.weight") if number == 0 else None
        reshape = parts.get(".reshape_weight")
        return LoraAdapter(up, down, alpha, mid, dora_scale, None if reshape is None else reshape.tolist())
    return None


def _loha(parts: _Parts, alpha: float | None, dora_scale: torch.Tensor | None) -> WeightAdapter | None:
    first = parts.get(".hada_w1_a")
    if first is None:
        return None
    w1_b, w2_a, w2_b = (parts.needed(f".hada_{part}") for part in ("w1_b", "w2_a", "w2_b"))
    t1 = parts.get(".hada_t1")
    t2 = None if t1 is None else parts.needed(".hada_t2")
    return LohaAdapter(first, w1_b, w2_a, w2_b, alpha, t1, t2, dora_scale)


def _lokr(parts: _Parts, alpha: float | None, dora_scale: torch.Tensor | None) -> WeightAdapter | None:
    w1, w2, w1_a, w1_b, w2_a, w2_b, t2 = (
        parts.get(f".lokr_{part}") for part in ("w1", "w2", "w1_a", "w1_b", "w2_a", "w2_b", "t2")
    )
    if all(part is None for part in (w1, w2, w1_a, w2_a)):
        return None
    return LokrAdapter(w1, w2, alpha, w1_a, w1_b, w2_a, w2_b, t2, dora_scale)


def _glora(parts: _Parts, alpha: float | None, dora_scale: torch.Tensor | None) -> WeightAdapter | None:
    a1 = parts.get(".a1.weight")
    if a1 is None:
        return None
    a2, b1, b2 = (parts.needed(f".{part}.weight") for part in ("a2", "b1", "b2"))
    return GloraAdapter(a1, a2, b1, b2, alpha, dora_scale)


def _orthogonal(parts: _Parts, alpha: float | None, dora_scale: torch.Tensor | None) -> WeightAdapter | None:
    blocks = parts.get(".oft_blocks")
    kind = None if blocks is None else ORTHOGONAL_BY_DIMENSIONS.get(blocks.ndim)
    if blocks is None or kind is None:
        return None
    return kind(blocks, alpha, parts.get(".rescale"), dora_scale)


def _plain_patches(parts: _Parts, target: LoraTarget) -> dict[LoraTarget, Any]:
    """Return differences of whole tensors, and tensors that replace the weight.

    The bias of a norm counts only beside its weight, as in ComfyUI.
    """
    patches: dict[LoraTarget, Any] = {}
    bias = target_name(target).removesuffix(".weight") + ".bias"
    bias_target: LoraTarget = bias if isinstance(target, str) else (bias, *target[1:])
    for name, kind, ending in (
        (target, "diff", ".w_norm"),
        (bias_target, "diff", ".b_norm"),
        (target, "diff", ".diff"),
        (bias_target, "diff", ".diff_b"),
        (target, "set", ".set_weight"),
    ):
        if ending == ".b_norm" and target not in patches:
            continue
        tensor = parts.get(ending)
        if tensor is not None:
            patches[name] = (kind, (tensor,))
    return patches
