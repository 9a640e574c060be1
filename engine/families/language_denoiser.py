"""Denoisers of transformers that read the hidden states of a language model beside the image.

`B` batch, `T` tokens, `D` width.
"""

from __future__ import annotations

from typing import Any

from darkroom.engine.diffusion.conditions import BatchedInput, RegularInput
from darkroom.engine.diffusion.denoiser import Denoiser
from darkroom.engine.families.reference_inputs import reference_inputs


class LanguageDenoiser(Denoiser):
    """A network whose text [B, T, D] takes part in self-attention: repeating tokens would change its result."""

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        inputs = super().extra_conds(**kwargs)
        tokens = inputs.get("c_crossattn")
        if tokens is not None:
            inputs["c_crossattn"] = RegularInput(tokens.cond)
        return inputs


class ReferencesDenoiser(LanguageDenoiser):
    """A network that sees reference images beside the one that it generates."""

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        """Return the network's inputs. Raises ValueError for reference images of another family's VAE."""
        return {**super().extra_conds(**kwargs), **reference_inputs(self, kwargs)}
