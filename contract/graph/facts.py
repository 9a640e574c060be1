"""Facts of node classes and samplers, as those who read a prompt need them: what a node saves, repeats, or costs. Pure.

An engine of ours reports the facts that each class declares, in its entry of `/object_info` under `FACTS_KEY`. Of
ComfyUI's own classes they are known without it too (`known_facts.json`): for an engine that reports none, and where
none has answered yet. Of some classes that no engine of ours has they are written by hand (`other_facts.json`): those
of later versions of ComfyUI and of node packs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

FACTS_KEY: Final = "darkroom"
"""Key of the facts in a class's entry of `/object_info`."""

KNOWN_PATH: Final = Path(__file__).with_name("known_facts.json")
OTHERS_PATH: Final = Path(__file__).with_name("other_facts.json")
PACKS: Final = "custom_nodes"
"""First part of the module of a class from a node pack."""

FileKind = Literal["image", "latent", "file"]
Items = Literal["", "alone", "alike"]
LoopBoundary = Literal["", "start", "end"]


@dataclass(frozen=True, slots=True)
class SamplerFacts:
    """Evaluations of the network a step, None where the sampler decides; True if a batch can be sampled in parts."""

    evaluations_per_step: int | None
    is_deterministic: bool


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Declaration of a node class beyond its inputs and outputs. Names are those of its inputs."""

    models: Mapping[str, str] = field(default_factory=dict)
    """Folder below `models/`, by the input that names a file there."""

    files: Mapping[str, FileKind] = field(default_factory=dict)
    """Kind of file, by the input that names one of the input folder."""

    recorded: tuple[str, ...] = ()
    """Inputs whose file a script of ComfyUI's page records."""

    saves: str = ""
    """Input that names the files which the node saves in the output folder."""

    saved_by: str = ""
    """Class that saves what this one only sends to a WebSocket client."""

    tiled_by: str = ""
    """Class that does the same in tiles, with less memory."""

    reads_early: bool = False
    """True if it can read its model file while that is downloaded."""

    items: Items = ""
    """`alone`: each item of a batch has the result that it has alone. `alike`: the result holds for every item."""

    sampler: str = ""
    """Sampler that its SAMPLER stands for."""

    sampler_input: str = ""
    """Input that names a sampler."""

    samplers: Mapping[str, SamplerFacts] = field(default_factory=dict)
    """The samplers that the input may name, those that declare facts."""

    passes: int | None = None
    """Passes of the network in one evaluation by its GUIDER, where no `cfg` decides."""

    enlarges_by: str = ""
    """Input with the model by whose factor the result is larger."""

    repeats: str = ""
    """Input by whose number the result has more items."""

    cuts: str = ""
    """Input with the number of items that are left of a batch."""

    joins: Literal["", "items", "seconds", "sides"] = ""
    """Quantity that the inputs add up to: the items of a batch, the length of audio, or the sides of an image."""

    side_input: str = ""
    """Input with the side at which images are joined: `left`, `right`, `up`, `down`."""

    first_steps: str = ""
    """Input with the number of steps in the first of its two SIGMAS."""

    evaluates: bool = True
    """False for a node that takes sigmas without evaluating the network."""

    decodes: str = ""
    """Input with the LATENT that its VAE makes images of."""

    keeps_channels: bool = False
    """True if its LATENT has the channels of the one that it takes."""

    parts_streams: str = ""
    """Input with a LATENT of several streams, of which its first output is the first."""

    reads_images_with: str = ""
    """Family of the network that its MODEL has to be: one that reads images, with or without denoising."""

    reads_images_variant: str = ""
    """Variant of that family that the network has to be: its label, of one that denoises its name; empty: any."""

    needs_one_of: tuple[str, ...] = ()
    """Optional inputs of which it needs one."""

    random_family: str = ""
    """Input that names the family of the random weights of which it makes a model, without a file."""

    queues_again: bool = False
    """True if it counts all outputs of a prompt, and queues the prompt again when these are done."""

    loop: LoopBoundary = ""
    """`start` or `end` of a loop, whose body runs once an iteration."""

    chosen_by: str = ""
    """Input, true or false, that chooses which one of its `alternatives` is computed and returned."""

    alternatives: Mapping[str, str] = field(default_factory=dict)
    """Lazy inputs by the value that chooses them, `true` and `false`."""

    gives: str = ""
    """Input whose value it returns, unchanged."""

    bounded_by: str = ""
    """Input that the number which it returns does not exceed."""

    open: tuple[str, ...] = ()
    """Inputs that take other texts than those that are offered."""

    page_values: tuple[str, ...] = ()
    """Widgets that ComfyUI's page adds after those of the inputs; one whose name ends in `#` is there many times."""

    def joined(self, other: NodeFacts) -> NodeFacts:
        """Return these facts with those that the other has; entries of both for what is known by input."""
        return replace(self, **{name: _merged(getattr(self, name), value) for name, value in _told(other)})

    def as_json(self) -> dict[str, object]:
        """Return the facts that are there by name, as `/object_info` has them."""
        return {name: _json_of(value) for name, value in _told(self)}


