"""Images that come with a workflow as `images: [{name, image}]`, put into the inputs that name them. Pure.

worker-comfyui's clients send them so: base64 with or without the prefix of a data URI, or an address.
"""

from __future__ import annotations

import base64
import binascii
import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

from darkroom.worker.json.values import JsonObject
from darkroom.worker.prompts.workflows.page_graph import is_page_format

CHECKED_LENGTH: Final = 1024 * 1024  # of base64, at a time; a multiple of four


class SentImagesInvalid(Exception):
    """Error for images that cannot be read. `details` is one text for each of them."""

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.details = tuple(details)


def read_images(images: Any) -> dict[str, str]:
    """Return data URIs, or addresses, by the images' names. Raises SentImagesInvalid."""
    if images is None:
        return {}
    is_list = isinstance(images, list) and all(
        isinstance(image, Mapping) and isinstance(image.get("name"), str) and isinstance(image.get("image"), str)
        for image in images
    )
    if not is_list:
        raise SentImagesInvalid("'images' must be a list of objects with 'name' and 'image' keys")
    uris, wrong = {}, []
    for image in images:
        if image["image"].lower().startswith(("http://", "https://")):  # fetched like any input
            uris[image["name"]] = image["image"]
            continue
        content = image["image"].partition(",")[2] if "," in image["image"] else image["image"]
        try:
            _check_base64("".join(content.split()))
        except (binascii.Error, ValueError) as error:
            wrong.append(f"Error decoding base64 for {image['name']}: {error}")
        uris[image["name"]] = f"data:{_media_type(image['name'])};base64,{content}"
    if wrong:
        raise SentImagesInvalid("Failed to upload one or more input images", wrong)
    return uris


def _check_base64(text: str) -> None:
    """Check base64 in pieces, so that other threads can run. Raises ValueError."""
    for start in range(0, len(text), CHECKED_LENGTH):
        base64.b64decode(text[start : start + CHECKED_LENGTH], validate=True)


def substitute_images(workflow: JsonObject, images: Mapping[str, str]) -> dict[str, Any]:
    """Return a copy of the workflow with the data of each image in the inputs that name it."""
    if is_page_format(workflow):
        return {**workflow, "nodes": [_with_images(node, images) for node in _nodes_of(workflow)]}
    filled: dict[str, Any] = {node_id: copy.copy(node) for node_id, node in workflow.items()}
    for node in filled.values():
        inputs = node.get("inputs") if isinstance(node, dict) else None
        if isinstance(inputs, Mapping):
            node["inputs"] = {
                name: images.get(value, value) if isinstance(value, str) else value for name, value in inputs.items()
            }
    return filled


def _nodes_of(page: JsonObject) -> list[Any]:
    nodes = page.get("nodes")
    return nodes if isinstance(nodes, list) else []


def _with_images(node: object, images: Mapping[str, str]) -> object:
    """Return a node of a page's workflow with the data of each image in place of its name."""
    values = node.get("widgets_values") if isinstance(node, Mapping) else None
    if not isinstance(node, Mapping) or not isinstance(values, list):
        return node
    filled = [images.get(value, value) if isinstance(value, str) else value for value in values]
    return {**node, "widgets_values": filled}


def _media_type(name: str) -> str:
    ending = name.rpartition(".")[2].lower()
    return {"jpg": "image/jpeg", "jpeg": "image/jpeg", "webp": "image/webp", "gif": "image/gif"}.get(
        ending, "image/png"
    )
