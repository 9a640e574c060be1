"""Trains the autoencoder: `python -m demo.train_vae BUILD`, resumable, writes `BUILD/vae.pt`.

The posterior has a fixed width: the decoder sees the mean plus a little noise, which keeps neighbouring latents alike,
and the mean is held near zero. First on crops of 64 pixels, which are four times cheaper, then on whole images; with
`--decoder-only` the encoder stays as it is, so that latents already computed from it stay valid.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from darkroom.engine.layers.vae_kl import AutoencoderKl
from demo.compose import SIDE, Images, draw_scene, load_images, render
from demo.fit import fit_last_layer
from demo.networks import VAE, carry_colours, channels_last, rest_large_blocks
from demo.run import SLICE_OVER, Budget, Course

CROP = 64
LATENT_NOISE = 0.05
HOLD = 2e-4


def draw_batch(rng: np.random.Generator, images: Images, size: int, crop: int) -> torch.Tensor:
    """[B, 3, crop, crop] float32 in -1..1; crops lie where the thing is more often than not."""
    batch = np.empty((size, crop, crop, 3), np.uint8)
    for index in range(size):
        whole = render(draw_scene(rng, images), rng, images)
        x, y = (int(rng.integers(0, SIDE - crop + 1)) for _ in range(2))
        batch[index] = whole[y : y + crop, x : x + crop]
    return (
        torch.from_numpy(batch)
        .permute(0, 3, 1, 2)
        .float()
        .div(127.5)
        .sub(1)
        .contiguous(memory_format=torch.channels_last)
    )


def loss_of(network: torch.nn.Module, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss, mean absolute error in 0..255)."""
    mean, drawn = network(images)
    difference = drawn.float() - images
    error = difference.abs().mean()
    # Edges: the same on the differences of neighbouring pixels.
    across = (difference[..., 1:] - difference[..., :-1]).abs().mean()
    down = (difference[..., 1:, :] - difference[..., :-1, :]).abs().mean()
    coarse = functional.avg_pool2d(difference, 8).abs().mean()
    return error + 0.5 * (across + down) + coarse + HOLD * mean.float().pow(2).mean(), error * 127.5


class Autoencoding(torch.nn.Module):
    """Images -> (mean, what is drawn from the mean plus noise)."""

    def __init__(self, vae: AutoencoderKl) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean = self.vae.encode(images)
        return mean, self.vae.decode(mean + LATENT_NOISE * torch.randn_like(mean))


def prepare(arguments: argparse.Namespace, images: Images) -> AutoencoderKl:
    """The autoencoder as training begins with it, on the device. Everything before the training happens on the CPU."""
    vae = AutoencoderKl(VAE)
    channels_last(vae)
    carry_colours(vae)
    rest_large_blocks(vae)
    if arguments.start:
        vae.load_state_dict(torch.load(arguments.start, map_location="cpu", weights_only=True)["average"])
    else:
        samples = np.random.default_rng(4)
        fit_last_layer(vae, (draw_batch(samples, images, 8, SIDE) for _ in range(6)), LATENT_NOISE)
    if arguments.decoder_only:
        vae.encoder.requires_grad_(False)
        vae.quant_conv.requires_grad_(False)
    return vae.to(arguments.device)


def train(arguments: argparse.Namespace) -> Budget:
    """Trains until the budget or the slice ends, and gives the budget."""
    torch.manual_seed(0)
    images = load_images(arguments.build / "pictures.npz")
    vae = prepare(arguments, images)
    trained = [weight for weight in vae.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=arguments.rate, betas=(0.9, 0.98), weight_decay=1e-4)
    budget = Budget(arguments.seconds, arguments.slice_seconds)
    course = Course(arguments.build / arguments.name, vae, optimizer, budget)
    network: torch.nn.Module = Autoencoding(vae)
    if arguments.compile:
        network = torch.compile(network, dynamic=False)  # type: ignore[assignment]
    rng, shown = np.random.default_rng((1, course.step)), []
    while not budget.is_spent:
        whole = budget.share >= arguments.whole_from
        crop, size = (SIDE, max(1, arguments.batch // 4)) if whole else (CROP, arguments.batch)
        course.set_rate(arguments.rate, 40)
        batch = draw_batch(rng, images, size, crop).to(arguments.device)
        with torch.autocast(arguments.device, torch.bfloat16, enabled=arguments.half):
            loss, error = loss_of(network, batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        course.follow(0.995)
        course.step += 1
        shown.append(error.item())
        if course.step % 20 == 0:
            sys.stdout.write(
                f"{course.step} {budget.used_seconds:.0f} s, {crop} px, error {np.mean(shown):.2f} of 255\n"
            )
            sys.stdout.flush()
            shown = []
        course.save_now_and_then()
    course.save()
    return budget


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=1800, help="of training in all")
    parser.add_argument("--slice-seconds", type=float, default=1e9, help="of training in this process")
    parser.add_argument("--whole-from", type=float, default=0.6, help="share of the time after which crops end")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--decoder-only", action="store_true")
    parser.add_argument("--name", default="vae.pt")
    parser.add_argument("--start", type=Path, help="weights to begin with")
    parser.add_argument("--half", action="store_true", help="bfloat16, which pays on a GPU or when compiled")
    parser.add_argument("--compile", action="store_true")
    sys.exit(0 if train(parser.parse_args()).is_over else SLICE_OVER)


if __name__ == "__main__":
    main()