NO_FACTS: Final = NodeFacts()


def read_facts(described: object) -> NodeFacts:
    """Read facts of `/object_info`, passing over those of no known name or kind."""
    if not isinstance(described, Mapping):
        return NO_FACTS
    given = ((item.name, described.get(item.name)) for item in fields(NodeFacts))
    read = ((name, _read(name, value)) for name, value in given if value is not None)
    return NodeFacts(**{name: value for name, value in read if value is not None})


def _read(name: str, value: object) -> Any:
    """Return a fact of that name; None for a value that is none."""
    default = getattr(NO_FACTS, name)
    if isinstance(default, Mapping) and isinstance(value, Mapping):
        if name == "samplers":
            return {str(key): facts for key, item in value.items() if (facts := _sampler_of(item)) is not None}
        return {str(key): str(item) for key, item in value.items()}
    if isinstance(default, tuple) and isinstance(value, list | tuple):
        return tuple(map(str, value))
    if default is None and isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    return value if isinstance(default, str | bool) and type(value) is type(default) else None


class Facts:
    """Facts of the node classes of one engine, by its `/object_info`; without that, of ComfyUI's own classes."""

    def __init__(self, object_info: Mapping[str, object] | None = None) -> None:
        self._object_info = object_info or {}
        self._read: dict[str, NodeFacts] = {}
        self._samplers: Mapping[str, SamplerFacts] | None = None

    def of(self, class_type: object) -> NodeFacts:
        """Return the facts of a class; none for an unknown one, and for one of a node pack that declares none."""
        if not isinstance(class_type, str):
            return NO_FACTS
        if class_type not in self._read:
            self._read[class_type] = self._find(class_type)
        return self._read[class_type]

    def sampler(self, name: str) -> SamplerFacts | None:
        """Return the facts of a sampler; None for one that declares none.

        They are those that the engine reports; of an engine that reports no sampler's, those known of ComfyUI's.
        """
        if self._samplers is None:
            self._samplers = _samplers_of(map(self.of, self._classes_with_samplers())) or known_samplers()
        return self._samplers.get(name)

    def _classes_with_samplers(self) -> Iterator[str]:
        for class_type, declared in self._object_info.items():
            reported = declared.get(FACTS_KEY) if isinstance(declared, Mapping) else None
            if isinstance(reported, Mapping) and "samplers" in reported:
                yield class_type

    def _find(self, class_type: str) -> NodeFacts:
        declared = self._object_info.get(class_type)
        if isinstance(declared, Mapping):
            if FACTS_KEY in declared:
                return _other_facts().get(class_type, NO_FACTS).joined(read_facts(declared[FACTS_KEY]))
            if str(declared.get("python_module") or "").startswith(PACKS):
                return _other_facts().get(class_type, NO_FACTS)
        return known_facts().get(class_type, NO_FACTS)


@cache
def known_facts() -> Mapping[str, NodeFacts]:
    """Return the facts that are known without an engine, by class."""
    return {**_other_facts(), **_facts_in(KNOWN_PATH)}


@cache
def _other_facts() -> Mapping[str, NodeFacts]:
    return _facts_in(OTHERS_PATH)


def _facts_in(path: Path) -> dict[str, NodeFacts]:
    described: dict[str, object] = json.loads(path.read_text("utf-8"))
    return {name: read_facts(facts) for name, facts in described.items()}


@cache
def known_samplers() -> Mapping[str, SamplerFacts]:
    """Return the facts of the samplers that come with ComfyUI, by name."""
    return _samplers_of(known_facts().values())


def _samplers_of(found: Iterable[NodeFacts]) -> dict[str, SamplerFacts]:
    return {name: facts for item in found for name, facts in item.samplers.items()}


def _sampler_of(described: object) -> SamplerFacts | None:
    if not isinstance(described, list | tuple) or len(described) != 2:
        return None
    evaluations, is_deterministic = described
    is_number = isinstance(evaluations, int) and not isinstance(evaluations, bool) and evaluations > 0
    return SamplerFacts(evaluations if is_number else None, is_deterministic is True)


def _told(facts: NodeFacts) -> Iterator[tuple[str, Any]]:
    """Yield the facts that differ from those of a class that declares none."""
    for item in fields(NodeFacts):
        value = getattr(facts, item.name)
        if value != getattr(NO_FACTS, item.name):
            yield item.name, value


def _merged(own: Any, other: Any) -> Any:
    return {**own, **other} if isinstance(own, Mapping) else other


def _json_of(value: Any) -> object:
    if isinstance(value, Mapping):
        return {name: _json_of(item) for name, item in value.items()}
    if isinstance(value, SamplerFacts):
        return [value.evaluations_per_step, value.is_deterministic]
    return list(value) if isinstance(value, tuple) else value
