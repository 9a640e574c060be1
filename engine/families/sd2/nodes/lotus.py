"""Conditioning of Lotus, which takes no prompt: what the text encoder of Stable Diffusion 2 returns for an empty one.

The numbers are in `lotus_prompt.f16.gz`: [2, 1024], float16, little-endian, for the tokens of start and end.
"""

from __future__ import annotations

import gzip
from functools import cache
from importlib.resources import files
from typing import Annotated

import numpy as np
import torch

from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.sockets import CONDITIONING

NUM_TOKENS, WIDTH = 2, 1024


@cache
def empty_prompt() -> torch.Tensor:
    """Return the tokens [1, 2, 1024], float32. They are shared: do not write to them."""
    packed = files(__package__).joinpath("lotus_prompt.f16.gz").read_bytes()
    numbers = np.frombuffer(gzip.decompress(packed), dtype="<f2").astype(np.float32)
    return torch.from_numpy(numbers).view(1, NUM_TOKENS, WIDTH)


@node(
    "LotusConditioning",
    display_name=None,
    category="model/conditioning/lotus",
    python_module="comfy_extras.nodes_lotus",
)
def lotus_conditioning(context: NodeContext) -> Annotated[CONDITIONING, Out("conditioning")]:
    return [[empty_prompt().clone(), {}]]


NODES = (lotus_conditioning,)
