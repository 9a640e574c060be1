"""Choice of the view that all others of a scene refer to, which Depth Anything 3 puts first.

`B` scenes, `S` views, `D` size of a view's first token.
"""

from __future__ import annotations

import torch

STRATEGIES = ("saddle_balanced", "saddle_sim_range", "first", "middle")
LEAST_VIEWS = 3  # fewer keep their order


def reference_view(tokens: torch.Tensor, strategy: str) -> torch.Tensor:
    """Return the index of the view for each scene, int64 [B], by the views' tokens [B, S, D].

    `saddle_balanced` is the view nearest to the middle by its likeness to the others, its norm and its variance,
    `saddle_sim_range` that with the widest range of likeness to the others.
    """
    num_scenes, num_views, _ = tokens.shape
    if strategy in ("first", "middle"):
        return tokens.new_full((num_scenes,), num_views // 2 if strategy == "middle" else 0, dtype=torch.long)
    norms: torch.Tensor = tokens.norm(dim=-1)
    directions = tokens / norms[..., None]
    likeness = directions @ directions.mT - torch.eye(num_views, device=tokens.device)
    if strategy == "saddle_sim_range":
        return (likeness.amax(-1) - likeness.amin(-1)).argmax(dim=1)
    measures = (likeness.sum(-1) / (num_views - 1), norms, directions.var(dim=-1))
    return torch.stack([(_scaled(item) - 0.5).abs() for item in measures]).sum(dim=0).argmin(dim=1)


def _scaled(values: torch.Tensor) -> torch.Tensor:
    """Return values [B, S] scaled to 0..1 within each scene."""
    least, most = values.amin(dim=1, keepdim=True), values.amax(dim=1, keepdim=True)
    return (values - least) / (most - least + 1e-8)


def in_first_place(x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Move the chosen view [B] of [B, S, ...] to the front; those before it move back by one."""
    places = torch.arange(x.shape[1], device=x.device).expand(len(x), -1)
    order = torch.where(places <= chosen[:, None], places - 1, places)
    order[:, 0] = chosen
    return x[torch.arange(len(x), device=x.device)[:, None], order]


def in_old_place(x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Undo `in_first_place`."""
    places = torch.arange(x.shape[1], device=x.device).expand(len(x), -1)
    order = torch.where(places < chosen[:, None], places + 1, places)
    order = torch.where(places == chosen[:, None], 0, order)
    return x[torch.arange(len(x), device=x.device)[:, None], order]
