"""The inputs of HiDream-I1 beside latent, text and its pooled output: a language model's layers, and an image."""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, NoiseShapedInput, RegularInput
from darkroom.engine.families.hidream.text import STATES
from darkroom.engine.families.joint_text_denoiser import JointTextDenoiser


class LayersDenoiser(JointTextDenoiser):
    """A network whose blocks read the layers of a language model, [B, L, T, D] in a conditioning."""

    def text_widths(self) -> dict[str, int]:
        config: Any = self.diffusion_model.config
        return {**super().text_widths(), STATES: config.language_dim}

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        """Return the network's inputs. Raises ValueError for a conditioning without a language model's layers."""
        inputs = super().extra_conds(**kwargs)
        states: torch.Tensor | None = kwargs.get(STATES)
        if states is None:
            raise ValueError(
                "conditioning: its text encoders gave no layers of a language model; got None, expected those of a "
                "model of this family"
            )
        inputs["encoder_hidden_states_llama3"] = RegularInput(states)
        image = kwargs.get("concat_latent_image")
        if image is not None:
            inputs["image_cond"] = NoiseShapedInput(self.process_latent_in(image).to(kwargs["device"]))
        return inputs

    def concat_cond(self, **kwargs: Any) -> None:
        """Return no further channels: an image stands beside the one that is drawn."""
