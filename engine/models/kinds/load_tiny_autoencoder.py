"""TAESD in a VAE's place, from its two files, whose names begin with what kind of latents they are for."""

from __future__ import annotations

from pathlib import Path

import torch

from darkroom.engine.diffusion.latent_format import LatentFormat
from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.fill import Destination, fill
from darkroom.engine.formats.refusals import refuses
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.formats.weight_file import open_weights
from darkroom.engine.models.kinds.tiny_autoencoder import TinyAutoencoder

FIRST_OF_DECODER = "1.weight"


@refuses("a tiny autoencoder")
def load_tiny_autoencoder(
    encoder: Path, decoder: Path, latent_format: LatentFormat, dtype: torch.dtype, *, to: Destination
) -> TinyAutoencoder:
    """Load both halves for latents of a format. Raises `BadModelFile`."""
    halves = {"taesd_encoder": open_weights(encoder), "taesd_decoder": open_weights(decoder)}
    first = halves["taesd_decoder"].tensors.get(FIRST_OF_DECODER)
    channels = latent_format.latent_channels
    if first is None or first.shape[1:2] != (channels,):
        found = f"no tensor {FIRST_OF_DECODER!r}" if first is None else f"{FIRST_OF_DECODER!r} of {list(first.shape)}"
        raise BadModelFile(decoder.name, found, f"the decoder of TAESD for {channels} latent channels")
    with unfilled():
        network = TinyAutoencoder(channels, scaled=latent_format.process_in, unscaled=latent_format.process_out)
    for name, file in halves.items():
        fill(network.get_submodule(name), file, {key: key for key in file.tensors}, dtype, to=to)
    return network.eval()
