"""Parts of one prompt that several engines can run at the same time, for the results of one run. Pure.

A prompt with several images is split in one of two ways. By `outputs`: every part runs some of the output nodes, with
all that they need, so each image has the bits of the whole run. By `batch`: the one latent that creates a batch is
cut, and each part runs some items of it. An item has the same noise in every batch, but a processor rounds the last
bits of wide and narrow batches differently. Each way knows which nodes allow it; any other prompt is run whole, with
the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from darkroom.contract.graph.prompt_graph import PromptGraph
from darkroom.contract.graph.work import PromptWork
from darkroom.worker.json.values import JsonObject, object_at

MAX_OUTPUTS: Final = 256
"""The most output nodes of a prompt that is split: each is followed through the graph."""

MAX_FOLLOWED: Final = 200_000
"""The most outputs times nodes of a prompt that is split."""

MAX_BATCH: Final = 64
"""The most items that LatentFromBatch addresses."""

NOISE_PX: Final = 16
"""Sides that are multiples of it have the same noise drawn item by item as drawn at once."""

PACKS: Final = "custom_nodes"
"""First part of the module of a class from a node pack."""

BATCH_NUMBER: Final = "%batch_num%"


@dataclass(frozen=True, slots=True)
class PromptPart:
    """The output nodes that one engine runs, and all nodes that they need."""

    prompt: JsonObject
    targets: tuple[str, ...]
    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class PromptSplit:
    """Parts of a prompt, the first one with everything that is not worth a part. `reason` if there is only one.

    `by_item` are the nodes that show a part of a batch in every part.
    """

    parts: tuple[PromptPart, ...] = ()
    by: Literal["outputs", "batch"] | None = None
    reason: str = ""
    by_item: frozenset[str] = frozenset()


def split_prompt(prompt: JsonObject, object_info: JsonObject, max_parts: int, *, may_round: bool) -> PromptSplit:
    """Return the parts of a prompt for up to `max_parts` engines. `may_round` allows splits by batch."""
    graph = _Graph(prompt, object_info)
    work = PromptWork(prompt, object_info)
    costs = {item.node_id: (item.steps or 0.0) * item.size.sampled_pixels for item in work.samplings}
    batches = next((node_id for node_id in prompt if graph.facts_of(node_id).queues_again), None)
    if batches is not None:
        return PromptSplit(reason=f"node {batches} goes on in prompts of its own")
    targets = [node_id for node_id in prompt if graph.is_output(node_id)]
    if len(targets) > MAX_OUTPUTS:
        return PromptSplit(reason=f"more than {MAX_OUTPUTS} outputs")
    if len(targets) * len(prompt) > MAX_FOLLOWED:
        return PromptSplit(reason=f"{len(targets)} outputs of {len(prompt)} nodes are too many to be followed")
    groups = _groups(graph, targets, costs)
    if not groups:
        return PromptSplit(reason="no output needs a node that samples")
    if len(groups) > 1:
        return _by_outputs(graph, targets, groups, costs, max_parts)
    if not may_round:
        return PromptSplit(reason="all outputs come from one sampling; quality `exact` keeps its batch whole")
    return _by_batch(graph, work, targets, max_parts)


class _Graph(PromptGraph):
    """A prompt's graph with the questions that its parts depend on."""

    def free_name(self, name: str) -> str:
        """Return the name, or one like it that no node has."""
        while name in self.prompt:
            name += "."
        return name

    def is_of_pack(self, node_id: str) -> bool:
        return str(self.declared(node_id).get("python_module", PACKS)).startswith(PACKS)

    def is_deterministic(self, sampler: object) -> bool:
        facts = self.facts.sampler(sampler) if isinstance(sampler, str) else None
        return facts is not None and facts.is_deterministic

    def cutter(self, type_name: str) -> str | None:
        """Return the class that takes some items of a batch of that type; None where the engine has none."""
        return next(
            (
                name
                for name in self.object_info
                if self.facts.of(name).cuts and object_at(self.object_info, name).get("output") == [type_name]
            ),
            None,
        )


def _groups(graph: _Graph, targets: list[str], costs: Mapping[str, float]) -> list[list[str]]:
    """Return the outputs that need a sampling, those together that share one, or that need each other."""
    groups: list[tuple[set[str], list[str]]] = []
    for target in targets:
        needed = graph.needed_by([target])
        if not needed & costs.keys():
            continue
        joined_nodes = {node_id for node_id in needed if node_id in costs or graph.is_output(node_id)}
        joined_targets = [target]
        others = []
        for nodes, members in groups:
            if nodes.isdisjoint(joined_nodes):
                others.append((nodes, members))
            else:
                joined_nodes |= nodes
                joined_targets = [*members, *joined_targets]
        groups = [*others, (joined_nodes, joined_targets)]
    return [members for _, members in groups]


