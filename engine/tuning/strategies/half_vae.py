"""VAE that decodes in float16, and in its own type again where a number overflows."""

from __future__ import annotations

import copy
import logging
from collections.abc import Hashable
from dataclasses import dataclass
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.strategies.cuda_graph import place_of_weights
from darkroom.engine.tuning.strategy import MachineFacts, SamplingUse, Strategy, Undo, nothing, offloaded

KEPT_SHARE = 0.1  # of the free memory: a copy that takes more is made for each decoding

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Kept:
    weights: Hashable  # which weights it is a copy of
    network: nn.Module


class HalfVae(Strategy):
    """Decoding in float16 with a guard against overflow.

    The float16 copy of the last VAE is kept from one decoding to the next, while its weights are the same and the
    copy takes a small part of the free memory. It is released with the memory of all strategies.
    """

    name = "half_vae"
    quality = Quality.SAME
    about = "the VAE decodes in float16, and anew in its own type where a number overflows"
    target = "vae"

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[nn.Module, _Kept] = WeakKeyDictionary()

    def missing(self, machine: MachineFacts) -> str | None:
        return "float16 is slow on a processor" if machine.device_type == "cpu" else None

    def unfit(self, use: SamplingUse) -> str | None:
        weights = next(iter(use.denoiser.parameters()), None)
        if weights is None or weights.dtype == torch.float16 or not weights.is_floating_point():
            return "the VAE computes in float16 already"
        if not hasattr(use.denoiser, "decode") or "decode" in vars(use.denoiser):
            return "nodes have replaced parts of the network"
        return offloaded(use)

    def apply(self, use: SamplingUse) -> Undo:
        network = use.denoiser
        plain = network.decode
        try:
            half: Any = self._half(use)
        except torch.OutOfMemoryError:
            log.warning("VAE not decoded in float16: reason=no memory for its weights")
            return nothing

        def decode(latent: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
            image: torch.Tensor = half.decode(latent.half(), *args, **kwargs)
            if bool(torch.isfinite(image).all()):
                return image
            log.warning("VAE decoded in its own type: reason=overflow in float16")
            again: torch.Tensor = plain(latent, *args, **kwargs)
            return again

        network.__dict__["decode"] = decode
        return lambda: network.__dict__.pop("decode", None)

    def release(self) -> bool:
        was_some = len(self._kept) > 0
        self._kept.clear()
        return was_some

    def _half(self, use: SamplingUse) -> nn.Module:
        """Return the float16 copy of a VAE with its weights of now."""
        network = use.denoiser
        weights = (place_of_weights(network), use.patcher.patches_uuid if use.patcher.patches else None)
        kept = self._kept.get(network)
        if kept is not None and kept.weights == weights:
            return kept.network
        self._kept.clear()  # of another VAE, or of other weights
        made = _in_float16(network)
        if sum(weight.nbytes for weight in made.parameters()) <= use.patcher.free_bytes() * KEPT_SHARE:
            self._kept[network] = _Kept(weights, made)
        return made


def _in_float16(network: nn.Module) -> nn.Module:
    """Return a copy of a network with its weights in float16, without a copy of the weights in between.

    Functions that others gave to its modules stay out of it, unless they are methods, which are copied with their
    module: the others are of the modules that they were made for. Nor does it hold the patcher that the network has
    while it is in use, which is of the engine's memory and would keep the network itself.
    """
    memo: dict[int, object] = {
        id(vars(network).get("current_patcher")): None,
        **{id(weight): nn.Parameter(weight.half(), requires_grad=False) for weight in network.parameters()},
        **{id(buffer): buffer.half() if buffer.is_floating_point() else buffer for buffer in network.buffers()},
    }
    made = copy.deepcopy(network, memo)
    for module in made.modules():
        if not isinstance(module.__dict__.get("forward"), MethodType):
            module.__dict__.pop("forward", None)
    return made
