"""Blocks of transformers in the form in which custom nodes call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Control = dict[str, list[torch.Tensor | None]]  # outputs of a ControlNet: by the blocks' kind, one for each block
BlockFunction = Callable[[dict[str, Any]], dict[str, torch.Tensor]]


def two_stream_call(block: nn.Module) -> BlockFunction:
    """Return a block of text and image, modulated by a vector, as a function of its named inputs."""

    def original(args: dict[str, Any]) -> dict[str, torch.Tensor]:
        text, image = block(args["txt"], args["img"], args["vec"], args["transformer_options"])
        return {"txt": text, "img": image}

    return original
