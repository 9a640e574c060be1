"""Trial of a pack's nodes: each is run once with made-up inputs, to find those that this engine cannot run.

A pack that loads may still ask for what the engine has not, and only when its nodes run. What is reported are missing
names, members and packages; a node that dislikes its made-up inputs is no failure. The caller runs this in a process
of its own, with folders of its own and without a network.
"""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from darkroom.contract.graph.spec import InputSpec
from darkroom.engine.events import Event, RunFailed
from darkroom.engine.nodes.base import NodeClass
from darkroom.engine.runtime.request import RunRequest, RunResult

CHECKPOINT = "trial.safetensors"
NODE_SECONDS = 30.0
MAX_DEPTH = 4  # nodes behind one another that make a made-up input
TRIED = "tried"

NO_ATTRIBUTE = re.compile(r"'?(?:type object )?'?(\w+)'? object has no attribute '(\w+)'")
NO_PACKAGE = re.compile(r"No module named '([^']+)'")

# Nodes that make a value of a type, with their inputs; a name of a type is a link to its node.
MAKERS: Mapping[str, tuple[str, int, Mapping[str, Any]]] = {
    "MODEL": ("CheckpointLoaderSimple", 0, {"ckpt_name": CHECKPOINT}),
    "CLIP": ("CheckpointLoaderSimple", 1, {"ckpt_name": CHECKPOINT}),
    "VAE": ("CheckpointLoaderSimple", 2, {"ckpt_name": CHECKPOINT}),
    "CONDITIONING": ("CLIPTextEncode", 0, {"text": "a (red:1.2) fox", "clip": "CLIP"}),
    "LATENT": ("EmptyLatentImage", 0, {"width": 64, "height": 64, "batch_size": 1}),
    "IMAGE": ("EmptyImage", 0, {"width": 64, "height": 64, "batch_size": 1, "color": 8421504}),
    "MASK": ("SolidMask", 0, {"value": 1.0, "width": 64, "height": 64}),
    "SAMPLER": ("KSamplerSelect", 0, {"sampler_name": "euler"}),
    "NOISE": ("RandomNoise", 0, {"noise_seed": 1}),
    "SIGMAS": ("BasicScheduler", 0, {"model": "MODEL", "scheduler": "normal", "steps": 2, "denoise": 1.0}),
    "GUIDER": ("BasicGuider", 0, {"model": "MODEL", "conditioning": "CONDITIONING"}),
    "*": ("EmptyImage", 0, {"width": 64, "height": 64, "batch_size": 1, "color": 0}),
}
NEUTRAL: Mapping[str, Any] = {"INT": 1, "FLOAT": 1.0, "STRING": "a red fox", "BOOLEAN": False}
OPENS_SOCKET = "a trial has no network"

Prompt = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class NodeTrials:
    """Outcome for the nodes of a pack: those tried, why some failed, and what others need that is not there."""

    tried: Sequence[str]
    failed: Mapping[str, str]
    untried: Mapping[str, str]


class NotMakeable(Exception):
    """An input for which no value can be made up."""


def try_nodes(engine: Any, class_types: Sequence[str], note: Callable[[NodeTrials], None]) -> NodeTrials:
    """Run each of these nodes once. `note` gets the outcome so far, in which the node that runs counts as failed."""
    tried: list[str] = []
    failed: dict[str, str] = {}
    untried: dict[str, str] = {}
    with no_network():
        for class_type in class_types:
            note(NodeTrials(tried, {**failed, class_type: "it ends the process, or takes too long"}, untried))
            try:
                prompt = _Prompts(engine, class_types).prompt_of(class_type)
            except NotMakeable as reason:
                untried[class_type] = str(reason)
                continue
            except Exception as error:  # noqa: BLE001 - the declaration of a pack's node
                failed[class_type] = f"its declaration fails: {type(error).__name__}: {error}"
                continue
            tried.append(class_type)
            lack = _run(engine, prompt)
            if lack is not None:
                failed[class_type] = lack
    found = NodeTrials(tried, failed, untried)
    note(found)
    return found


def _run(engine: Any, prompt: Prompt) -> str | None:
    """Run a prompt's node `tried`; return why it failed where that is for want of something, else None."""
    events: list[Event] = []
    try:
        result: RunResult = engine.submit(RunRequest(TRIED, prompt, (TRIED,)), events.append).result(NODE_SECONDS)
    except TimeoutError:
        engine.interrupt()
        return None
    if result.status != "error":
        return None
    failures = [event for event in events if isinstance(event, RunFailed)]
    return next((lack for event in failures if (lack := lack_of(event)) is not None), None)


