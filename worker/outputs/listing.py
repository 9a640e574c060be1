"""The list of what a run saved and showed, from a history entry's `outputs`. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from darkroom.worker.json.values import JsonObject

TEMPORARY = "temp"
SKIPPED_TYPES = frozenset({"preview"})  # no folder of the engine
FLAGS = frozenset({"animated", "unfinished_batch"})  # images are animated, a batch is not the last
LISTS_OF_WIDGETS = frozenset(
    {
        "compositor_bboxes", "compositor_inputs", "compositor_layers", "compositor_state_stale", "dims", "histogram",
        "input_bboxes",
    }
)  # fmt: skip
"""Lists that the widgets of ComfyUI's page read, of what goes into a node."""

SKIPPED_LISTS = FLAGS | LISTS_OF_WIDGETS

LISTED_AGAIN = {"images": "files", "result": "3d"}
"""Lists whose files are in another list of the same node as well: `result` is what the page's 3D viewer reads."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file that a node reports as saved. `output_type` is the name of the list that contains it."""

    node_id: str
    output_type: str
    filename: str
    subfolder: str
    kind: str


@dataclass(frozen=True, slots=True)
class InlineOutput:
    """A text or another JSON value that a node shows, in the list `output_type`."""

    node_id: str
    output_type: str
    value: Any

    @property
    def content(self) -> str:
        return self.value if isinstance(self.value, str) else json.dumps(self.value)

    def as_record(self) -> dict[str, object]:
        """Return the output record, with the fields of a file record left empty for clients that always read them."""
        is_text = isinstance(self.value, str)
        return {
            "filename": "",
            "local_path": "",
            "subfolder": "",
            "type": "text" if is_text else "value",
            "node_id": self.node_id,
            "output_type": self.output_type,
            "text" if is_text else "value": self.value,
        }


def listed_outputs(outputs: Mapping[str, JsonObject]) -> list[ListedFile | InlineOutput]:
    """List everything in a history entry's `outputs`, whatever the list's name.

    Temporary files are left out, unless no node saved any other: then they are what the workflow is for.
    """
    listed = [item for node_id, shown in outputs.items() for item in _listed_by(str(node_id), shown)]
    is_saved = any(isinstance(item, ListedFile) and item.kind != TEMPORARY for item in listed)
    return [item for item in listed if not (is_saved and isinstance(item, ListedFile) and item.kind == TEMPORARY)]


def _listed_by(node_id: str, shown: JsonObject) -> Iterator[ListedFile | InlineOutput]:
    for output_type, items in shown.items():
        is_listed_twice = bool(shown.get(LISTED_AGAIN.get(output_type, "")))
        if not isinstance(items, list) or output_type in SKIPPED_LISTS or is_listed_twice:
            continue
        for item in items:
            if not isinstance(item, Mapping) or "filename" not in item:
                if item is not None:
                    yield InlineOutput(node_id, output_type, item)
                continue
            kind = str(item.get("type") or "output")
            if isinstance(item["filename"], str) and item["filename"] and kind not in SKIPPED_TYPES:
                yield ListedFile(node_id, output_type, item["filename"], str(item.get("subfolder") or ""), kind)
