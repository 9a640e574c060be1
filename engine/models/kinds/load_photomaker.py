"""Files of PhotoMaker as networks on the CPU: the image encoder behind `id_encoder`, or alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.fill import Destination, fill
from darkroom.engine.formats.pickle_file import read_pickle
from darkroom.engine.formats.refusals import refuses
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.formats.weight_file import ChangedTensors, WeightFile, is_pickled, open_weights
from darkroom.engine.models.kinds.load_clip_vision import EXACT, vision_config
from darkroom.engine.models.kinds.photomaker import PhotoMaker, PhotoMakerConfig

EXPECTED = "PhotoMaker's first version"
ENCODER = "id_encoder"
SECOND_PROJECTION = "visual_projection_2.weight"
SECOND_VERSION = "qformer_perceiver."
ALSO_EXACT = ("visual_projection_2.", "fuse_module.")


@refuses(EXPECTED)
def load_photomaker(path: Path, dtype: torch.dtype, *, to: Destination = Destination.RAM) -> PhotoMaker:
    """Load the network of a file, its image encoder's layers stored as `dtype`. Raises `BadModelFile`."""
    file = _encoder_file(path)
    names = {name: name for name in file.tensors}
    if any(name.startswith(SECOND_VERSION) for name in names):
        raise BadModelFile(path.name, "PhotoMaker's second version", EXPECTED)
    try:
        config = PhotoMakerConfig(vision_config(names, file.shapes), file.shapes[SECOND_PROJECTION][0])
    except (KeyError, IndexError) as error:
        raise BadModelFile(path.name, f"no tensor {error}", EXPECTED) from error
    with unfilled():
        network = PhotoMaker(config)
    exact = (*EXACT, *ALSO_EXACT)
    fill(network, file, names, lambda name: torch.float32 if name.startswith(exact) else dtype, to=to)
    return network


def _encoder_file(path: Path) -> WeightFile:
    """Return the tensors of the encoder. The published file is a pickle that holds a LoRA beside it."""
    if not is_pickled(path):
        return open_weights(path)
    content = read_pickle(path)
    encoder = content.get(ENCODER, content) if isinstance(content, Mapping) else None
    if not isinstance(encoder, Mapping):
        raise BadModelFile(path.name, "a pickle without named tensors", EXPECTED)
    return ChangedTensors(path, {key: item for key, item in encoder.items() if isinstance(item, torch.Tensor)}, {})
