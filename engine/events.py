"""What a run tells the outside, as frozen messages in the order in which they happened.

They are made on the GPU thread and carried to the server's event loop (`call_soon_threadsafe`), so they hold plain data
only: no tensor, no node object. `engine/server/websocket.py` turns them into ComfyUI's messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class NodeRef:
    """Which node of the graph a message is about.

    A node that another one expanded into has an id of its own; `display_node_id` is the node of the client's graph to
    show instead, `parent_node_id` the node that made it (None for the client's own), `real_node_id` its own id.
    """

    node_id: str
    display_node_id: str
    parent_node_id: str | None
    real_node_id: str

    @staticmethod
    def of(node_id: str) -> NodeRef:
        return NodeRef(node_id, node_id, None, node_id)


@dataclass(frozen=True, slots=True)
class RunStarted:
    prompt_id: str
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class NodesCached:
    """The nodes of the prompt whose outputs are known from before. Sent once, before the first node."""

    prompt_id: str
    node_ids: Sequence[str]
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class NodeStarted:
    prompt_id: str
    node: NodeRef


@dataclass(frozen=True, slots=True)
class NodeProgress:
    """`value` of `maximum` steps of a running node are done."""

    prompt_id: str
    node: NodeRef
    value: float
    maximum: float


@dataclass(frozen=True, slots=True)
class MemoryRelieved:
    """The device had too little memory for a running node. A step was taken, and the node runs again.

    `step` is one of `caches`, `other_models`, `partial_load`, `tiled_vae`, `attention_slices`, or `split_batch`, which
    sampling takes by itself without running again. After one that `changes_arithmetic` results may differ in their last
    digits from those with more memory.
    """

    prompt_id: str
    node: NodeRef
    step: str
    freed_bytes: int
    changes_arithmetic: bool


@dataclass(frozen=True, slots=True)
class PreviewMade:
    """An encoded picture of the unfinished latent. `media_type` is image/jpeg or image/png."""

    prompt_id: str
    node: NodeRef
    image: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class NodeText:
    """What a running node has to say in words, for clients to show with it."""

    prompt_id: str
    node: NodeRef
    text: str


@dataclass(frozen=True, slots=True)
class NodeOutput:
    """A node has something to show (`ui` in ComfyUI): kind of output to a list of items.

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
    """A node did not run because an input blocks it, with a message for the client. The run goes on.

    ComfyUI's clients get it as `execution_error` of type `ExecutionBlocked`, without a timestamp; the history has not.
    """

    prompt_id: str
    node_id: str
    class_type: str
    executed: Sequence[str]
    message: str


@dataclass(frozen=True, slots=True)
class RunSaving:
    """All nodes have run; only files of the last one are still being written. The device is free for another run.

    What the run tells from here on comes from another thread than the GPU's.
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
    """`code` is the error's stable code; the `exception_*`, `current_*` fields are what ComfyUI's clients show."""

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
    | NodeOutput
    | NodeFinished
    | NodeBlocked
    | RunSaving
    | RunSucceeded
    | RunInterrupted
    | RunFailed
)
