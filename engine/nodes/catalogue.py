"""Registry of node classes by name, and their descriptions for `/object_info`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from darkroom.contract.graph.facts import FACTS_KEY, NO_FACTS, NodeFacts
from darkroom.contract.graph.spec import InputSpec, NodeRules, NodeSpec, Section, ValueDict
from darkroom.engine.nodes.base import NodeClass, NodeEnvironment

_SECTIONS: tuple[Section, ...] = ("required", "optional", "hidden")
_FLAGS = (
    "output_tooltips", "deprecated", "experimental", "api_node", "comfyui_version",
    "output_matchtypes", "has_intermediate_output", "dev_only", "price_badge", "search_aliases", "essentials_category",
)  # fmt: skip

log = logging.getLogger(__name__)


class Catalogue(Mapping[str, NodeClass]):
    """Node classes by name, in the order in which they were added."""

    def __init__(self, classes: Iterable[NodeClass] = ()) -> None:
        self._classes: dict[str, NodeClass] = {}
        for node_class in classes:
            self.add(node_class)

    def add(self, node_class: NodeClass) -> None:
        """Add a class. It replaces an earlier one of the same name, as in ComfyUI."""
        self._classes[node_class.class_type] = node_class

    def remove(self, class_type: str) -> None:
        """Remove a class. Raises KeyError when there is none of that name."""
        del self._classes[class_type]

    def __getitem__(self, class_type: str) -> NodeClass:
        return self._classes[class_type]

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)

    def rules(self, class_type: str, environment: NodeEnvironment) -> NodeRules | None:
        """Return the rules of a class at this moment, or None when there is no such class."""
        found = self._classes.get(class_type)
        return None if found is None else found.rules(environment)

    def facts(self, class_type: str, environment: NodeEnvironment) -> NodeFacts:
        """Return the facts of a class; none for an unknown one and for a custom one that fails to describe itself."""
        found = self._classes.get(class_type)
        try:
            return NO_FACTS if found is None else found.declared_facts(environment)
        except Exception:  # noqa: BLE001 - a custom node's own code: the check of the prompt reports it
            return NO_FACTS

    def object_info(self, environment: NodeEnvironment, class_type: str | None = None) -> ValueDict:
        """Return a map from class name to ComfyUI's description, of all classes or of one; `{}` for an unknown one.

        A custom node that fails to describe itself is logged and left out of the full map; requested alone, it raises.
        """
        if class_type is not None:
            found = self._classes.get(class_type)
            return {} if found is None else {class_type: object_info(found.spec(environment))}
        described: dict[str, Any] = {}
        for name, node_class in list(self._classes.items()):
            try:
                described[name] = object_info(node_class.spec(environment))
            except Exception:  # noqa: BLE001 - a custom node's own code
                log.exception("%s cannot describe itself", name)
        return described


def object_info(spec: NodeSpec) -> ValueDict:
    """Return a declaration under the keys of ComfyUI's `/object_info`, its facts under a key of our own."""
    sections = {section: spec.section(section) for section in _SECTIONS}
    facts = spec.facts.as_json()
    shown = {section: inputs for section, inputs in sections.items() if inputs or section == "required"}
    return {
        "input": {section: {item.name: _input(item) for item in inputs} for section, inputs in shown.items()},
        "input_order": {section: [item.name for item in inputs] for section, inputs in shown.items()},
        "is_input_list": spec.input_is_list,
        "output": [_json_type(item.type) for item in spec.outputs],
        "output_is_list": [item.is_list for item in spec.outputs],
        "output_name": [item.name for item in spec.outputs],
        "name": spec.class_type,
        "display_name": spec.display_name,
        "description": spec.description,
        "python_module": spec.python_module,
        "category": spec.category,
        "output_node": spec.is_output,
        **{flag: spec.extra[flag] for flag in _FLAGS if flag in spec.extra},
        **({FACTS_KEY: facts} if facts else {}),
    }


def _input(item: InputSpec) -> object:
    if item.section == "hidden":
        hidden = [item.type, dict(item.options)] if item.options else [item.type]
        return hidden if item.options or item.is_listed else item.type
    kind = _json_type(item.type)
    return [kind, dict(item.options)] if item.options or item.is_listed else [kind]


def _json_type(kind: Any) -> Any:
    return kind if isinstance(kind, str) else list(kind)
