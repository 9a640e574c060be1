"""Files of encoders of audio, in the layout of the transformers library, as networks on the CPU."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families.unsupported import describe
from darkroom.engine.formats.fill import Destination, fill
from darkroom.engine.formats.refusals import refuses
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.formats.weight_file import open_weights
from darkroom.engine.layers.shapes import Shapes
from darkroom.engine.layers.weight_norm import first_names
from darkroom.engine.models.kinds import wav2vec, whisper

EXPECTED = "an audio encoder (wav2vec 2.0 or Whisper)"
PREFIXES = ("wav2vec2.", "model.", "")  # of the networks in files that may hold more


@refuses(EXPECTED)
def load_audio_encoder(path: Path, dtype: torch.dtype, *, to: Destination = Destination.RAM) -> nn.Module:
    """Load the encoder of audio of a file, its layers stored as `dtype`. Raises `BadModelFile`."""
    file = open_weights(path)
    shapes = file.shapes
    for prefix in PREFIXES:
        inner = {name.removeprefix(prefix): name for name in shapes if name.startswith(prefix)}
        names = {name: inner[item] for name, item in first_names(dict.fromkeys(inner, ())).items()}
        ours = {name: shapes[item] for name, item in names.items()}
        try:
            network = _empty_network(ours)
        except (KeyError, IndexError) as error:
            raise BadModelFile(path.name, f"no tensor {error}", EXPECTED) from error
        if network is not None:
            # ComfyUI keeps the convolution that tells places as float32, whatever it keeps the others in.
            fill(network, file, names, lambda name: torch.float32 if name.startswith(wav2vec.PLACES) else dtype, to=to)
            return network
    raise BadModelFile(path.name, describe(shapes, file.metadata), EXPECTED)


def _empty_network(shapes: Shapes) -> nn.Module | None:
    """Return the network with these tensors, without memory, or None. Raises LookupError for a missing tensor."""
    with unfilled():
        if wav2vec.MARK in shapes:
            return wav2vec.Wav2Vec(wav2vec.wav2vec_config(shapes))
        return whisper.Whisper(whisper.whisper_config(shapes)) if whisper.MARK in shapes else None
