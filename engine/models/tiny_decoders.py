"""The small decoders of previews (`--preview-method taesd`), from the folder `vae_approx`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.fill import fill
from darkroom.engine.formats.refusals import refuses
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.formats.weight_file import open_weights
from darkroom.engine.models.files.folders import ModelFolders
from darkroom.engine.models.kinds.tiny_decoder import TinyDecoder

KIND = "vae_approx"
FIRST = "1.weight"
EXPECTED = "the decoder of TAESD"

log = logging.getLogger(__name__)


@refuses("a tiny decoder")
def load_tiny_decoder(path: Path) -> TinyDecoder:
    """Load the decoder of a file, float32 as in ComfyUI. Raises `BadModelFile`."""
    file = open_weights(path)
    if FIRST not in file.tensors or len(file.tensors[FIRST].shape) != 4:
        raise BadModelFile(path.name, f"no tensor {FIRST!r} of a convolution", EXPECTED)
    with unfilled():
        network = TinyDecoder(file.tensors[FIRST].shape[1])
    fill(network, file, {name: name for name in file.tensors}, torch.float32)
    return network


class TinyDecoders:
    """Cache of the decoders that were needed, each read once. Used on the thread that runs prompts."""

    def __init__(self, folders: ModelFolders) -> None:
        self._folders = folders
        self._known: dict[str, TinyDecoder | None] = {}  # by their latent format's name of them

    def find(self, latent_format: Any, device: torch.device) -> TinyDecoder | None:
        """Return the decoder of a kind of latents on the device; None, with one warning, when there is none."""
        name: str | None = getattr(latent_format, "taesd_decoder_name", None)
        if name is None:
            return None
        if name not in self._known:
            self._known[name] = self._load(name, latent_format.latent_channels)
        decoder = self._known[name]
        return None if decoder is None else decoder.to(device)

    def _load(self, name: str, latent_channels: int) -> TinyDecoder | None:
        file_name = next((item for item in self._folders.names(KIND) if item.startswith(name)), None)
        path = None if file_name is None else self._folders.path(KIND, file_name)
        if path is None:
            log.warning("taesd previews: no file %s in %s, the latents' own colours are shown", name, KIND)
            return None
        try:
            decoder = load_tiny_decoder(path)
            if decoder.latent_channels != latent_channels:
                found = f"a decoder of {decoder.latent_channels} channels"
                raise BadModelFile(path.name, found, f"one of {latent_channels}")
        except BadModelFile as error:
            log.warning("taesd previews: %s, the latents' own colours are shown", error)
            return None
        return decoder
