"""Annotations of the inputs that links supply or the engine fills in, and of outputs."""

from __future__ import annotations

from dataclasses import dataclass

from darkroom.contract.graph.spec import ANY_TYPE, ValueDict


@dataclass(frozen=True, slots=True)
class Socket:
    """A value that only a link can supply; `type` is ComfyUI's type name."""

    type: str

    def options(self) -> ValueDict:
        return {}


@dataclass(frozen=True, slots=True)
class Labelled(Socket):
    """A link whose input has a label beside its name."""

    label: str = ""

    def options(self) -> ValueDict:
        return {"display_name": self.label}


@dataclass(frozen=True, slots=True)
class Matched(Socket):
    """A link of any of the `allowed` types (all: `*`), the same as at the other sockets with this template's name."""

    template: str = ""
    allowed: tuple[str, ...] = (ANY_TYPE,)

    def options(self) -> ValueDict:
        return {"template": {"template_id": self.template, "allowed_types": ",".join(self.allowed)}}


@dataclass(frozen=True, slots=True)
class Optional:
    """Marker of an input that the prompt may leave out."""


@dataclass(frozen=True, slots=True)
class Lazy:
    """Marker of an input that is computed only when the node requests it."""


@dataclass(frozen=True, slots=True)
class Streams:
    """Marker of an input that takes a result in pieces too."""


@dataclass(frozen=True, slots=True)
class Unfollowed:
    """Marker of an input that receives its link itself; what the link leads to does not run for it."""


@dataclass(frozen=True, slots=True)
class Hidden:
    """An input that the engine fills in: `PROMPT`, `EXTRA_PNGINFO`, `UNIQUE_ID`, `DYNPROMPT`."""

    type: str


@dataclass(frozen=True, slots=True)
class Out:
    """Marker that gives an output a name other than its type, or makes it a list.

    None is the value of ComfyUI's nodes that return a list as one value: no list between nodes.
    """

    name: str | None = None
    is_list: bool | None = False
