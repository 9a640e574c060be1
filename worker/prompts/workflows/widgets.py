"""Values of a node's widgets by input name, from the list that ComfyUI's page saves. Pure.

The page shows a widget for each input that takes a plain value, in the order of the node's declaration, and saves the
widgets' values in that order. Between them stand values of widgets that only the page has: the control of a seed, the
button that uploads a file. An input that is linked keeps the place of its widget.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from darkroom.contract.graph.object_info import read_input, read_spec
from darkroom.contract.graph.spec import DYNAMIC_COMBO, GROWING, InputSpec, NodeSpec, Section
from darkroom.worker.json.values import JsonObject, object_at
from darkroom.worker.prompts.workflows.page_graph import PageNode
from darkroom.worker.prompts.workflows.view_states import VIEW, view_state

WIDGET_TYPES: Final = frozenset(
    {
        *("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO", "COLOR", "MARKDOWN", "TEXTAREA", "BOUNDING_BOX", "CURVE"),
        *("RANGE", VIEW),
    }
)
CONTROLS: Final = frozenset({"fixed", "increment", "increment-wrap", "decrement", "randomize"})
SEED_NAMES: Final = frozenset({"seed", "noise_seed"})
UPLOADS: Final = frozenset({"image_upload", "animated_image_upload", "video_upload", "audio_upload", "upload"})
UPLOAD_VALUES: Final = (None, "", "image", "video", "audio")
EMPTY: Final[Mapping[str, object]] = {"INT": 0, "FLOAT": 0.0, "STRING": "", "BOOLEAN": False}
SECTIONS: Final[tuple[Section, ...]] = ("required", "optional")
CORE_MODULES: Final = ("nodes", "comfy_extras.", "comfy_api_nodes.", "engine.")


class ScriptedWidgets(ValueError):
    """Widgets of a node that only a script of its pack can make."""


def is_widget(item: InputSpec, node: PageNode) -> bool:
    """Return True for an input that the page shows as a widget on this node."""
    if item.section == "hidden" or item.options.get("forceInput") or item.options.get("rawLink"):
        return False
    if item.choices is not None or item.type == DYNAMIC_COMBO or item.options.get("widgetType") in WIDGET_TYPES:
        return True
    if isinstance(item.type, str) and item.type.partition(":")[0] in WIDGET_TYPES:
        return True
    if item.options.get("socketless"):  # a widget of the page's own, such as the view of `ImageCompare`
        return True
    return item.name in node.widget_names


def read_class(class_type: str, object_info: JsonObject) -> NodeSpec | None:
    """Return the declaration of a class; None for a class that the engine does not have."""
    declared = object_info.get(class_type)
    return read_spec(class_type, declared) if isinstance(declared, Mapping) else None


def read_values(spec: NodeSpec, node: PageNode, added: Sequence[str] = ()) -> dict[str, Any]:
    """Return the values of a node's widgets by name, defaults for those that the file lacks.

    `added` are widgets that the page adds behind the declared ones, as facts of classes name them.

    Raises ScriptedWidgets for values that no declared input takes and that only a script reads.
    """
    if isinstance(node.values, Mapping):
        return _named_values(spec, node, node.values)
    if node.value_names:
        by_name = _TakenByName(dict(zip(node.value_names, node.values, strict=True)))
        found = _take_all(spec, node, by_name, added)
        if not by_name.lacks_names:  # else the class has other names than the one that saved the file
            return found
    return _take_all(spec, node, _Taken(_without_forced(spec, node, node.values)), added)


def _take_all(spec: NodeSpec, node: PageNode, taken: _Taken, added: Sequence[str]) -> dict[str, Any]:
    """Take the values of all inputs. Raises ScriptedWidgets."""
    found: dict[str, Any] = {}
    for section in ("required", "optional"):
        for item in spec.inputs:
            if item.section == section:
                _take(item, node, taken, found)
        if section == "required":
            taken.skip_upload(spec)
    found |= taken.take_added(added)
    if any(isinstance(value, dict | list) and value for value in taken.rest()) and not is_core(spec):
        raise ScriptedWidgets
    return found


def is_core(spec: NodeSpec) -> bool:
    return spec.python_module.startswith(CORE_MODULES)


def default_of(item: InputSpec) -> object:
    """Return the value that a new node's widget has."""
    if "default" in item.options:
        return item.options["default"]
    choices = item.choices
    if item.type == DYNAMIC_COMBO:
        choices = [option.get("key") for option in _options_of(item)]
    if choices is not None:
        return choices[0] if choices else None
    if item.options.get("socketless"):
        return ""
    return EMPTY.get(str(item.type).partition(":")[0])


