"""Inputs that depend on the prompt: ComfyUI's dynamic combos and growing groups. Pure.

A dynamic combo brings further inputs with each of its choices; a growing group repeats one input under numbered or
listed names. Prompts give these under dotted names (`resize_type.width`, `images.image0`), a node receives them nested,
one mapping for each dynamic input:

    {"resize_type": {"resize_type": "scale width", "width": 512}}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from darkroom.contract.graph.spec import (
    ANY_TYPE,
    DYNAMIC_COMBO,
    GROWING,
    InputSpec,
    NodeRules,
    Section,
    ValueDict,
    Values,
    without_match,
)

MAX_GROWN = 100  # inputs of one group, as in ComfyUI
SECTIONS: tuple[Section, ...] = ("required", "optional")


def expanded(rules: NodeRules, inputs: Values) -> NodeRules:
    """Return the rules of a class for one node of a prompt, whose inputs choose which inputs there are."""
    if not rules.is_dynamic:
        return rules
    found = _Expansion(inputs)
    for item in rules.declared:
        found.add(item, ())
    declared = tuple(sorted(found.declared, key=lambda item: item.section != "required"))
    hidden = {name: item for name, item in rules.inputs.items() if item.section == "hidden"}
    return replace(
        rules,
        declared=declared,
        declared_names=frozenset(item.name for item in declared),
        inputs={**hidden, **{item.name: item for item in declared}},
        lazy=frozenset(item.name for item in declared if item.is_lazy),
        raw_links=frozenset(item.name for item in declared if item.takes_raw_link),
        places=found.places,
    )


def nested(rules: NodeRules, arguments: ValueDict, *, keyed: bool = False) -> ValueDict:
    """Return the arguments of a call as the node receives them: inputs of dynamic ones within their mappings.

    With `keyed` each of these is a pair of the value and its dotted name, by which a node asks for a lazy input.
    """
    if not rules.places:
        return arguments
    flat = dict(arguments)
    result: ValueDict = {}
    for name, place in rules.places.items():
        inner = result
        for part in place[:-1]:
            inner = inner.setdefault(part, {})
        value = flat.pop(name, {} if _is_empty_group(name) else None)
        inner[place[-1]] = (value, name.removesuffix(".")) if keyed else value
    return {**flat, **result}


@dataclass
class _Expansion:
    """The inputs of one node as they are found, and where each goes."""

    inputs: Values
    declared: list[InputSpec] = field(default_factory=list)
    places: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def add(self, item: InputSpec, above: tuple[str, ...]) -> None:
        """Add an input of the mapping `above`, or what it stands for."""
        place = (*above, item.name)
        if item.type == DYNAMIC_COMBO:
            self._add_combo(item, place)
        elif item.type == GROWING:
            self._add_group(item, place)
        else:
            name = ".".join(place)
            self.declared.append(replace(without_match(item), name=name))
            if above:
                self.places[name] = place

    def _add_combo(self, item: InputSpec, place: tuple[str, ...]) -> None:
        name = ".".join(place)
        options = [option for option in _sequence(item.options.get("options")) if isinstance(option, Mapping)]
        shown = {key: value for key, value in item.options.items() if key != "options"}
        # Within another choice it may be left out, as in ComfyUI: then it brings no inputs, and the node its default.
        section: Section = "optional" if len(place) > 1 and name not in self.inputs else item.section
        self.declared.append(InputSpec(name, [option.get("key") for option in options], shown, section))
        chosen = self.inputs.get(name)
        for option in options:
            if name in self.inputs and option.get("key") == chosen:
                self.places[name] = (*place, item.name)
                for inner in _declared_in(option.get("inputs")):
                    self.add(inner, place)
                return
        # The choice is the problem, not the inputs that came with it.
        given = [key for key in self.inputs if key.startswith(f"{name}.")]
        self.declared.extend(InputSpec(key, ANY_TYPE, {}, "optional") for key in given)

    def _add_group(self, item: InputSpec, place: tuple[str, ...]) -> None:
        template = item.options.get("template")
        template = template if isinstance(template, Mapping) else {}
        repeated = next(_declared_in(template.get("input")), InputSpec("", ANY_TYPE, {}, "optional"))
        least = template.get("min")
        num_required = least if isinstance(least, int) and repeated.section == "required" else 0
        is_empty = True
        for index, name in enumerate(_names_of(template)):
            section: Section = "required" if index < num_required else "optional"
            dotted = ".".join((*place, name))
            grown = replace(without_match(repeated), name=dotted, section=section, is_unfollowed=item.is_unfollowed)
            self.declared.append(grown)
            if dotted in self.inputs:
                self.places[dotted] = (*place, name)
                is_empty = False
        if is_empty:
            self.places[_empty_group(place)] = place


def _names_of(template: Mapping[str, object]) -> Sequence[str]:
    names = template.get("names")
    if isinstance(names, Sequence) and not isinstance(names, str):
        return [str(name) for name in names[:MAX_GROWN]]
    most = template.get("max")
    count = min(most, MAX_GROWN) if isinstance(most, int) else 0
    return [f"{template.get('prefix', '')}{index}" for index in range(count)]


def _declared_in(sections: object) -> Iterator[InputSpec]:
    """Yield the inputs of `{"required": {name: [type, options]}, "optional": ...}`."""
    if not isinstance(sections, Mapping):
        return
    for section in SECTIONS:
        inputs = sections.get(section)
        for name, config in inputs.items() if isinstance(inputs, Mapping) else ():
            parts = _sequence(config) or [ANY_TYPE]
            options = parts[1] if len(parts) > 1 and isinstance(parts[1], Mapping) else {}
            yield InputSpec(str(name), parts[0], options, section)


def _sequence(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else []


def _empty_group(place: tuple[str, ...]) -> str:
    return ".".join((*place, ""))  # no input's name ends in a dot


def _is_empty_group(name: str) -> bool:
    return name.endswith(".")
