"""Values that ComfyUI's page edits with a widget of its own: colours, boxes, curves, layers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from darkroom.contract.graph.spec import ValueDict
from darkroom.engine.nodes.base import NodeEnvironment
from darkroom.engine.nodes.widgets import Widget

HEX_COLOR = re.compile(r"#?([0-9a-fA-F]{6})")
WITHOUT_SOCKET: Final[Mapping[str, Any]] = {"socketless": True}


@dataclass(frozen=True)
class PageWidget(Widget):
    """A value of ComfyUI's type `kind`."""

    kind: str = ""

    def type_in(self, environment: NodeEnvironment) -> str:
        return self.kind

    def options(self) -> ValueDict:
        return dict(self.extra)


Color = Annotated[str, PageWidget("COLOR", extra=WITHOUT_SOCKET)]


def rgb_of(color: object) -> tuple[int, int, int] | None:
    """Return red, green and blue of `#RRGGBB`, 0..255; None for anything else."""
    found = HEX_COLOR.fullmatch(color) if isinstance(color, str) else None
    if found is None:
        return None
    red, green, blue = bytes.fromhex(found[1])
    return red, green, blue
