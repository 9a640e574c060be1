"""`latent_preview`: progress and previews of a sampler's steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from engine.nodes.running_call import running_context

MAX_PREVIEW_RESOLUTION = 512


def prepare_callback(
    model: Any, steps: int, x0_output_dict: dict[str, Any] | None = None
) -> Callable[[int, torch.Tensor, torch.Tensor, int], None]:
    """A sampler's callback that tells progress and previews of the running node, and keeps the denoised latent."""
    context = running_context()
    latent_format = model.model.latent_format

    def callback(step: int, x0: torch.Tensor, x: torch.Tensor, total_steps: int) -> None:
        if x0_output_dict is not None:
            x0_output_dict["x0"] = x0
        if context is not None:
            if context.report_preview is not None:
                context.report_preview(x0, latent_format)
            context.report_progress(step + 1, total_steps)

    return callback