def _by_outputs(
    graph: _Graph, targets: list[str], groups: list[list[str]], costs: Mapping[str, float], max_parts: int
) -> PromptSplit:
    """Spread the groups over parts of about the same cost: the dearest group first, to the cheapest part."""
    bins: list[tuple[float, list[str]]] = [(0.0, []) for _ in range(min(max_parts, len(groups)))]
    priced = [(sum(costs.get(node_id, 0.0) for node_id in graph.needed_by(group)), group) for group in groups]
    for cost, group in sorted(priced, key=lambda item: -item[0]):
        least = min(range(len(bins)), key=lambda number: bins[number][0])
        bins[least] = (bins[least][0] + cost, [*bins[least][1], *group])
    spread = {target for _, members in bins for target in members}
    bins[0] = (bins[0][0], [*bins[0][1], *(target for target in targets if target not in spread)])
    parts = []
    for _, members in bins:
        ordered = tuple(target for target in targets if target in members)
        parts.append(PromptPart(graph.prompt, ordered, graph.needed_by(ordered)))
    for node_id in graph.prompt:
        if graph.is_of_pack(node_id) and sum(node_id in part.nodes for part in parts) > 1:
            return PromptSplit(reason=f"outputs share node {node_id} ({graph.class_of(node_id)}) of a node pack")
    return PromptSplit(tuple(parts), "outputs")


def _by_batch(graph: _Graph, work: PromptWork, targets: list[str], max_parts: int) -> PromptSplit:
    """Cut the one batch of a prompt into parts of about the same number of items."""
    batches = [node_id for node_id in graph.node_ids if _batch_of(graph, node_id) > 1]
    if len(batches) != 1:
        return PromptSplit(reason=f"several batches: {batches}" if batches else "one sampling without a batch")
    creator = batches[0]
    size, below = _batch_of(graph, creator), graph.below(creator)
    reason = _whole_because(graph, work, creator, below)
    if reason:
        return PromptSplit(reason=reason)
    num_parts, first = min(max_parts, size), 0
    parts = []
    for number in range(num_parts):
        length = size // num_parts + (number < size % num_parts)
        ours = tuple(target for target in targets if target in below or number == 0)
        cut = _cut(graph, creator, first, length)
        parts.append(PromptPart(cut, ours, graph.needed_by(ours)))
        first += length
    return PromptSplit(tuple(parts), "batch", by_item=frozenset(below))


def _batch_of(graph: _Graph, node_id: str) -> int:
    """Return the number of items of the latent that a node creates; 1 for any other node."""
    size = graph.inputs(node_id).get("batch_size")
    is_latent = graph.declared(node_id).get("output") == ["LATENT"]
    return size if is_latent and isinstance(size, int) and not isinstance(size, bool) else 1


def _whole_because(graph: _Graph, work: PromptWork, creator: str, below: frozenset[str]) -> str:
    """Return the reason why a batch cannot be cut; empty if it can."""
    if graph.cutter("LATENT") is None or graph.is_of_pack(creator) or _batch_of(graph, creator) > MAX_BATCH:
        return f"the batch of node {creator} cannot be cut"
    for node_id in sorted(graph.needed_by([*below]) - below - {creator}):
        if graph.facts_of(node_id).items != "alike":
            return f"node {node_id} ({graph.class_of(node_id)}) may belong to items of the batch"
    for node_id in sorted(below):
        class_type, inputs, facts = graph.class_of(node_id), graph.inputs(node_id), graph.facts_of(node_id)
        if facts.items != "alone":
            return f"node {node_id} ({class_type}) may use the batch as a whole"
        if BATCH_NUMBER in str(inputs.get("filename_prefix", "")):
            return f"node {node_id} names files by their place in the batch"
        if facts.sampler_input and not graph.is_deterministic(sampler := inputs.get(facts.sampler_input)):
            return f"sampler {sampler} of node {node_id} draws noise for the batch as a whole"
        size = work.sizes[node_id]
        sides = (size.width_px, size.height_px)
        if facts.sampler_input and any(side is None or side % NOISE_PX for side in sides):
            return f"the sides of node {node_id} are no multiples of {NOISE_PX} pixels"
    return ""


def _cut(graph: _Graph, creator: str, first: int, length: int) -> dict[str, object]:
    """Return the prompt with items `first` to `first + length` of a latent in the place of the whole one."""
    name = graph.free_name(f"{creator}.items")
    taken = {"samples": [creator, 0], "batch_index": first, "length": length}
    cutter = {"class_type": graph.cutter("LATENT"), "inputs": taken}
    linked = {node_id: _relinked(node, creator, name) for node_id, node in graph.prompt.items()}
    return {**linked, name: cutter}


def _relinked(node: object, old: str, new: str) -> object:
    """Return a node with links to `new` in the place of those to `old`."""
    changed = {
        name: [new, *value[1:]] if isinstance(value, list) and value[:1] == [old] else value
        for name, value in object_at(node, "inputs").items()
    }
    return {**node, "inputs": changed} if isinstance(node, Mapping) else node
