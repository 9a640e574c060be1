"""Events of a run as ComfyUI's WebSocket messages. Pure.

A message is its `type` and `data`; binary ones (previews, texts) are bytes. `progress_state` is not here: it sums up
many events, see `progress.py`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from darkroom.contract.graph.node_ref import NodeRef
from darkroom.engine.events import (
    Event,
    MemoryRelieved,
    NodeProgress,
    NodesCached,
    NodeStarted,
    NodeText,
    NodeWarned,
    OutputReady,
    PreviewMade,
    RunFailed,
    RunInterrupted,
    RunSaving,
    RunStarted,
    RunSucceeded,
    TuningUsed,
)

Message = tuple[str, Mapping[str, Any]]

PREVIEW_IMAGE, TEXT, PREVIEW_IMAGE_WITH_METADATA = 1, 3, 4
IMAGE_FORMATS = {"image/jpeg": 1, "image/png": 2}

RUN_ENDS = frozenset({"execution_success", "execution_interrupted", "execution_error"})
MEMORY_RELIEVED = "memory_relieved"  # ours: what was done because a node ran out of memory
NODE_WARNING = "node_warning"  # ours: what of a node's work was left out
TUNING_USED = "tuning_used"  # ours: which strategies drew the images of a prompt that named a quality
IN_HISTORY = RUN_ENDS | {"execution_start", "execution_cached", MEMORY_RELIEVED, NODE_WARNING, TUNING_USED}


def encode(message: Message) -> str:
    return json.dumps({"type": message[0], "data": message[1]})


def message_of(event: Event) -> Message | None:
    """Return the message of an event; None for those that show only in `progress_state` or as binary."""
    match event:
        case RunStarted(prompt_id, timestamp):
            return "execution_start", {"prompt_id": prompt_id, "timestamp": timestamp}
        case NodesCached(prompt_id, node_ids, timestamp):
            return "execution_cached", {"nodes": list(node_ids), "prompt_id": prompt_id, "timestamp": timestamp}
        case NodeStarted(prompt_id, node):
            return "executing", {"node": node.node_id, "display_node": node.display_node_id, "prompt_id": prompt_id}
        case NodeProgress(prompt_id, node, value, maximum):
            return "progress", {"value": value, "max": maximum, "prompt_id": prompt_id, "node": node.node_id}
        case MemoryRelieved(prompt_id, node, step, freed_bytes, changes_arithmetic):
            told = {"step": step, "freed_bytes": freed_bytes, "changes_arithmetic": changes_arithmetic}
            return MEMORY_RELIEVED, {"prompt_id": prompt_id, "node": node.node_id, **told}
        case NodeWarned(prompt_id, node_id, class_type, code, message):
            warned = {"node_id": node_id, "node_type": class_type, "type": code, "message": message}
            return NODE_WARNING, {"prompt_id": prompt_id, **warned}
        case TuningUsed(prompt_id, quality, strategies, unused, error):
            used = {"quality": quality, "strategies": list(strategies), "unused": dict(unused), "error": error}
            return TUNING_USED, {"prompt_id": prompt_id, **used}
        case OutputReady(prompt_id, node, output, _):
            shown = {"node": node.node_id, "display_node": node.display_node_id, "output": output}
            return "executed", {**shown, "prompt_id": prompt_id}
        case RunSucceeded(prompt_id, timestamp):
            return "execution_success", {"prompt_id": prompt_id, "timestamp": timestamp}
        case RunInterrupted(prompt_id, node_id, class_type, executed, timestamp):
            where = {"prompt_id": prompt_id, "node_id": node_id, "node_type": class_type}
            return "execution_interrupted", {**where, "executed": list(executed), "timestamp": timestamp}
        case RunFailed():
            return "execution_error", _failure(event)
    return None


def _failure(event: RunFailed) -> dict[str, object]:
    return {
        "prompt_id": event.prompt_id,
        "node_id": event.node_id,
        "node_type": event.class_type,
        "executed": list(event.executed),
        "exception_message": event.exception_message,
        "exception_type": event.exception_type,
        "traceback": list(event.traceback),
        "current_inputs": event.current_inputs,
        "current_outputs": list(event.current_outputs),
        "timestamp": event.timestamp_ms,
        "code": event.code,
    }


def status(remaining: int, sid: str | None = None) -> Message:
    """Report the length of the queue; with the client's id only in the first message of a connection."""
    data: dict[str, Any] = {"status": queue_info(remaining)}
    return "status", data if sid is None else {**data, "sid": sid}


def queue_info(remaining: int) -> dict[str, object]:
    return {"exec_info": {"queue_remaining": remaining}}


def saving(event: RunSaving) -> Message:
    """Return our own message for clients that asked for it: the prompt's nodes have run, and the next prompt may."""
    return "darkroom_saving", {"prompt_id": event.prompt_id}


def run_over(prompt_id: str) -> Message:
    """Return the last message of every run: no node is executing any more."""
    return "executing", {"node": None, "prompt_id": prompt_id}


def node_progress(prompt_id: str, node: NodeRef, state: str, value: float, maximum: float) -> dict[str, object]:
    """Return one node's part of `progress_state`."""
    return {
        "value": value,
        "max": maximum,
        "state": state,
        "node_id": node.node_id,
        "prompt_id": prompt_id,
        "display_node_id": node.display_node_id,
        "parent_node_id": node.parent_node_id,
        "real_node_id": node.real_node_id,
    }


def preview(event: PreviewMade, *, with_metadata: bool) -> bytes:
    """Encode a preview as binary message: ComfyUI's older form (type 1), or the one that names its node (type 4).

    The older form has no number for WebP, so an animation goes out in the other one alone.
    """
    if not with_metadata:
        return struct.pack(">II", PREVIEW_IMAGE, IMAGE_FORMATS[event.media_type]) + event.image
    metadata = {
        "node_id": event.node.node_id,
        "prompt_id": event.prompt_id,
        "display_node_id": event.node.display_node_id,
        "parent_node_id": event.node.parent_node_id,
        "real_node_id": event.node.real_node_id,
        "image_type": "image/webp" if event.animation else event.media_type,
    }
    encoded = json.dumps(metadata).encode()
    head = struct.pack(">II", PREVIEW_IMAGE_WITH_METADATA, len(encoded))
    return head + encoded + (event.animation or event.image)


def text(event: NodeText) -> bytes:
    """Encode words of a node as binary message (type 3)."""
    node_id = event.node.display_node_id.encode()  # of a loop's iterations: its start
    return struct.pack(">II", TEXT, len(node_id)) + node_id + event.text.encode()
