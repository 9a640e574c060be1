"""Nodes that calculate: expressions over numbers, sizes from a ratio."""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Out, Socket
from darkroom.engine.nodes.parameters import Field, Growing
from darkroom.engine.nodes.widgets import Combo, Float, Int, Text

VERSION = "0.30.0"
CATEGORY = "utilities"
MAX_EXPONENT = 4000
RATIOS = {
    "1:1 (Square)": (1, 1),
    "2:3 (Portrait Photo)": (2, 3),
    "3:2 (Photo)": (3, 2),
    "3:4 (Portrait Standard)": (3, 4),
    "4:3 (Standard)": (4, 3),
    "9:16 (Portrait Widescreen)": (9, 16),
    "16:9 (Widescreen)": (16, 9),
    "21:9 (Ultrawide)": (21, 9),
}
PIXELS_PER_MEGAPIXEL = 1024 * 1024

Number = float | int | bool


def _sum(*values: Any) -> Any:
    """Add numbers, given one by one or as one list."""
    only = values[0] if len(values) == 1 else None
    return sum(only if isinstance(only, Iterable) else values)


def _power(base: Any, exponent: Any) -> Any:
    """Raise to a power. Raises ValueError for an exponent whose result would take too much memory and time."""
    if abs(exponent) > MAX_EXPONENT:
        raise ValueError(f"expression: exponent {exponent} is too large; expected at most {MAX_EXPONENT}")
    return base**exponent


FUNCTIONS = {
    "sum": _sum, "min": min, "max": max, "abs": abs, "round": round, "pow": _power, "sqrt": math.sqrt,
    "ceil": math.ceil, "floor": math.floor, "log": math.log, "log2": math.log2, "log10": math.log10, "sin": math.sin,
    "cos": math.cos, "tan": math.tan, "int": int, "float": float,
}  # fmt: skip


@node("ComfyMathExpression", display_name="Math Expression", category=CATEGORY,
      python_module="comfy_extras.nodes_math", comfyui_version=VERSION)  # fmt: skip
def comfy_math_expression(
    context: NodeContext,
    *,
    expression: Annotated[str, Text(multiline=True)] = "a + b",
    values: Annotated[
        Mapping[str, Number],
        Growing(item=Field("value", Socket("FLOAT,INT,BOOLEAN")), names=tuple(string.ascii_lowercase), min=1),
    ],
) -> tuple[
    Annotated[float, Socket("FLOAT")], Annotated[int, Socket("INT")], Annotated[bool, Socket("BOOLEAN"), Out("BOOL")]
]:
    """Calculate an expression over the values, by their names; `values` is the list of all.

    Evaluated by simpleeval: arithmetic, comparisons and the functions above, no attributes, no other names. Raises
    ValueError for what is no such expression, or whose result is no finite number.
    """
    from simpleeval import InvalidExpression, simple_eval  # only here: a few milliseconds

    if not expression.strip():
        raise ValueError("expression: is empty; expected arithmetic over the values, like a + b")
    names: dict[str, Any] = {**values, "values": list(values.values())}
    try:
        result = simple_eval(expression, names=names, functions=FUNCTIONS)
        number = float(result) if isinstance(result, (int, float)) else math.nan
    except (InvalidExpression, ArithmeticError, SyntaxError, TypeError, ValueError) as error:
        raise ValueError(f"expression: {expression!r} cannot be calculated: {error}") from error
    if not math.isfinite(number):
        raise ValueError(f"expression: {expression!r} gives {result!r}; expected a finite number")
    return number, int(result), bool(result)


@node("ResolutionSelector", display_name="Resolution Selector", category=CATEGORY,
      python_module="comfy_extras.nodes_resolution", comfyui_version=VERSION, advanced=("multiple",))  # fmt: skip
def resolution_selector(
    context: NodeContext,
    *,
    aspect_ratio: Annotated[str, Combo(tuple(RATIOS))] = "1:1 (Square)",
    megapixels: Annotated[float, Float(min=0.1, max=16.0, step=0.1)] = 1.0,
    multiple: Annotated[int, Int(min=8, max=128, step=4)] = 8,
) -> tuple[Annotated[int, Socket("INT"), Out("width")], Annotated[int, Socket("INT"), Out("height")]]:
    """Return the size in pixels with that ratio and about that area, both sides multiples."""
    width, height = RATIOS[aspect_ratio]
    unit = math.sqrt(megapixels * PIXELS_PER_MEGAPIXEL / (width * height))
    return round(width * unit / multiple) * multiple, round(height * unit / multiple) * multiple


NODES = (comfy_math_expression, resolution_selector)