class _Taken:
    """Saved values of a node, taken in order."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values
        self._next = 0

    def rest(self) -> Iterator[Any]:
        """Yield the values that were not taken."""
        return islice(self._values, self._next, None)

    def take(self, item: InputSpec, name: str) -> Any:
        """Return the next value, or the default of an input that is newer than the file."""
        found = self._ahead(1)
        self._next += 1
        return default_of(item) if not found or found[0] is None else found[0]

    def take_added(self, names: Sequence[str]) -> dict[str, object]:
        """Return the values of widgets behind the declared ones: one for each name, all others for one with a `#`."""
        found: dict[str, Any] = {}
        for name in names:
            rest = self._ahead(len(self._values) if name.endswith("#") else 1)
            self._next += len(rest)
            found |= {name.replace("#", str(number)): value for number, value in enumerate(rest, start=1)}
        return found

    def _ahead(self, num_values: int) -> Sequence[Any]:
        """Return the next values, fewer at the end."""
        return self._values[self._next : self._next + num_values]

    def skip_control(self, *, has_filter: bool) -> None:
        """Pass over the control of the value before, and over the text that filters a control of choices."""
        rest = self._ahead(2)
        if rest and (rest[0] in CONTROLS if isinstance(rest[0], str) else isinstance(rest[0], bool)):
            self._next += 1
            if has_filter and len(rest) > 1 and rest[1] in (None, ""):
                self._next += 1

    def skip_upload(self, spec: NodeSpec) -> None:
        """Pass over the widgets for an upload, which stand after the required inputs."""
        asked = [key for item in spec.inputs for key in UPLOADS if item.section == "required" and item.options.get(key)]
        for _ in range(2 if "audio_upload" in asked else bool(asked)):
            found = self._ahead(1)
            if found and not isinstance(found[0], bool | int | float) and found[0] in UPLOAD_VALUES:
                self._next += 1


class _TakenByName(_Taken):
    """Saved values of a node, taken by the names that newer pages save; what only the page has is never asked for."""

    def __init__(self, values: JsonObject) -> None:
        super().__init__(())
        self._by_name = dict(values)
        self.lacks_names = False

    def rest(self) -> Iterator[Any]:
        """Yield the values that were not taken."""
        return iter(self._by_name.values())

    def take(self, item: InputSpec, name: str) -> Any:
        self.lacks_names |= name not in self._by_name
        value = self._by_name.pop(name, None)
        return default_of(item) if value is None else value

    def take_added(self, names: Sequence[str]) -> dict[str, object]:
        patterns = [re.compile(re.escape(name).replace(r"\#", r"\d{1,4}")) for name in names]
        found = [name for name in self._by_name if any(pattern.fullmatch(name) for pattern in patterns)]
        return {name: self._by_name.pop(name) for name in found}

    def skip_control(self, *, has_filter: bool) -> None:
        """Leave the control, which has a name of its own."""

    def skip_upload(self, spec: NodeSpec) -> None:
        """Leave the widgets for an upload, which have names of their own."""


def _take(item: InputSpec, node: PageNode, taken: _Taken, found: dict[str, Any], prefix: str = "") -> None:
    """Take the value of an input, and of those that its value brings."""
    name = prefix + item.name
    if item.type == GROWING:
        for slot in node.inputs:
            if slot.widget and slot.name.startswith(f"{name}."):
                found[slot.name] = taken.take(InputSpec(slot.name, slot.type), slot.name)
        return
    if not is_widget(InputSpec(name, item.type, item.options, item.section), node):
        return
    found[name] = value = taken.take(item, name)
    if item.type == VIEW:
        found[name] = view_state(value, node.properties)
    if has_control(item):
        taken.skip_control(has_filter=item.choices is not None)
    if item.type == DYNAMIC_COMBO:
        for inner in _inputs_of_choice(item, value):
            _take(inner, node, taken, found, f"{name}.")


def has_control(item: InputSpec) -> bool:
    """Return True if the page adds a control of the next value, as after a seed."""
    asked = item.options.get("control_after_generate")
    return bool(asked) or (asked is None and item.type == "INT" and item.name in SEED_NAMES)


def _options_of(item: InputSpec) -> list[JsonObject]:
    """Return the choices of a dynamic combo, as far as its pack declares them as ComfyUI does."""
    found = item.options.get("options")
    return [option for option in found if isinstance(option, Mapping)] if isinstance(found, list | tuple) else []


def _inputs_of_choice(item: InputSpec, value: object) -> Iterator[InputSpec]:
    """Yield the inputs that a choice of a dynamic combo brings, under their own names."""
    for option in _options_of(item):
        if option.get("key") == value:
            for section in SECTIONS:
                for name, config in object_at(option, "inputs", section).items():
                    yield read_input(str(name), config, section)


def _without_forced(spec: NodeSpec, node: PageNode, values: Sequence[Any]) -> Sequence[Any]:
    """Return the values without those of inputs that were widgets when the file was saved, and may only be linked now.

    As on the page, these are recognised by the length of the list.
    """
    is_forced: list[bool] = []
    for item in spec.inputs:
        if item.options.get("forceInput") or is_widget(item, node):
            is_forced += [bool(item.options.get("forceInput")), *([False] if has_control(item) else [])]
    if not any(is_forced) or len(is_forced) != len(values):
        return values
    return [value for value, forced in zip(values, is_forced, strict=True) if not forced]


def _named_values(spec: NodeSpec, node: PageNode, values: JsonObject) -> dict[str, Any]:
    """Return the values of a node that saves them by name, as some packs do; those of added widgets too."""
    found = {item.name: values.get(item.name, default_of(item)) for item in spec.inputs if is_widget(item, node)}
    declared = {item.name for item in spec.inputs}
    for name, value in values.items():
        is_plain = isinstance(value, str | int | float) and value not in CONTROLS
        if name not in declared and is_plain and "upload" not in name and not is_core(spec):
            found[name] = value
    return found
