"""Trains text encoder and UNet together: `python -m demo.train_diffusion BUILD` writes `BUILD/diffusion.pt`, resumable.

What is predicted is the noise, over SD1.5's schedule; the loss is weighted by min(SNR, 5) / SNR (Hang et al. 2023,
arXiv 2303.09556), and more, by SNR ** -0.5, where noise prevails: there what is drawn and in which colours is
decided. The self-attention of the largest level (256 cells, 8 heads of 8 channels) stays at zero: it would cost as
much as all the rest. With `--processes 2`, once with `--rank 0` and once with `--rank 1`, two processes average their
gradients.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed, nn

from darkroom.engine.layers.clip_text import ClipTextModel
from darkroom.engine.layers.unet import UnetModel
from darkroom.engine.text.clip_encoding import END_TOKEN, START_TOKEN
from darkroom.engine.text.clip_tokens import BytePairs
from demo.networks import ACTIVE_TEXT_LAYERS, TEXT, UNET, channels_last, rest_large_transformers, rest_text_layers
from demo.run import SLICE_OVER, Budget, Course

SIDE = 16
TOKENS = 77
NUM_STEPS = 1000
BETA_FIRST, BETA_LAST = 0.00085, 0.012
SNR_LIMIT = 5.0
MOST_WEIGHT = 8.0
WITHOUT_TEXT = 0.1
AVERAGE_DECAY = 0.996
# Blocks at 16x16 cells that hold a transformer.
LARGEST_LEVEL = ("input_blocks.1.", "input_blocks.2.", "output_blocks.9.", "output_blocks.10.", "output_blocks.11.")
SKIP = "output_blocks.11.0.skip_connection.weight"


def signal_shares() -> torch.Tensor:
    """alpha-bar [1000] of SD1.5's schedule."""
    betas = torch.linspace(BETA_FIRST**0.5, BETA_LAST**0.5, NUM_STEPS, dtype=torch.float64) ** 2
    return torch.cumprod(1 - betas, 0).float()


