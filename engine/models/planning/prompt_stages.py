"""Stages of a prompt: the nodes that compute with a model, and the files that it is loaded from. Pure.

A node that takes CLIP and returns CONDITIONING encodes text, one that takes a MODEL (itself, or in a GUIDER) and
returns a LATENT samples, one that takes a VAE and returns an IMAGE or LATENT decodes or encodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from darkroom.contract.graph.facts import NO_FACTS
from darkroom.contract.graph.model_inputs import folders_by_input
from darkroom.contract.graph.prompt import Node, Prompt, is_link
from darkroom.contract.graph.spec import NodeRules
from darkroom.engine.memory.timeline import StageKind

FindRules = Callable[[str], NodeRules | None]
MAX_STAGES = 200

# What a stage takes, through which types its model is passed on, and what it returns.
STAGES: Mapping[StageKind, tuple[str, frozenset[str], frozenset[str]]] = {
    "text_encoder": ("CLIP", frozenset({"CLIP"}), frozenset({"CONDITIONING"})),
    "network": ("MODEL", frozenset({"MODEL", "GUIDER"}), frozenset({"LATENT"})),
    "vae": ("VAE", frozenset({"VAE"}), frozenset({"IMAGE", "LATENT"})),
}
STAGE_FOLDERS: Mapping[str, str] = {
    **{name: name for name in ("text_encoders", "checkpoints", "diffusion_models", "vae")},
    "clip_gguf": "text_encoders",
    "unet_gguf": "diffusion_models",
}
"""Kinds of files of networks that compute in a stage, and the folder that each kind's files lie in."""


@dataclass(frozen=True, slots=True)
class PromptStage:
    """A node that computes with the model of `files` (folder, name); more than one for sets of text encoders."""

    node_id: str
    class_type: str
    kind: StageKind
    files: tuple[tuple[str, str], ...]


def stages_of(prompt: Prompt, find_rules: FindRules) -> list[PromptStage]:
    """Return the stages of a prompt in an order in which it can run. Nodes of unknown classes are passed over."""
    rules = {node.class_type: find_rules(node.class_type) for node in prompt.values()}
    found = (_stage(node, prompt, rules) for node in _in_order(prompt))
    return [stage for stage in found if stage is not None][:MAX_STAGES]


def _in_order(prompt: Prompt) -> Iterator[Node]:
    """Yield every node after those that it takes results of."""
    seen: set[str] = set()
    for root in prompt:
        stack = [(root, False)]
        while stack:
            node_id, is_done = stack.pop()
            if is_done:
                yield prompt[node_id]
            elif node_id in prompt and node_id not in seen:
                seen.add(node_id)
                stack.append((node_id, True))
                stack.extend((link.source, False) for link in reversed(prompt[node_id].links))


def _stage(node: Node, prompt: Prompt, rules: Mapping[str, NodeRules | None]) -> PromptStage | None:
    own = rules[node.class_type]
    if own is None or not _file_inputs(own).keys().isdisjoint(node.inputs):
        return None
    given = {str(item) for item in own.output_types}
    for kind, (_, through, returned) in STAGES.items():
        if given & returned:
            files = files_behind(node, through, prompt, rules)
            if files:
                return PromptStage(node.id, node.class_type, kind, files)
    return None


def files_behind(
    node: Node, through: frozenset[str], prompt: Prompt, rules: Mapping[str, NodeRules | None]
) -> tuple[tuple[str, str], ...]:
    """Return the files (folder, name) at the end of a node's links of these types; none where they come from none."""
    seen: set[str] = set()
    while node.id not in seen:
        seen.add(node.id)
        own = rules.get(node.class_type)
        named = _named(node, own)
        if named and len(seen) > 1:
            return named
        links = [] if own is None else _links(node, through, own)
        source = next((prompt[item] for item in links if item in prompt), None)
        if source is None:
            return ()
        node = source
    return ()


def _links(node: Node, through: frozenset[str], rules: NodeRules) -> list[str]:
    declared = {spec.name: str(spec.type) for spec in rules.declared}
    return [value[0] for name, value in node.inputs.items() if is_link(value) and declared.get(name) in through]


def _file_inputs(rules: NodeRules | None) -> dict[str, str]:
    """Return the folders of networks that compute, by the input of a class that names their files."""
    declared = folders_by_input(NO_FACTS if rules is None else rules.facts)
    return {name: STAGE_FOLDERS[kind] for name, kind in declared.items() if kind in STAGE_FOLDERS}


def _named(node: Node, rules: NodeRules | None) -> tuple[tuple[str, str], ...]:
    inputs: Mapping[str, object] = node.inputs
    found: Sequence[tuple[str, str]] = [
        (folder, value) for name, folder in _file_inputs(rules).items() if isinstance(value := inputs.get(name), str)
    ]
    return tuple(found)
