"""Opening of model files whose weights may be quantised, in any of the forms that are known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from darkroom.engine.formats.gguf_file import GgufFile
from darkroom.engine.formats.quantised.bitsandbytes import bitsandbytes
from darkroom.engine.formats.quantised.comfy_quant import comfy_quant
from darkroom.engine.formats.quantised.gguf_model import gguf_model
from darkroom.engine.formats.quantised.quantised_file import QuantisedFile
from darkroom.engine.formats.quantised.scaled_float8 import scaled_float8
from darkroom.engine.formats.refusals import refuses
from darkroom.engine.formats.weight_file import WeightFile, open_weights

FORMS: tuple[Callable[[WeightFile], QuantisedFile | None], ...] = (scaled_float8, comfy_quant, bitsandbytes)


@refuses("a file of weights")
def open_model(path: Path, arithmetic: torch.dtype | None = torch.float16) -> WeightFile:
    """Open a file of weights; quantised ones have the names and shapes of their values.

    `arithmetic` is the type that the values of GGUF blocks are computed in, None the one they are wanted in. Raises
    `BadModelFile`.
    """
    file = open_weights(path)
    if isinstance(file, GgufFile):
        return gguf_model(file, arithmetic)
    return next((found for form in FORMS if (found := form(file)) is not None), file)
