"""Denoisers of transformers that read the hidden states of a language model beside the image.

`B` batch, `T` tokens, `D` width.
"""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, ConstantInput, ListInput, RegularInput
from darkroom.engine.diffusion.denoiser import Denoiser


class LanguageDenoiser(Denoiser):
    """A network whose text [B, T, D] takes part in self-attention: repeating tokens would change its result."""

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        inputs = super().extra_conds(**kwargs)
        tokens = inputs.get("c_crossattn")
        if tokens is not None:
            inputs["c_crossattn"] = RegularInput(tokens.cond)
        return inputs


class MaskedTextDenoiser(LanguageDenoiser):
    """A network that reads the tokens of the mask [B, T] alone, which came with the text."""

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        inputs = super().extra_conds(**kwargs)
        mask: torch.Tensor | None = kwargs.get("attention_mask")
        if mask is not None:
            lengths = [int(length) for length in mask.sum(dim=1).tolist()]
            inputs["num_tokens"] = ConstantInput(lengths[0] if len(set(lengths)) == 1 else tuple(lengths))
            if set(lengths) != {mask.shape[1]}:
                inputs["attention_mask"] = RegularInput(mask)
        return inputs


class ReferencesDenoiser(LanguageDenoiser):
    """A network that sees reference images beside the one that it draws."""

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        inputs = super().extra_conds(**kwargs)
        references = kwargs.get("reference_latents")
        if references is not None:
            inputs["ref_latents"] = ListInput([self.process_latent_in(item) for item in references])
        return inputs
