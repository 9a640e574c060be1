"""SVG: vector images, with the members that ComfyUI's custom nodes use."""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO


class Svg:
    """A list of SVG documents, each in a buffer of UTF-8."""

    def __init__(self, data: list[BytesIO]) -> None:
        self.data = data

    def combine(self, other: Svg) -> Svg:
        return type(self)([*self.data, *other.data])

    @classmethod
    def combine_all(cls, svgs: Iterable[Svg]) -> Svg:
        return cls([document for svg in svgs for document in svg.data])
