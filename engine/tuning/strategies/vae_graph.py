"""CUDA graph of a VAE's decoder: its kernels are launched as one.

There is one graph per shape of the latent. Large latents are decoded as they are: their kernels take so long that
launching them costs nothing, and a graph holds all memory that they work in.
"""

from __future__ import annotations

import torch

from darkroom.engine.tuning.graphs import MEMORY_SHARE, Inputs, PlacedWeights, graph_key, moving_weights
from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.strategies.cuda_graph import GraphStrategy
from darkroom.engine.tuning.strategy import SamplingUse, Undo, offloaded

MAX_CELLS = 128 * 128  # of all latents in a call: one image of 1024x1024
MAX_GRAPHS = 4


class VaeGraph(GraphStrategy):
    """CUDA graph of decoding.

    `graphs` are none of a denoiser's, with which they would share memory: no two may be replayed at a time. Nor are
    there any where a VAE decodes beside other requests, which may decode with it or with another one meanwhile.
    """

    name = "vae_graph"
    quality = Quality.EXACT
    about = "the VAE's kernels are launched as one CUDA graph"
    target = "vae"
    conflicts = frozenset({"half_vae"})

    def unfit(self, use: SamplingUse) -> str | None:
        network = use.denoiser
        if not hasattr(network, "decode") or "decode" in vars(network) or use.patcher.object_patches:
            return "nodes have replaced parts of the network"
        if use.may_share:
            return "other requests may compute at the same time"
        return self.graphs.obstacle or offloaded(use) or moving_weights(use)

    def apply(self, use: SamplingUse) -> Undo:
        network, most_bytes = use.denoiser, use.patcher.free_bytes() * MEMORY_SHARE
        plain, weights, evaluation = network.decode, PlacedWeights(use, network), use.evaluation

        def decode(latent: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
            def work(inputs: Inputs) -> torch.Tensor:
                image: torch.Tensor = plain(inputs["latent"], **kwargs)
                return image

            found = None
            if not args and _is_small(latent):
                inner, place = graph_key({"latent": latent}, kwargs, {}), weights.place()
                if inner is not None and place is not None:
                    key, own = ("decode", evaluation.kind, inner), evaluation.own_tensors
                    found = self.graphs.run(key, {"latent": latent}, work, most_bytes, own, network, place)
            image: torch.Tensor = plain(latent, *args, **kwargs) if found is None else found
            return image

        network.__dict__["decode"] = decode

        def undo() -> None:
            network.__dict__.pop("decode", None)

        return undo


def _is_small(latent: torch.Tensor) -> bool:
    """Return True for latents of images `[B, C, h, w]` that a graph is worth its memory for."""
    return latent.ndim == 4 and latent.shape[0] * latent.shape[2] * latent.shape[3] <= MAX_CELLS
