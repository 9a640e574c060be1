"""Nodes that join and split batches of latents and select the noise of each item.

LATENT: `samples` `[B, C, h, w]`, perhaps `noise_mask` `[B, 1, H, W]` and `batch_index`, which draw of the seed's noise
each item uses.
"""

from __future__ import annotations

from itertools import groupby
from typing import Annotated, Any

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.images.batches import position_in_batch
from darkroom.engine.images.compositing import repeated
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.latent.latent_arithmetic import fitted_to
from darkroom.engine.nodes.library.latent.latent_geometry import CELL_PX, LATENT_MODULE, MAX_SIDE_PX
from darkroom.engine.nodes.markers import Out, Socket
from darkroom.engine.nodes.sockets import LATENT, Latent
from darkroom.engine.nodes.widgets import Combo, Int


@node(
    "LatentFromBatch",
    display_name="Get Latent From Batch",
    category="model/latent/batch",
    facts=NodeFacts(cuts="length", keeps_channels=True),
)
def latent_from_batch(
    context: NodeContext,
    *,
    samples: LATENT,
    batch_index: Annotated[int, Int(min=-MAX_SIDE_PX, max=MAX_SIDE_PX)] = 0,
    length: Annotated[int, Int(min=1, max=64)] = 1,
) -> LATENT:
    """Take `length` items from `batch_index` on; each keeps the noise it would have had in the whole batch."""
    old = samples["samples"]
    first = position_in_batch(batch_index, old.shape[0])
    end = min(old.shape[0], first + length)
    picked = samples.copy()
    picked["samples"] = old[first:end].clone()
    if "noise_mask" in samples:
        mask = samples["noise_mask"]
        picked["noise_mask"] = (mask if mask.shape[0] == 1 else _at_least(mask, old.shape[0])[first:end]).clone()
    picked["batch_index"] = samples["batch_index"][first:end] if "batch_index" in samples else list(range(first, end))
    return picked


@node(
    "RepeatLatentBatch",
    display_name="Repeat Latent Batch",
    category="model/latent/batch",
    facts=NodeFacts(repeats="amount", keeps_channels=True),
)
def repeat_latent_batch(
    context: NodeContext, *, samples: LATENT, amount: Annotated[int, Int(min=1, max=64)] = 1
) -> LATENT:
    """Repeat the whole batch. Known noise indices continue counting, so that copies get different noise."""
    again = samples.copy()
    again["samples"] = samples["samples"].repeat(amount, *(1,) * (samples["samples"].ndim - 1))
    if "noise_mask" in samples and samples["noise_mask"].shape[0] > 1:
        # Fewer masks than items are not filled up first, as in ComfyUI: copies then start at another mask.
        again["noise_mask"] = samples["noise_mask"].repeat((amount,) + (1,) * (samples["noise_mask"].ndim - 1))
    if "batch_index" in samples:
        indices = samples["batch_index"]
        span = max(indices) - min(indices) + 1
        again["batch_index"] = [index + turn * span for turn in range(amount) for index in indices]
    return again


@node(
    "LatentBatch",
    display_name="Batch Latents (DEPRECATED)",
    category="model/latent/batch",
    python_module=LATENT_MODULE,
    facts=NodeFacts(joins="items"),
    deprecated=True,
)
def latent_batch(context: NodeContext, *, samples1: LATENT, samples2: LATENT) -> LATENT:
    """Join two batches; the second is scaled to the size of the first and cropped to fit."""
    first, second = samples1["samples"], samples2["samples"]
    joined = samples1.copy()
    joined["samples"] = torch.cat((first, fitted_to(second, first)))
    joined["batch_index"] = _indices(samples1) + _indices(samples2)
    return joined


@node("LatentBatchSeedBehavior", display_name=None, category="model/latent/advanced", python_module=LATENT_MODULE)
def latent_batch_seed_behavior(
    context: NodeContext, *, samples: LATENT, seed_behavior: Annotated[str, Combo(("random", "fixed"))] = "fixed"
) -> LATENT:
    """Give each item different noise (`random`), or all items that of the first one (`fixed`)."""
    changed = samples.copy()
    if seed_behavior == "random":
        changed.pop("batch_index", None)
    else:
        changed["batch_index"] = _indices(samples)[:1] * samples["samples"].shape[0]
    return changed


@node(
    "RebatchLatents",
    display_name="Rebatch Latents",
    category="model/latent/batch",
    python_module="comfy_extras.nodes_rebatch",
    input_is_list=True,
)
def rebatch_latents(
    context: NodeContext, *, latents: LATENT, batch_size: Annotated[int, Int(min=1, max=4096)] = 1
) -> Annotated[Latent, Socket("LATENT"), Out(is_list=True)]:
    """Regroup a list of batches into batches of another size. Only neighbours of equal size share a batch.

    Every item keeps its noise: the index it has, or else its place among all.
    """
    batches: Any = latents  # both inputs come as lists
    sizes: Any = batch_size
    size = sizes[0]
    rebatched: Any = []
    for _, group in groupby(_numbered(batches), lambda latent: latent["samples"].shape[-2:]):
        members = list(group)
        samples = torch.cat([item["samples"] for item in members])
        masks = torch.cat([item["noise_mask"] for item in members])
        indices = [index for item in members for index in item["batch_index"]]
        for start in range(0, samples.shape[0], size):
            batch: Latent = {"samples": samples[start : start + size], "batch_index": indices[start : start + size]}
            if masks[start : start + size].mean() != 1.0:  # a mask of ones says nothing
                batch["noise_mask"] = masks[start : start + size]
            rebatched.append(batch)
    result: Latent = rebatched
    return result


def _numbered(latents: list[Latent]) -> list[Latent]:
    """Return the latents, each with a mask and noise indices."""
    numbered: list[Latent] = []
    num_before = 0
    for latent in latents:
        samples = latent["samples"]
        batch, (height, width) = samples.shape[0], samples.shape[-2:]
        mask = latent.get("noise_mask")
        if mask is None:
            mask = torch.ones((batch, 1, height * CELL_PX, width * CELL_PX))
        indices = latent.get("batch_index", list(range(num_before, num_before + batch)))
        numbered.append({"samples": samples, "noise_mask": repeated(mask, batch), "batch_index": indices})
        num_before += len(indices)
    return numbered


def _indices(latent: Latent) -> list[int]:
    return latent.get("batch_index", list(range(latent["samples"].shape[0])))


def _at_least(items: torch.Tensor, count: int) -> torch.Tensor:
    return repeated(items, count) if items.shape[0] < count else items


NODES = (latent_from_batch, repeat_latent_batch, latent_batch, latent_batch_seed_behavior, rebatch_latents)
