"""The denoiser of transformers that see reference images beside the text."""

from __future__ import annotations

from typing import Any

from darkroom.engine.diffusion.conditions import BatchedInput
from darkroom.engine.families.joint_text_denoiser import TextTokensDenoiser
from darkroom.engine.families.reference_inputs import reference_inputs


class ReferencesDenoiser(TextTokensDenoiser):
    """A network that sees reference images beside the one that it generates."""

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        """Return the network's inputs. Raises ValueError for reference images of another family's VAE."""
        return {**super().extra_conds(**kwargs), **reference_inputs(self, kwargs)}
