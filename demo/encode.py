"""Scenes as the diffusion model sees them: `python -m demo.encode BUILD` writes `BUILD/latents/*.npz`, a slice a file.

A slice holds latents [N, 4, 16, 16] float16 of mean 0 and deviation 1 by channel, and their captions. The mean and
deviation come from the first slice and are kept in `BUILD/moments.pt`: export folds them into the checkpoint.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from darkroom.engine.layers.vae_kl import AutoencoderKl
from demo.compose import Images, draw_scene, load_images, render
from demo.networks import VAE, channels_last, rest_large_blocks
from demo.vocabulary import THINGS

SLICE = 512
BATCH = 16


@torch.no_grad()
def encode_slice(
    vae: AutoencoderKl, images: Images, seed: tuple[int, int], num_things: int, device: str
) -> tuple[torch.Tensor, list[str]]:
    """(latents [N, 4, 16, 16] float32 as the encoder gives them, captions)."""
    rng = np.random.default_rng(seed)
    latents, captions = [], []
    for _ in range(SLICE // BATCH):
        scenes = [draw_scene(rng, images, num_things) for _ in range(BATCH)]
        batch = np.stack([render(scene, rng, images) for scene in scenes])
        pixels = torch.from_numpy(batch).permute(0, 3, 1, 2).to(device).float().div(127.5).sub(1)
        latents.append(vae.encode(pixels.contiguous(memory_format=torch.channels_last)).cpu())
        captions += [scene.caption for scene in scenes]
    return torch.cat(latents), captions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--slices", type=int, default=48)
    parser.add_argument("--things", type=int, default=len(THINGS), help="only the first so many of the vocabulary")
    arguments = parser.parse_args()

    images = load_images(arguments.build / "pictures.npz")
    vae = AutoencoderKl(VAE)
    rest_large_blocks(vae)
    vae.load_state_dict(torch.load(arguments.build / "vae.pt", map_location="cpu", weights_only=True)["average"])
    vae = vae.to(arguments.device).eval()
    channels_last(vae)
    folder, moments_path = arguments.build / "latents", arguments.build / "moments.pt"
    folder.mkdir(exist_ok=True)
    for index in range(arguments.slices):
        path = folder / f"{index:03}.npz"
        if path.exists():
            continue
        latents, captions = encode_slice(vae, images, (2, index), arguments.things, arguments.device)
        if not moments_path.exists():
            moments = {"mean": latents.mean((0, 2, 3)), "deviation": latents.std((0, 2, 3))}
            torch.save(moments, moments_path)
        moments = torch.load(moments_path, weights_only=True)
        scaled = (latents - moments["mean"][:, None, None]) / moments["deviation"][:, None, None]
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            np.savez(file, latents=scaled.half().numpy(), captions=np.array(captions))
        part.rename(path)


if __name__ == "__main__":
    main()
