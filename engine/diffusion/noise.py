"""The noise a seed stands for, drawn on the CPU so that every device starts from the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from darkroom.engine.diffusion.nested_latent import nested, streams_of
from darkroom.engine.diffusion.replacements import replaceable

NoiseSampler = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (sigma, sigma_next) -> noise like x


@replaceable
def prepare_noise(latent_image: torch.Tensor, seed: int, noise_inds: Sequence[int] | None = None) -> torch.Tensor:
    """Return unit Gaussian noise of the latent's shape and dtype, on the CPU.

    With `noise_inds` (LATENT's `batch_index`) item i is the draw number `noise_inds[i]` of the seed, as if the whole
    batch up to there had been drawn one by one. The streams of a nested latent are drawn one after the other.
    """
    generator = torch.manual_seed(seed)  # the global one: custom nodes' own draws depend on the seed too
    streams = streams_of(latent_image)
    if streams:
        return nested([_drawn(stream, generator, noise_inds) for stream in streams])
    return _drawn(latent_image, generator, noise_inds)


def prepare_empty_noise(latent_image: torch.Tensor) -> torch.Tensor:
    """Return zeros of the latent's shape and dtype, on the CPU; nested ones for a nested latent."""
    streams = streams_of(latent_image)
    if streams:
        return nested([torch.zeros_like(stream, device="cpu") for stream in streams])
    return torch.zeros(latent_image.shape, dtype=latent_image.dtype, device="cpu")


def _drawn(latent_image: torch.Tensor, generator: torch.Generator, noise_inds: Sequence[int] | None) -> torch.Tensor:
    dtype = latent_image.dtype
    if noise_inds is None:
        return torch.randn(latent_image.shape, dtype=dtype, generator=generator, device="cpu")
    wanted = set(noise_inds)
    draws: dict[int, torch.Tensor] = {}
    for index in range(max(wanted) + 1):
        draw = torch.randn((1, *latent_image.shape[1:]), dtype=dtype, generator=generator, device="cpu")
        if index in wanted:
            draws[index] = draw
    return torch.cat([draws[index] for index in noise_inds])


def default_noise_sampler(x: torch.Tensor, seed: int | None = None) -> NoiseSampler:
    """Return a source of fresh noise for each step of an ancestral sampler, drawn on `x`'s device as in ComfyUI.

    On a CPU it comes from `seed + 1`: the starting noise is drawn from `seed` on a CPU too, and the first step would
    otherwise add the same numbers again.
    """
    generator = None
    if seed is not None:
        generator = torch.Generator(device=x.device)
        generator.manual_seed(seed + 1 if x.device.type == "cpu" else seed)

    def draw(sigma: torch.Tensor, sigma_next: torch.Tensor) -> torch.Tensor:
        return torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)

    return draw
