"""Nodes that hold a seed, and that make numbers of other values."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Annotated

from darkroom.contract.graph.spec import ValueDict
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Out, Socket
from darkroom.engine.nodes.sockets import FLOAT, INT
from darkroom.engine.nodes.widgets import Int

VERSION = "0.33.0"
MAX_NUMBER_CHARACTERS = 4000  # Python refuses to read whole numbers from about there on


@dataclass(frozen=True, slots=True)
class NumberSource(Socket):
    """A link to a number, a text or a flag, or one of them as a value."""

    type: str = "INT,FLOAT,STRING,BOOLEAN"

    def options(self) -> ValueDict:
        return {"display_name": "value"}


@node("SeedNode", display_name="Seed", category="utilities", python_module="comfy_extras.nodes_seed",
      comfyui_version=VERSION)  # fmt: skip
def seed_node(
    context: NodeContext,
    *,
    seed: Annotated[int, Int(min=0, max=sys.maxsize, extra={"control_after_generate": "fixed"})],
) -> Annotated[INT, Out("seed")]:
    return seed


@node("ComfyNumberConvert", display_name="Convert Number", category="utilities",
      python_module="comfy_extras.nodes_number_convert", comfyui_version=VERSION)  # fmt: skip
def comfy_number_convert(context: NodeContext, *, value: Annotated[float | str, NumberSource()]) -> tuple[FLOAT, INT]:
    """Return a number, a flag or a text as a float and as a whole number, without its fraction.

    Raises ValueError for a text that is no number and for one that is not finite, TypeError for any other value.
    """
    if isinstance(value, str):
        return _numbers_in(value)
    if not isinstance(value, (bool, int, float)):
        raise TypeError(f"value: no number; got {type(value).__name__}, expected a number, a text or a flag")
    return _finite(value), int(value)


def _numbers_in(text: str) -> tuple[float, int]:
    stripped = text.strip()
    shown = repr(stripped[:100])
    if len(stripped) > MAX_NUMBER_CHARACTERS:
        raise ValueError(f"value: too long; got {len(stripped)} characters, expected at most {MAX_NUMBER_CHARACTERS}")
    try:
        number = float(stripped)
    except ValueError:
        raise ValueError(f"value: no number; got {shown}, expected a text such as 3 or 0.5") from None
    number = _finite(number)
    try:
        return number, int(stripped)  # all digits, of which a float keeps sixteen
    except ValueError:
        return number, int(number)


def _finite(value: float) -> float:
    """Return a number as a float. Raises ValueError for one that is not finite or beyond the range of floats."""
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"value: not finite; got {number}, expected a number within the range of floats")
    return number


NODES = (seed_node, comfy_number_convert)
