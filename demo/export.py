"""Writes the checkpoint: `python -m demo.export BUILD FILE`, SD1.5's layout in float16, from the averaged weights.

The latents' mean and deviation by channel are folded into the autoencoder, so that latents times SD1.5's 0.18215 are
what the UNet was trained on. Tokens that no caption used are zero: a word the model does not know says nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from darkroom.engine.families.sd15.unet_files import PREFIX as UNET_PREFIX
from darkroom.engine.families.sd15.vae_files import PREFIX as VAE_PREFIX
from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.text.clip_tokens import BytePairs
from demo.networks import TEXT
from demo.train_diffusion import LARGEST_LEVEL, Samples
from demo.vocabulary import BACKGROUNDS, COUNTS, HUES, THINGS

TEXT_PREFIX = "cond_stage_model.transformer."
SCALE = 0.18215
LICENCE = (
    "Apache-2.0. Trained on Noto emoji (Google, Apache-2.0) with CLDR names (emojibase-data, MIT; Unicode licence)."
)
Tensors = dict[str, torch.Tensor]


def fold_moments(vae: Tensors, mean: torch.Tensor, deviation: torch.Tensor) -> Tensors:
    """The autoencoder with latents of mean 0 and deviation 1 / SCALE; what is decoded stays the same."""
    factor = deviation * SCALE  # stored = (own - mean) / factor
    folded = dict(vae)
    weight, bias = vae["quant_conv.weight"].clone(), vae["quant_conv.bias"].clone()
    weight[:4] = weight[:4] / factor[:, None, None, None]
    bias[:4] = (bias[:4] - mean) / factor
    folded["quant_conv.weight"], folded["quant_conv.bias"] = weight, bias
    back = vae["post_quant_conv.weight"]
    folded["post_quant_conv.weight"] = back * factor[None, :, None, None]
    folded["post_quant_conv.bias"] = vae["post_quant_conv.bias"] + (back[:, :, 0, 0] * mean).sum(1)
    return folded


def average_in(path: Path) -> Tensors:
    """The averaged weights of a training, on the CPU also where it ran on a GPU."""
    average: Tensors = torch.load(path, map_location="cpu", weights_only=True)["average"]
    return average


def known_tokens(samples: Samples) -> torch.Tensor:
    """[49408] bool: every token of a caption that was trained on, and those of the vocabulary itself."""
    pairs = BytePairs()
    known = torch.zeros(TEXT.vocabulary_size, dtype=torch.bool)
    known[torch.unique(samples.tokens)] = True
    words = [*BACKGROUNDS, *HUES, *COUNTS.values(), *(thing.name for thing in THINGS)]
    known[[token for word in words for token in pairs.encode(word)]] = True
    return known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    build: Path = arguments.build

    decoder = build / "decoder.pt"
    vae = average_in(decoder if decoder.exists() else build / "vae.pt")
    moments = torch.load(build / "moments.pt", weights_only=True)
    trained = average_in(build / "diffusion.pt")
    samples = Samples(build / "latents")
    samples.refresh()

    tensors = {VAE_PREFIX + name: weight for name, weight in fold_moments(vae, **moments).items()}
    for name, weight in trained.items():
        if name.startswith("unet."):
            tensors[UNET_PREFIX + name.removeprefix("unet.")] = weight
        elif not name.startswith("text.text_projection"):
            tensors[TEXT_PREFIX + name.removeprefix("text.")] = weight
    for name in tensors:  # not computed in training, so it must add nothing now
        if name.removeprefix(UNET_PREFIX).startswith(LARGEST_LEVEL) and ".attn1.to_out.0." in name:
            tensors[name] = torch.zeros_like(tensors[name])
    table = TEXT_PREFIX + "text_model.embeddings.token_embedding.weight"
    tensors[table] = tensors[table] * known_tokens(samples)[:, None]
    arguments.file.parent.mkdir(parents=True, exist_ok=True)
    halves = {name: weight.half().contiguous() for name, weight in sorted(tensors.items())}
    write_safetensors(arguments.file, halves, {"license": LICENCE, "modelspec.title": "Darkroom emoji"})
    print(f"{arguments.file}: {arguments.file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
