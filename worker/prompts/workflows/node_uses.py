"""Nodes of a workflow as far as it can be read without any of their classes: for plans of what it needs. Pure.

A page says more than a prompt: the pack that a node comes from, and where its model files may be downloaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from darkroom.worker.json.values import JsonObject, object_at
from darkroom.worker.prompts.workflows.declarations import Declarations
from darkroom.worker.prompts.workflows.expansion import Expansion
from darkroom.worker.prompts.workflows.front_end_nodes import VIRTUAL
from darkroom.worker.prompts.workflows.link_sources import Constant, LinkSources
from darkroom.worker.prompts.workflows.page_graph import BYPASS, NEVER, PageNode, definitions_in, groups_in
from darkroom.worker.prompts.workflows.scopes import Scope, Unfolding
from darkroom.worker.prompts.workflows.widgets import ScriptedWidgets, read_values

MAX_HINTS: Final = 1000
CORE_PACK: Final = "comfy-core"
_SHA256: Final = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class ModelHint:
    """Download address that a workflow gives for a model file. `directory` is the folder below `models/`."""

    name: str
    url: str
    directory: str
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class NodeUse:
    """A node that would run. `values` are its inputs by name, or by place where its class is unknown.

    `pack` is the id or the repository of its pack, as the page noted it; empty for none.
    """

    id: str
    class_type: str
    values: JsonObject = field(default_factory=dict)
    pack: str = ""


def uses_in_prompt(prompt: JsonObject) -> list[NodeUse]:
    """Return the nodes of a prompt in API format."""
    return [
        NodeUse(str(node_id), str(node.get("class_type")), object_at(node, "inputs"))
        for node_id, node in prompt.items()
        if isinstance(node, Mapping) and isinstance(node.get("class_type"), str)
    ]


def uses_on_page(document: JsonObject, object_info: JsonObject, max_nodes: int = 0) -> list[NodeUse]:
    """Return the nodes of a page that would run, sub-graphs unfolded. Raises RequestRejected for too many."""
    expansion = Expansion(max_nodes)
    page = Unfolding(document, object_info, expansion).unfold()
    declarations, sources = Declarations(object_info), LinkSources(expansion)
    return [
        _use(scope, node, declarations, sources)
        for scope, node in page.all_nodes()
        if scope.mode_of(node) not in (NEVER, BYPASS) and node.id not in scope.children and node.type not in VIRTUAL
    ]


def model_hints(document: JsonObject) -> list[ModelHint]:
    """Return the download addresses that the nodes of a page give, at most MAX_HINTS."""
    found: dict[tuple[str, str], ModelHint] = {}
    for part in (document, *definitions_in(document).values(), *groups_in(document).values()):
        for node in _list(part.get("nodes")):
            for item in _list(object_at(node, "properties").get("models")) if isinstance(node, Mapping) else ():
                hint = _hint(item)
                if hint is not None and len(found) < MAX_HINTS:
                    found.setdefault((hint.directory, hint.name), hint)
    return list(found.values())


def _use(scope: Scope, node: PageNode, declarations: Declarations, sources: LinkSources) -> NodeUse:
    values = dict(_values(scope, node, declarations)) | _values_from_hosts(scope, node, sources)
    return NodeUse(scope.id_of(node), node.type, values, _pack(node))


def _values(scope: Scope, node: PageNode, declarations: Declarations) -> Iterator[tuple[str, Any]]:
    spec = declarations.find(node.type)
    named: JsonObject | None = None
    if spec is not None:
        try:
            named = read_values(spec, node)
        except ScriptedWidgets:
            named = None
    if named is None:
        values = node.values
        named = values if isinstance(values, Mapping) else {str(place): value for place, value in enumerate(values)}
    for name, value in named.items():
        yield name, scope.settings.get((node.id, name), value)


def _values_from_hosts(scope: Scope, node: PageNode, sources: LinkSources) -> dict[str, Any]:
    """Return the values that primitive nodes and the uses of the sub-graphs around a node give to its widgets."""
    found = ((slot.name, sources.of(scope, node, index)) for index, slot in enumerate(node.inputs) if slot.widget)
    return {name: source.value for name, source in found if isinstance(source, Constant)}


def _pack(node: PageNode) -> str:
    named = node.properties.get("cnr_id") or node.properties.get("aux_id") or ""
    return str(named)[:200] if named != CORE_PACK else ""


def _hint(item: object) -> ModelHint | None:
    if not isinstance(item, Mapping):
        return None
    name, url, directory = (item.get(key) for key in ("name", "url", "directory"))
    if not (isinstance(name, str) and isinstance(url, str) and isinstance(directory, str)):
        return None
    digest = str(item.get("hash") or "")
    is_sha256 = str(item.get("hash_type", "")).upper() == "SHA256" and _SHA256.fullmatch(digest)
    return ModelHint(name, url, directory, digest.lower() if is_sha256 else None)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
