"""`/object_info` of any engine with ComfyUI's API, read back into declarations that prompts are checked against. Pure.

What only the engine itself can know is not checked: its classes' own checks of their inputs, the links that a pack's
class takes without declaring them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from darkroom.contract.graph.facts import FACTS_KEY, Facts, read_facts
from darkroom.contract.graph.spec import ANY_TYPE, InputSpec, NodeRules, NodeSpec, OutputSpec, Section, Values, rules_of
from darkroom.contract.graph.validate import FindRules

OWN_MODULE = "nodes"  # of the classes that come with ComfyUI's core
SECTIONS: tuple[Section, ...] = ("required", "optional", "hidden")
UNNAMED_TYPES = frozenset({"COMFY_DYNAMICSLOT_V3"})  # appear in prompts under names that the declaration does not tell


def rules_in(object_info: Mapping[str, object]) -> FindRules:
    """Return a lookup of rules by class, read on demand; None for a class that the engine does not have."""

    def find(class_type: str) -> NodeRules | None:
        declared = object_info.get(class_type)
        return read_rules(class_type, declared) if isinstance(declared, Mapping) else None

    return find


def read_rules(class_type: str, declared: Mapping[str, object]) -> NodeRules:
    spec = read_spec(class_type, declared)
    return rules_of(spec, undeclared=frozenset() if spec.python_module == OWN_MODULE else None)


def read_spec(class_type: str, declared: Values) -> NodeSpec:
    """Read the entry of a class, passing over what is not as ComfyUI writes it."""
    sections = _mapping(declared.get("input"))
    is_open = Facts({class_type: declared}).of(class_type).open
    inputs = tuple(
        replace(read_input(str(name), config, section), is_open=name in is_open)
        for section in SECTIONS
        for name, config in _mapping(sections.get(section)).items()
    )
    return NodeSpec(
        class_type=class_type,
        inputs=inputs,
        outputs=_outputs(declared),
        display_name=declared.get("display_name"),
        category=str(declared.get("category") or ""),
        description=str(declared.get("description") or ""),
        python_module=str(declared.get("python_module") or ""),
        is_output=bool(declared.get("output_node")),
        facts=read_facts(declared.get(FACTS_KEY)),
    )


def read_input(name: str, config: object, section: Section = "required") -> InputSpec:
    """Read `[type, options]`, `[choices]` or, of a hidden input, the type alone."""
    parts = config if isinstance(config, list | tuple) and config else [config]
    kind = parts[0] if isinstance(parts[0], str | list) else ANY_TYPE
    options = parts[1] if len(parts) > 1 and isinstance(parts[1], Mapping) else {}
    if isinstance(kind, str) and kind in UNNAMED_TYPES and section == "required":
        section = "optional"
    is_upload = any(str(option).endswith("_upload") and wanted for option, wanted in options.items())
    return InputSpec(name, kind, options, section, is_one_folder=is_upload)


def _outputs(declared: Mapping[str, object]) -> tuple[OutputSpec, ...]:
    types = _list(declared.get("output"))
    names, lists = _list(declared.get("output_name")), _list(declared.get("output_is_list"))
    names += types[len(names) :]
    lists += [False] * (len(types) - len(lists))
    return tuple(
        OutputSpec(kind if isinstance(kind, str | list) else ANY_TYPE, str(name), bool(is_list))
        for kind, name, is_list in zip(types, names, lists, strict=False)
    )


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []
