"""Inputs of SAM 3's node classes, whose labels are their names."""

from __future__ import annotations

from typing import Annotated, Any

import torch

from darkroom.contract.graph.spec import ValueDict
from darkroom.engine.images.packed_masks import TrackData
from darkroom.engine.media.frame_stream import FrameStream
from darkroom.engine.models.model import Model
from darkroom.engine.nodes.library.image.boxes import DEFAULT_BOX
from darkroom.engine.nodes.markers import Labelled, Optional, Streams
from darkroom.engine.nodes.page_widgets import WITHOUT_SOCKET, PageWidget
from darkroom.engine.nodes.sockets import Conditioning
from darkroom.engine.nodes.widgets import Text


def labelled(name: str, **others: object) -> ValueDict:
    """Return the options of a widget whose label is its name."""
    return {"display_name": name, **others}


def coordinates(name: str) -> Text:
    """Return the widget of points as JSON."""
    return Text(multiline=False, extra=labelled(name, forceInput=True))


ModelInput = Annotated[Model, Labelled("MODEL", "model")]
ImageInput = Annotated[torch.Tensor, Labelled("IMAGE", "image")]
VideoInput = Annotated[torch.Tensor | FrameStream, Labelled("IMAGE", "images"), Streams()]
MaskInput = Annotated[torch.Tensor | None, Labelled("MASK", "initial_mask"), Optional()]
TextInput = Annotated[Conditioning | None, Labelled("CONDITIONING", "conditioning"), Optional()]
TrackInput = Annotated[TrackData, Labelled("SAM3_TRACK_DATA", "track_data")]
PositivePoints = Annotated[str | None, coordinates("positive_coords"), Optional()]
NegativePoints = Annotated[str | None, coordinates("negative_coords"), Optional()]
Boxes = Annotated[
    Any,
    PageWidget("BOUNDING_BOX", extra=labelled("bboxes", **WITHOUT_SOCKET, forceInput=True, default=dict(DEFAULT_BOX))),
    Optional(),
]
