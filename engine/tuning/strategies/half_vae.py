"""VAE that decodes in float16, and in its own type again where a number overflows."""

from __future__ import annotations

import copy
import logging

import torch

from engine.tuning.quality import Quality
from engine.tuning.strategy import MachineFacts, SamplingUse, Strategy, Undo, nothing, offloaded

log = logging.getLogger(__name__)


class HalfVae(Strategy):
    """Decoding in float16 with a guard against overflow."""

    name = "half_vae"
    quality = Quality.SAME
    about = "the VAE decodes in float16, and anew in its own type where a number overflows"
    target = "vae"

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
            half = copy.deepcopy(network).half()
        except torch.OutOfMemoryError:
            log.warning("VAE not decoded in float16: reason=no memory for its weights")
            return nothing

        def decode(latent: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
            picture: torch.Tensor = half.decode(latent.half(), *args, **kwargs)
            if bool(torch.isfinite(picture).all()):
                return picture
            log.warning("VAE decoded in its own type: reason=overflow in float16")
            again: torch.Tensor = plain(latent, *args, **kwargs)
            return again

        network.__dict__["decode"] = decode
        return lambda: network.__dict__.pop("decode", None)
