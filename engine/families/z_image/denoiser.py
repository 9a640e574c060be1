"""Inputs of Z-Image beside latent and text: reference images, the texts before them, and SigLIP 2's tokens of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from darkroom.engine.diffusion.conditions import BatchedInput, ListInput
from darkroom.engine.families.references_denoiser import ReferencesDenoiser
from darkroom.engine.families.z_image.transformer import ZImageConfig

CELL_PX = 16  # of a side of SigLIP 2's patches
TEXTS, SEEN = "reference_latents_text_embeds", "clip_vision_outputs"  # of conditions


class ZImageDenoiser(ReferencesDenoiser):
    """Z-Image, whose texts and image tokens of references count only with the latents of references."""

    def extra_conds(self, **kwargs: Any) -> dict[str, BatchedInput]:
        """Return the network's inputs. Raises ValueError for inputs that are not for this network."""
        references = kwargs.get("reference_latents")
        config: ZImageConfig = self.diffusion_model.config  # type: ignore[assignment]
        if not references:
            return super().extra_conds(**{**kwargs, "reference_latents": None})
        if not config.pads_tokens:
            raise ValueError(
                f"reference latents: this network reads a prompt alone; got {len(references)}, expected none"
            )
        inputs = super().extra_conds(**kwargs)
        texts = [self._checked_text(text) for text in kwargs.get(TEXTS) or ()]
        if texts:
            inputs["ref_contexts"] = ListInput(texts)
        seen = [_grid_of(output, config.vision_dim) for output in _outputs(kwargs)] if config.vision_dim else []
        if seen:
            inputs["siglip_feats"] = ListInput(seen)
        return inputs

    def _checked_text(self, text: torch.Tensor) -> torch.Tensor:
        """Return a text before a reference image. Raises ValueError for one of another text encoder."""
        self.check_text({"cross_attn": text})
        return text


def _outputs(condition: Mapping[str, Any]) -> Sequence[Any]:
    """Return the outputs of image encoders in a condition, those of `TextEncodeZImageOmni` or of unCLIP."""
    found = condition.get(SEEN)
    if found is None:
        found = [item.get("clip_vision_output") for item in condition.get("unclip_conditioning") or ()]
    return [item for item in found if item is not None]


def _grid_of(output: Any, vision_dim: int) -> torch.Tensor:
    """Return an image's tokens [B, rows, columns, D]. Raises ValueError for those of another image encoder."""
    tokens: torch.Tensor = output.last_hidden_state
    height, width = output.image_sizes[0][-2:]
    rows, columns = height // CELL_PX, width // CELL_PX
    if tokens.shape[1:] != (rows * columns, vision_dim):
        raise ValueError(
            f"image_encoder: it does not fit the model; got tokens of shape {list(tokens.shape[1:])} for an image of "
            f"{width}x{height} pixels, expected {rows * columns} tokens of {vision_dim} channels, as SigLIP 2 (so400m, "
            "patch16, NaFlex) gives them"
        )
    return tokens.reshape(tokens.shape[0], rows, columns, vision_dim)
