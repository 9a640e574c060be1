"""The choices of SaveVideo: a container brings its codecs, a codec how to encode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from darkroom.engine.media.video_encoding import AUTO, AV1, COLOR_SPACES, H264, MKV, MP4, WEBM
from darkroom.engine.nodes.parameters import DynamicChoice, Field
from darkroom.engine.nodes.widgets import Combo, Float

RE_ENCODE = "re-encode"
QUALITIES = {H264: (23.0, 51.0), AV1: (30.0, 63.0)}  # default and largest `crf`

Choices = tuple[tuple[str, tuple[Field, ...]], ...]


def codecs(*names: str) -> Choices:
    """Return the choices of a codec: `auto`, and those of these names."""
    return ((AUTO, ()), *((name, (_encoding(name),)) for name in names))


def _encoding(codec: str) -> Field:
    default, largest = QUALITIES[codec]
    fields = (
        Field("crf", Float(min=0.0, max=largest, step=1.0), default),
        Field("color_space", Combo((AUTO, *COLOR_SPACES), extra={"display_name": "color space"}), AUTO),
    )
    marker = DynamicChoice(fields=((AUTO, ()), (RE_ENCODE, fields)), extra={"display_name": "encoding mode"})
    return Field("encoding", marker, is_optional=True)


FORMATS: Choices = (
    *((name, (Field("codec", DynamicChoice(fields=codecs(H264, AV1))),)) for name in (AUTO, MP4, MKV)),
    (WEBM, (Field("codec", DynamicChoice(fields=codecs(AV1))),)),
)


def chosen_encoding(codec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `save_to` that a codec's choice gives, those that are given."""
    encoding = codec.get("encoding") or {}
    space = encoding.get("color_space")
    given = {"crf": encoding.get("crf"), "color_space": None if space == AUTO else space}
    return {name: value for name, value in given.items() if value is not None}
