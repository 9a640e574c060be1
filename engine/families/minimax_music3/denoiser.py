"""Inputs of MiniMax Music 3's network: the states of the language model that wrote the song."""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, RegularInput
from darkroom.engine.diffusion.denoiser import TEXT, Denoiser

SCALE = "conditioning_scale"


class MiniMaxMusic3Denoiser(Denoiser):
    """A network whose time is 0 for noise and 1 for audio."""

    comfy_name = "MiniMaxMusic3"

    def process_timestep(self, timestep: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return 1.0 - timestep

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        """Return the inputs. Raises ValueError for a conditioning of another node than that of songs."""
        inputs = super().extra_conds(**kwargs)
        scale: torch.Tensor | None = kwargs.get(SCALE)
        if kwargs.get(TEXT) is None or scale is None:
            raise ValueError(
                "conditioning: it is of no song; got one of another node, expected one of MiniMaxMusic3TextEncode"
            )
        inputs[SCALE] = RegularInput(scale.to(kwargs["device"]))
        return inputs
