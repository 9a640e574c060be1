"""The inputs of HunyuanDiT beside the latent: the tokens of two encoders with their masks, and the image's size."""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, RegularInput
from darkroom.engine.families.hunyuan_dit.text import MASK, SECOND, SECOND_MASK
from darkroom.engine.families.joint_text_denoiser import TextTokensDenoiser

TRAINED_PX = 768  # the size unless the conditioning says otherwise
INPUTS = {"text_embedding_mask": MASK, "encoder_hidden_states_t5": SECOND, "text_embedding_mask_t5": SECOND_MASK}


class HunyuanDitDenoiser(TextTokensDenoiser):
    """HunyuanDiT. Networks that read no sizes ignore them."""

    comfy_name = "HunyuanDiT"

    def text_widths(self) -> dict[str, int]:
        config: Any = self.diffusion_model.config
        return {**super().text_widths(), SECOND: config.second_dim}

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        """Return the network's inputs. Raises ValueError for a conditioning of another family's encoders."""
        inputs = super().extra_conds(**kwargs)
        for name, key in INPUTS.items():
            given: torch.Tensor | None = kwargs.get(key)
            if given is None:
                raise ValueError(
                    f"conditioning: its text encoder does not fit the model; got one without {key}, expected that of "
                    "HunyuanDiT's encoders (BERT and mT5)"
                )
            inputs[name] = RegularInput(given)
        width, height = kwargs.get("width", TRAINED_PX), kwargs.get("height", TRAINED_PX)
        target = (kwargs.get("target_height", height), kwargs.get("target_width", width))
        numbers = torch.tensor([[height, width, *target, 0, 0]], dtype=torch.float32)
        return {**inputs, "image_meta_size": RegularInput(numbers)}