def attend(_: Callable[..., Any], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int, **__: Any) -> Any:
    """Attention written out, which is far quicker here than torch's kernel for a CPU; nothing on the largest level."""
    batch, cells, width = q.shape
    if cells == k.shape[1] == SIDE * SIDE:
        return torch.zeros_like(q)
    q, k, v = (item.view(batch, -1, heads, width // heads).transpose(1, 2) for item in (q, k, v))
    scores = (q * (width // heads) ** -0.5) @ k.transpose(-1, -2)
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, cells, width)


class TextToNoise(nn.Module):
    """(noisy latents [B, 4, 16, 16], timesteps [B], tokens [B, 77]) -> predicted noise [B, 4, 16, 16]."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ClipTextModel(TEXT)
        self.text.text_projection.requires_grad_(False)
        self.unet = UnetModel(UNET)

    def forward(self, noisy: torch.Tensor, timesteps: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        context, _ = self.text.text_model(self.text.text_model.embeddings.token_embedding(tokens), None)
        options = {"optimized_attention_override": attend}
        out: torch.Tensor = self.unet(noisy, timesteps, context, transformer_options=options)
        return out


@torch.no_grad()
def initialise(network: TextToNoise) -> None:
    """Residual branches end in zeros; the noisy latent itself is the first guess of the noise."""
    tower = network.text.text_model
    tower.embeddings.token_embedding.weight.normal_(0, 0.05)
    tower.embeddings.position_embedding.weight.normal_(0, 0.02)
    for name, weight in network.text.named_parameters():
        if name.endswith(("out_proj.weight", "fc2.weight")):
            weight.mul_((2 * ACTIVE_TEXT_LAYERS) ** -0.5)
    weights = dict(network.unet.named_parameters())
    for name, weight in weights.items():
        if any(end in name for end in ("out_layers.3.", "proj_out.", "attn1.to_out.0.")):
            weight.zero_()
    for name, module in network.unet.named_modules():
        largest = name.startswith(LARGEST_LEVEL)
        if name.endswith("attn1") and largest:
            module.requires_grad_(False)
        elif name.endswith("attn1.to_out.0") and not largest:
            nn.init.normal_(module.get_parameter("weight"), 0, 0.02)
    # silu(a) - silu(-a) = a: eight channels carry both signs of the latent from the first layer to the last.
    signs = torch.cat([torch.eye(4), -torch.eye(4)])
    weights["input_blocks.0.0.weight"][:8] = 0
    weights["input_blocks.0.0.weight"][:8, :, 1, 1] = signs
    weights["input_blocks.0.0.bias"][:8] = 0
    weights[SKIP][:8] = 0
    weights[SKIP][range(8), range(UNET.model_channels, UNET.model_channels + 8)] = 1
    weights[SKIP.replace("weight", "bias")][:8] = 0
    weights["out.2.weight"].mul_(0.1)
    weights["out.2.weight"][:, :8] = 0
    weights["out.2.weight"][:, :8, 1, 1] = signs.T * 0.9


class Samples:
    """Encoded scenes that lie on the disk so far, shuffled by epoch; `refresh` finds those that have come since."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.pairs = folder, BytePairs()
        self.latents, self.tokens = torch.empty(0), torch.empty(0)
        self.num_files = 0

    def refresh(self) -> None:
        files = sorted(self.folder.glob("*.npz"))
        if len(files) == self.num_files:
            return
        latents, tokens = [], []
        for path in files:
            with np.load(path) as stored:
                latents.append(torch.from_numpy(stored["latents"]))
                tokens.append(torch.stack([self.encode(str(caption)) for caption in stored["captions"]]))
        self.latents, self.tokens, self.num_files = torch.cat(latents), torch.cat(tokens), len(files)

    def encode(self, caption: str) -> torch.Tensor:
        """Token ids [77]."""
        ids = [START_TOKEN, *self.pairs.encode(caption)[: TOKENS - 2]]
        return torch.tensor(ids + [END_TOKEN] * (TOKENS - len(ids)))

    def batches(self, rng: np.random.Generator, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Without end. Some captions are empty, which guidance needs."""
        nothing = self.encode("")
        while True:
            self.refresh()
            order = torch.from_numpy(rng.permutation(len(self.latents)))
            for chosen in torch.split(order, size):
                if len(chosen) == size:
                    silent = torch.from_numpy(rng.random(size) < WITHOUT_TEXT)
                    tokens = torch.where(silent[:, None], nothing, self.tokens[chosen])
                    yield self.latents[chosen].float(), tokens


def weighted_loss(
    network: nn.Module, latents: torch.Tensor, tokens: torch.Tensor, shares: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss, plain squared error). Times of a batch are spread evenly, which steadies the gradient."""
    size = latents.shape[0]
    spread = (torch.arange(size, device=latents.device) + torch.rand(size, device=latents.device)) / size
    times = (spread * NUM_STEPS).long()[torch.randperm(size, device=latents.device)]
    share = shares[times][:, None, None, None]
    noise = torch.randn_like(latents)
    noisy = latents * share.sqrt() + noise * (1 - share).sqrt()
    error = (network(noisy.contiguous(memory_format=torch.channels_last), times, tokens).float() - noise) ** 2
    error = error.mean((1, 2, 3))
    ratio = shares[times] / (1 - shares[times])
    weight = torch.where(ratio < 1, ratio.rsqrt().clamp(max=MOST_WEIGHT), ratio.clamp(max=SNR_LIMIT) / ratio)
    return (error * weight).mean(), error.mean()


def share_gradients(weights: list[nn.Parameter], processes: int) -> None:
    flat = torch.cat([weight.grad.flatten() for weight in weights if weight.grad is not None])
    distributed.all_reduce(flat)
    flat /= processes
    start = 0
    for weight in weights:
        if weight.grad is not None:
            weight.grad.copy_(flat[start : start + weight.numel()].view_as(weight))
            start += weight.numel()


def build_network(device: str) -> TextToNoise:
    """Return the network with the weights that training begins with."""
    torch.manual_seed(0)
    network = TextToNoise()
    initialise(network)
    rest_large_transformers(network.unet)
    rest_text_layers(network.text)
    network = network.to(device)
    channels_last(network)
    return network


def train(arguments: argparse.Namespace) -> Budget:
    """Trains until the budget or the slice ends, and gives the budget. Rank 0 keeps the average and saves."""
    rank, processes, device = arguments.rank, arguments.processes, arguments.device
    if processes > 1:
        rendezvous = f"tcp://127.0.0.1:{arguments.port}"
        distributed.init_process_group("gloo", rendezvous, rank=rank, world_size=processes)
    torch.set_num_threads(arguments.threads)
    network = build_network(device)
    trained = [weight for weight in network.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=arguments.rate, betas=(0.9, 0.99), weight_decay=0.0)
    budget = Budget(arguments.seconds, arguments.slice_seconds)
    course = Course(arguments.build / "diffusion.pt", network, optimizer, budget)
    called: nn.Module = torch.compile(network, dynamic=False) if arguments.compile else network  # type: ignore[assignment]
    shares = signal_shares().to(device)
    torch.manual_seed(1 + course.step * processes + rank)
    rng = np.random.default_rng((3, course.step, rank))
    batches = Samples(arguments.build / "latents").batches(rng, arguments.batch)
    shown, ends = [], torch.tensor([float(budget.is_spent)])
    while not ends.item():
        course.set_rate(arguments.rate, 100)
        latents, tokens = next(batches)
        with torch.autocast(device, torch.bfloat16):
            loss, error = weighted_loss(called, latents.to(device), tokens.to(device), shares)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        if processes > 1:
            share_gradients(trained, processes)
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        course.step += 1
        if not math.isfinite(loss.item()):
            raise FloatingPointError(f"the loss of step {course.step} is {loss.item()}; the last save is as it was")
        if rank == 0:
            course.follow(AVERAGE_DECAY)
            shown.append((loss.item(), error.item()))
            if course.step % 25 == 0:
                weighted, plain = np.mean(shown, 0)
                sys.stdout.write(f"{course.step} {budget.used_seconds:.0f} s, loss {weighted:.4f}, error {plain:.4f}\n")
                sys.stdout.flush()
                shown = []
            course.save_now_and_then()
        ends.fill_(budget.is_spent)
        if processes > 1:
            distributed.broadcast(ends, 0)
    if rank == 0:
        course.save()
    return budget


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=7200, help="of training in all")
    parser.add_argument("--slice-seconds", type=float, default=1e9, help="of training in this process")
    parser.add_argument("--batch", type=int, default=32, help="of each process")
    parser.add_argument("--rate", type=float, default=8e-4)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0, help="which of the processes this is; 0 saves")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--port", type=int, default=29431)
    parser.add_argument("--compile", action="store_true")
    sys.exit(0 if train(parser.parse_args()).is_over else SLICE_OVER)


if __name__ == "__main__":
    main()
