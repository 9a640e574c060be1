"""The inputs of Anima beside the latent: its prompt, read by the text adapter before sampling begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, RegularInput
from darkroom.engine.diffusion.denoiser import TEXT
from darkroom.engine.families.anima.text import T5_TOKENS, T5_WEIGHTS
from darkroom.engine.families.joint_text_denoiser import TextTokensDenoiser


class AnimaDenoiser(TextTokensDenoiser):
    """A network that reads T5's tokens by way of a language model's states."""

    comfy_name = "Anima"

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        inputs = super().extra_conds(**kwargs)
        states: torch.Tensor | None = kwargs.get(TEXT)
        tokens, weights = kwargs.get(T5_TOKENS), kwargs.get(T5_WEIGHTS)
        if states is None or tokens is None:
            return inputs
        network: Any = self.diffusion_model
        device = kwargs["device"]
        text = network.preprocess_text_embeds(
            states.to(device, self.compute_dtype), tokens[None].to(device), None if weights is None else weights[None]
        )
        inputs["c_crossattn"] = RegularInput(text)
        return inputs

    def check_text(self, condition: Mapping[str, Any]) -> None:
        """Raise ValueError for text [..., D] of other widths than the adapter reads, and tokens that T5 has not."""
        states: torch.Tensor | None = condition.get(TEXT)
        config: Any = self.diffusion_model.config
        tokens: torch.Tensor | None = condition.get(T5_TOKENS)
        expected = config.context_dim if tokens is None else config.adapter.source_dim
        if states is not None and states.shape[-1] != expected:
            raise ValueError(
                f"conditioning: its text encoder does not fit the model; got text of width {states.shape[-1]}, "
                f"expected {expected}, as Anima's text encoder (Qwen3 0.6B) gives it"
            )
        if tokens is not None and tokens.numel() and not 0 <= int(tokens.max()) < config.adapter.vocabulary_size:
            raise ValueError(
                f"conditioning: {T5_TOKENS} has a token that the model has not; got {int(tokens.max())}, expected less "
                f"than {config.adapter.vocabulary_size}"
            )
