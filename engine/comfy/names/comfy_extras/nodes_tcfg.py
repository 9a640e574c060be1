"""`comfy_extras.nodes_tcfg`: guidance without the tangential part of the negative prediction."""

from __future__ import annotations

import torch

from darkroom.engine.diffusion.guidance_rules import common_part


def score_tangential_damping(cond_score: torch.Tensor, uncond_score: torch.Tensor) -> torch.Tensor:
    """Return the negative score projected on what both scores have most in common."""
    return common_part(uncond_score, cond_score)