def lack_of(failed: RunFailed) -> str | None:
    """Return the missing name that a failed node asked for, None for a failure of another kind."""
    message = failed.exception_message.strip()
    kind = failed.exception_type.rpartition(".")[2]
    if kind == "NotSupported" or failed.code == "not_supported":
        return message
    package = NO_PACKAGE.search(message)
    if kind in ("ModuleNotFoundError", "ImportError") and package is not None:
        return f"it needs the Python package {package[1]}"
    if kind == "ImportError":
        return message
    attribute = NO_ATTRIBUTE.search(message)
    if kind == "AttributeError" and attribute is not None and _is_ours(attribute[1]):
        return f"{attribute[1]} has no {attribute[2]}, which ComfyUI's may have"
    return None


def _is_ours(class_name: str) -> bool:
    """Return True for the name of a class of this engine's."""
    modules = [
        module for name, module in [*sys.modules.items()] if name.startswith("darkroom.engine.") and module is not None
    ]
    found = (vars(module).get(class_name) for module in modules)
    return any(isinstance(kind, type) and kind.__module__.startswith("darkroom.engine.") for kind in found)


class _Prompts:
    """Prompts that run one node, with nodes that make its inputs: the engine's, and others of its pack."""

    def __init__(self, engine: Any, class_types: Sequence[str]) -> None:
        self._engine = engine
        self._pack = class_types
        self._nodes: Prompt = {}
        self._links: dict[str, list[Any]] = {}

    def prompt_of(self, class_type: str) -> Prompt:
        """Return a prompt whose node `tried` is one of that class. Raises NotMakeable."""
        inputs = self._inputs(self._node(class_type), MAX_DEPTH)
        return {**self._nodes, TRIED: {"class_type": class_type, "inputs": inputs}}

    def _node(self, class_type: str) -> NodeClass:
        found: NodeClass = self._engine.catalogue[class_type]
        return found

    def _inputs(self, node: NodeClass, depth: int) -> dict[str, Any]:
        spec = node.spec(self._engine.environment)
        return {item.name: self._value(item, depth) for item in spec.section("required")}

    def _value(self, item: InputSpec, depth: int) -> Any:
        if item.options.get("default") is not None:
            return item.options["default"]
        if not isinstance(item.type, str):
            if not item.type:
                raise NotMakeable(f"{item.name} has no choice")
            return next(iter(item.type))
        kind = "".join(item.type)  # packs have types of text that is equal to any other
        if kind in NEUTRAL:
            value = NEUTRAL[kind]
            return max(value, item.options["min"]) if "min" in item.options and kind != "STRING" else value
        choices = item.options.get("options")
        if isinstance(choices, (list, tuple)) and choices:
            return choices[0]
        return self._link(kind, depth)

    def _link(self, wanted: str, depth: int) -> list[Any]:
        """Return a link to a node that gives a value of a type."""
        for kind in wanted.split(","):
            if kind in self._links:
                return self._links[kind]
            if kind in MAKERS:
                class_type, output, inputs = MAKERS[kind]
                given = {
                    name: self._link(value, depth) if isinstance(value, str) and value in MAKERS else value
                    for name, value in inputs.items()
                }
                return self._add(kind, class_type, given, output)
        if depth:
            for class_type in self._pack:
                spec = self._node(class_type).spec(self._engine.environment)
                slot = next((index for index, found in enumerate(spec.outputs) if found.type == wanted), None)
                if slot is None:
                    continue
                try:
                    return self._add(wanted, class_type, self._inputs(self._node(class_type), depth - 1), slot)
                except NotMakeable:
                    continue
        raise NotMakeable(f"it takes a {wanted}")

    def _add(self, kind: str, class_type: str, inputs: Mapping[str, Any], output: int) -> list[Any]:
        node_id = f"{class_type}-{len(self._nodes)}"
        self._nodes[node_id] = {"class_type": class_type, "inputs": dict(inputs)}
        self._links[kind] = [node_id, output]
        return self._links[kind]


@contextmanager
def no_network() -> Iterator[None]:
    """Let no socket of this process connect while the context is open."""

    def refuse(*arguments: object) -> NoReturn:
        raise OSError(OPENS_SOCKET)

    own = socket.socket.connect, socket.socket.connect_ex
    socket.socket.connect = refuse  # type: ignore[method-assign]
    socket.socket.connect_ex = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        socket.socket.connect, socket.socket.connect_ex = own  # type: ignore[method-assign]
