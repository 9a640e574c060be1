"""Nodes that make lists of values and take them apart.

Between nodes every output is a list; a node that takes lists whole receives each input as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch

from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Matched, Out, Socket
from darkroom.engine.nodes.parameters import Field, Growing
from darkroom.engine.nodes.widgets import Int, Text

VERSION = "0.33.0"
LATER_VERSION = "0.46.0"
ITEMS_MODULE = "comfy_extras.nodes_toolkit"
SETS_MODULE = "comfy_extras.nodes_dataset"
ANY_SOCKET, IMAGE_SOCKET = Socket("*"), Socket("IMAGE")
ITEM = Matched("COMFY_MATCHTYPE_V3", template="type")


@node("CreateList", display_name="Create List", category="utilities", python_module=ITEMS_MODULE, input_is_list=True,
      is_input_list=True, comfyui_version=VERSION)  # fmt: skip
def create_list(
    context: NodeContext,
    *,
    inputs: Annotated[Mapping[str, Sequence[Any]], Growing(item=Field("input", ITEM), prefix="input", min=1, max=10)],
) -> Annotated[list[Any], ITEM, Out("list", is_list=True)]:
    """Join up to ten values or lists into one list."""
    return [item for values in inputs.values() for item in values]


@node("GetItemFromList", display_name="Get Item From List", category="utilities", python_module=ITEMS_MODULE,
      input_is_list=True, is_input_list=True, comfyui_version=LATER_VERSION)  # fmt: skip
def get_item_from_list(
    context: NodeContext,
    *,
    list: Annotated[Sequence[Any], ANY_SOCKET],
    index: Annotated[int, Int()] = 0,
) -> Annotated[object, ANY_SOCKET]:
    """Return the item of a list at an index from 0; negative ones count from the end.

    Raises ValueError for an index that the list does not have.
    """
    items = list if context.input_comes_as_list("list") else list[0]
    if not isinstance(items, Sequence):
        items = list  # one value that is no list: a list of one
    indexes: Any = index  # both inputs come as lists
    position = indexes[0]
    if not -len(items) <= position < len(items):
        raise ValueError(f"index: no such item; got {position}, expected less than the {len(items)} items of the list")
    return (items[position],)


@node("MergeImageLists", display_name="Merge Image Lists (DEPRECATED)", category="image/batch",
      python_module=SETS_MODULE, input_is_list=True, is_input_list=True, deprecated=True, experimental=True,
      comfyui_version=VERSION)  # fmt: skip
def merge_image_lists(
    context: NodeContext, *, images: Annotated[Sequence[torch.Tensor], IMAGE_SOCKET]
) -> Annotated[list[torch.Tensor], IMAGE_SOCKET, Out("images", is_list=True)]:
    """Return the images [B, H, W, C] of a list one by one, each [1, H, W, C]."""
    return single_images(images)


@node("MergeTextLists", display_name="Merge Text Lists (DEPRECATED)", category="text", python_module=SETS_MODULE,
      input_is_list=True, is_input_list=True, deprecated=True, experimental=True, comfyui_version=VERSION)  # fmt: skip
def merge_text_lists(
    context: NodeContext, *, texts: Annotated[Sequence[str], Text(multiline=False)]
) -> Annotated[list[list[str]], Socket("STRING"), Out("texts", is_list=None)]:
    """Return a list of texts within a list, as one value, as ComfyUI does."""
    return [list(texts)]


def single_images(images: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the images of batches [B, H, W, C] as batches of one."""
    return [image[None] for batch in images for image in batch]


NODES = (create_list, get_item_from_list, merge_image_lists, merge_text_lists)
