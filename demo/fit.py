"""The autoencoder's last layer in closed form: ridge regression from its inputs to the pixels.

With the colours carried through, what the untrained layers make of them is already enough to draw blurred images, so
training starts where it would else arrive after an hour.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn import functional

from darkroom.engine.layers.vae_kl import AutoencoderKl

PIXELS = 6000  # of each batch
RIDGE = 1e-3


def last_features(vae: AutoencoderKl, latents: torch.Tensor) -> torch.Tensor:
    """Return the input of the decoder's last convolution, [B, C, H, W]."""
    decoder = vae.decoder
    x = decoder.mid(decoder.conv_in(vae.post_quant_conv(latents)))
    for level in reversed(decoder.up):
        x = level(x)
    return functional.silu(decoder.norm_out(x))


@torch.no_grad()
def fit_last_layer(vae: AutoencoderKl, batches: Iterable[torch.Tensor], noise: float) -> None:
    """Changes `decoder.conv_out`. `batches` are images [B, 3, H, W]; their latents get noise of this deviation."""
    inputs, pixels = [], []
    for batch in batches:
        latents = vae.encode(batch)
        features = functional.pad(last_features(vae, latents + noise * torch.randn_like(latents)), (1, 1, 1, 1))
        index, y, x = (torch.randint(0, limit, (PIXELS,)) for limit in (len(batch), *batch.shape[2:]))
        taps = [features[index, :, y + down, x + right] for down in range(3) for right in range(3)]
        inputs.append(torch.stack(taps, 2).flatten(1))
        pixels.append(batch[index, :, y, x])
    x_all, y_all = torch.cat(inputs).double(), torch.cat(pixels).double()
    x_mean, y_mean = x_all.mean(0), y_all.mean(0)
    centred = x_all - x_mean
    square = centred.T @ centred / len(centred)
    square += torch.eye(len(square), dtype=square.dtype) * RIDGE * square.diagonal().mean()
    weights = torch.linalg.solve(square, centred.T @ (y_all - y_mean) / len(centred))
    last = vae.decoder.conv_out
    last.get_parameter("weight").copy_(weights.T.reshape(last.weight.shape))
    last.get_parameter("bias").copy_(y_mean - x_mean @ weights)
