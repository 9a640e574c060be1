"""References: inputs of a prompt that name a file by URL or contain it inline. Pure.

Only inputs that take a file according to the engine's object_info are examined. A prompt text that begins with a URL is
a text.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from darkroom.contract.graph.facts import Facts
from darkroom.contract.graph.prompt_graph import PromptGraph
from darkroom.worker.json.values import JsonObject, object_at
from darkroom.worker.media.kinds import Media

Source = Literal["url", "s3", "data", "base64", "upload"]

INLINE: frozenset[Source] = frozenset({"data", "base64"})
"""Sources whose content is in the prompt itself."""

UPLOAD_PREFIX = "upload:"
_UPLOADED = re.compile(r"upload:[0-9a-f]{64}\.[a-z0-9]{1,8}")

# No file name is this long without a dot, and base64 has none. The beginning of a long text is enough.
_BASE64 = re.compile(r"[A-Za-z0-9+/_\-\s]{64,}={0,2}\s*")


@dataclass(frozen=True, slots=True)
class Reference:
    """A file that an input refers to. `value` is the value in the prompt; `media` is the kind that the input takes."""

    node_id: str
    input_name: str
    class_type: str
    source: Source
    media: Media
    value: str

    def __repr__(self) -> str:
        return f"Reference({self.node_id}.{self.input_name}, {self.source})"


def find_references(graph: PromptGraph) -> list[Reference]:
    """Find every reference of a prompt, in its order.

    Malformed nodes and unknown classes are skipped; the graph check reports them. So are files elsewhere that only
    nodes name which a switch leaves out: they are not fetched.
    """
    found = []
    for node_id, node in graph.prompt.items():
        if not isinstance(node, Mapping) or not isinstance(node.get("inputs"), Mapping):
            continue
        class_type = str(node.get("class_type"))
        for input_name, value in node["inputs"].items():
            source = source_of(value)
            media = media_of(graph.object_info, graph.facts, class_type, input_name) if source else None
            if source and media:
                found.append(Reference(str(node_id), str(input_name), class_type, source, media, value))
    left_out = graph.left_out if found else ()
    return [item for item in found if item.source in INLINE or item.node_id not in left_out]


def find_named(prompt: JsonObject, names: Collection[str], object_info: JsonObject) -> list[Reference]:
    """Find the inputs that take a file and whose value is one of the names of files that came with the request."""
    found, facts = [], Facts(object_info)
    for node_id, node in prompt.items():
        for input_name, value in object_at(node, "inputs").items():
            if isinstance(value, str) and value in names:
                class_type = str(object_at(node).get("class_type"))
                media = media_of(object_info, facts, class_type, input_name)
                if media is not None:
                    found.append(Reference(str(node_id), str(input_name), class_type, "upload", media, value))
    return found


def replace_references(prompt: JsonObject, files: Mapping[Reference, str]) -> dict[str, object]:
    """Copy the prompt with each reference replaced by the name of its file."""
    replaced = {node_id: copy.copy(node) for node_id, node in prompt.items()}
    for reference, name in files.items():
        node = object_at(replaced, reference.node_id)
        replaced[reference.node_id] = {**node, "inputs": {**object_at(node, "inputs"), reference.input_name: name}}
    return replaced


def source_of(value: object) -> Source | None:
    """Return the way in which a value refers to a file; None for an ordinary value, such as a file name."""
    if not isinstance(value, str):
        return None
    start = value[:8].lower()
    if start.startswith(("http://", "https://")):
        return "url"
    if start.startswith("s3://"):
        return "s3"
    if start.startswith("data:"):
        return "data"
    if start.startswith(UPLOAD_PREFIX) and _UPLOADED.fullmatch(value):
        return "upload"
    return "base64" if len(value) >= 64 and _BASE64.fullmatch(value[:4096]) else None


def media_of(object_info: JsonObject, facts: Facts, class_type: str, input_name: str) -> Media | None:
    """Return the kind of file that an input takes; None if it takes no file. `facts` are those of `object_info`."""
    for group in ("required", "optional"):
        spec = object_at(object_info, class_type, "input", group).get(input_name)
        if isinstance(spec, list | tuple) and len(spec) > 1 and isinstance(spec[1], Mapping):
            uploads = [key for key, value in spec[1].items() if key.endswith("_upload") and value]
            if uploads:
                return "image" if "image_upload" in uploads else "file"
    return facts.of(class_type).files.get(input_name)
