"""Events of a run, as frozen messages in the order in which they happened.

They are created on the GPU thread and passed to the server's event loop (`call_soon_threadsafe`), so they hold plain
data only: no tensor, no node object. `engine/server/websocket.py` turns them into ComfyUI's messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from darkroom.contract.graph.node_ref import NodeRef


@dataclass(frozen=True, slots=True)
class RunStarted:
    prompt_id: str
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class NodesCached:
    """Nodes of the prompt whose outputs are cached. Sent once, before the first node."""

    prompt_id: str
    node_ids: Sequence[str]
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class NodeStarted:
    prompt_id: str
    node: NodeRef


@dataclass(frozen=True, slots=True)
class NodeProgress:
    """Progress of a running node: `value` of `maximum` steps are done."""

    prompt_id: str
    node: NodeRef
    value: float
    maximum: float


@dataclass(frozen=True, slots=True)
class MemoryRelieved:
    """A memory-saving step after the device ran out of memory; the running node runs again.

    `step` is one of `caches`, `other_models`, `partial_load`, `tiled_vae`, `attention_slices`, or `split_batch`, which
    sampling takes by itself without running again. After one that `changes_arithmetic`, results may differ in their
    last digits from those with more memory.
    """

    prompt_id: str
    node: NodeRef
    step: str
    freed_bytes: int
    changes_arithmetic: bool


EncodedPreview = tuple[bytes, str] | tuple[bytes, str, bytes]
"""An image with its media type, and the animation that goes with it."""


@dataclass(frozen=True, slots=True)
class PreviewMade:
    """An encoded image of the unfinished latent. `media_type` is image/jpeg or image/png.

    `animation` is an animated WebP of all frames of a video, empty where none is wanted.
    """

    prompt_id: str
    node: NodeRef
    image: bytes
    media_type: str
    animation: bytes = b""


@dataclass(frozen=True, slots=True)
class NodeText:
    """Text from a running node, for clients to show with it."""

    prompt_id: str
    node: NodeRef
    text: str


@dataclass(frozen=True, slots=True)
class OutputReady:
    """Displayable output of a node (`ui` in ComfyUI): a map from kind of output to a list of items.

    Also sent for a cached output node, whose `output` is None when it has nothing to show.
    """

    prompt_id: str
    node: NodeRef
    output: Mapping[str, Any] | None
    is_cached: bool


@dataclass(frozen=True, slots=True)
class NodeFinished:
    prompt_id: str
    node: NodeRef


@dataclass(frozen=True, slots=True)
class NodeBlocked:
    """A node that did not run because an input blocks it, with a message for the client. The run continues.

    ComfyUI's clients receive it as `execution_error` of type `ExecutionBlocked`, without a timestamp. It is not in the
    history.
    """

    prompt_id: str
    node_id: str
    class_type: str
    executed: Sequence[str]
    message: str


@dataclass(frozen=True, slots=True)
class NodeWarned:
    """A part of a node's work that was left out, such as an embedding without a file. `type` is a stable code.

    Sent when the node is done, and for a cached node again.
    """

    prompt_id: str
    node_id: str
    class_type: str
    type: str
    message: str


@dataclass(frozen=True, slots=True)
class TuningUsed:
    """Strategies that a run with a requested quality used, and the reasons of those chosen but not used.

    `error` is their measured error: relative L2 of latents against the plain path.
    """

    prompt_id: str
    quality: str
    strategies: Sequence[str]
    unused: Mapping[str, str]
    error: float


@dataclass(frozen=True, slots=True)
class RunSaving:
    """All nodes have run, and only files of the last one are still being written. The device is free for another run.

    Later events of this run come from another thread than the GPU's.
    """

    prompt_id: str


@dataclass(frozen=True, slots=True)
class RunSucceeded:
    prompt_id: str
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class RunInterrupted:
    prompt_id: str
    node_id: str
    class_type: str
    executed: Sequence[str]
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class RunFailed:
    """Failure of a run.

    `code` is the error's stable code; clients of ComfyUI show the `exception_*`, `current_*` fields.
    """

    prompt_id: str
    node_id: str
    class_type: str
    executed: Sequence[str]
    code: str
    exception_type: str
    exception_message: str
    traceback: Sequence[str]
    current_inputs: Mapping[str, Any]
    current_outputs: Sequence[str]
    timestamp_ms: int


Event = (
    RunStarted
    | NodesCached
    | NodeStarted
    | NodeProgress
    | MemoryRelieved
    | PreviewMade
    | NodeText
    | OutputReady
    | NodeFinished
    | NodeBlocked
    | NodeWarned
    | TuningUsed
    | RunSaving
    | RunSucceeded
    | RunInterrupted
    | RunFailed
)
